"""What particular registries do, and the specification allows or forbids: it works, or the limit is named.

Each behaviour was reported in public of the registry that a test names, and is put before a real one here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.errors import Unavailable
from builder.oci.layout import Layout
from builder.oci.model import OCI_INDEX, canonical_json
from builder.oci.reference import parse_reference
from builder.oci.registry.client import Network, Repository
from builder.oci.registry.retry import RetryPolicy
from builder.oci.registry.transport import NetworkSettings
from tests.conftest import Overlay, Run
from tests.integration import faulty
from tests.integration.conftest import Registry
from tests.integration.faulty import Action, Exchange, FaultyProxy, answer_with, change_headers
from tests.integration.judge import OVERLAY
from tests.integration.test_registry import attestation, blob, push_image

ALWAYS = 1_000_000
MIB = 1 << 20
SETTINGS = NetworkSettings(retry=RetryPolicy(attempts=3, first_wait=0.01, longest_wait=1.0), read_timeout=5.0)
LARGE = os.urandom(9 * MIB + 17)
SMALL = b"a small layer"


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def behind(registry: Registry, proxy: FaultyProxy, warnings: list[str]) -> Iterator[Repository]:
    """A repository of the registry, seen through the proxy."""
    with Network(SETTINGS, warn=warnings.append) as network:
        yield network.repository(parse_reference(f"{proxy.address}/{registry.space}/app"))


@pytest.fixture
def large(tmp_path: Path) -> Layout:
    """A layout that holds a blob of nine mebibytes."""
    layout = Layout(tmp_path / "layout")
    layout.put_blob(blob(LARGE), LARGE)
    return layout


def at_most(size: int, status: int) -> Action:
    """The registry, behind something that takes no body larger than ``size`` bytes."""

    def act(exchange: Exchange) -> None:
        if exchange.length > size:
            answer_with(status)(exchange)
        else:
            exchange.send(exchange.ask())

    return act


# --- uploads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [413, 416])
@pytest.mark.parametrize("limit", [4 * MIB, MIB])
def test_pieces_get_smaller_until_the_registry_takes_them(
    behind: Repository, proxy: FaultyProxy, large: Layout, warnings: list[str], limit: int, status: int
) -> None:
    """GHCR answers 416 to a piece of more than 4 MiB."""
    proxy.fail("PATCH", "/uploads/", at_most(limit, status), times=ALWAYS)
    behind.copy_blob(large, blob(LARGE))
    assert behind.read_blob(blob(LARGE)) == LARGE
    taken = [seen.length for seen in proxy.requests("PATCH") if seen.length <= limit]
    assert max(taken) == limit
    (said,) = warnings
    assert str(status) in said
    assert str(limit) in said


def test_the_limit_is_found_once_a_registry(
    behind: Repository, proxy: FaultyProxy, large: Layout, tmp_path: Path
) -> None:
    proxy.fail("PATCH", "/uploads/", at_most(4 * MIB, 416), times=ALWAYS)
    behind.copy_blob(large, blob(LARGE))
    other = LARGE[::-1]
    large.put_blob(blob(other), other)
    before = len(proxy.requests("PATCH"))
    behind.copy_blob(large, blob(other))
    assert all(seen.length <= 4 * MIB for seen in proxy.requests("PATCH")[before:])


@pytest.mark.parametrize("status", [413, 416])
def test_a_registry_that_takes_no_piece_of_a_mebibyte_gets_the_blob_in_one_put(
    behind: Repository, proxy: FaultyProxy, large: Layout, warnings: list[str], status: int
) -> None:
    proxy.fail("PATCH", "/uploads/", answer_with(status), times=ALWAYS)
    behind.copy_blob(large, blob(LARGE))
    assert behind.read_blob(blob(LARGE)) == LARGE
    assert [seen.length for seen in proxy.requests("PUT", "/uploads/")] == [len(LARGE)]
    assert "whole" in warnings[0]


def test_a_blob_that_is_too_large_in_every_way_names_the_limit(
    behind: Repository, proxy: FaultyProxy, large: Layout
) -> None:
    for method in ("PATCH", "PUT"):
        proxy.fail(method, "/uploads/", answer_with(413), times=ALWAYS)
    with pytest.raises(Unavailable, match="neither in pieces nor whole") as caught:
        behind.copy_blob(large, blob(LARGE))
    assert "413" in str(caught.value.found)
    assert len(proxy.seen) < 30


def test_a_piece_that_is_refused_for_another_reason_says_which(
    behind: Repository, proxy: FaultyProxy, large: Layout
) -> None:
    errors = b'{"errors":[{"code":"SIZE_INVALID","message":"quota of the project is used up"}]}'
    proxy.fail("PATCH", "/uploads/", answer_with(400, errors), times=ALWAYS)
    with pytest.raises(Unavailable, match="quota of the project is used up"):
        behind.copy_blob(large, blob(LARGE))


@pytest.mark.parametrize("status", [200, 202])
def test_a_blob_put_that_is_answered_otherwise_is_asked_for(
    behind: Repository, proxy: FaultyProxy, status: int
) -> None:
    def stored(exchange: Exchange) -> None:
        answer = exchange.ask()
        exchange.send(faulty.Answer(status, answer.headers, answer.body))

    proxy.fail("PUT", "/uploads/", stored, times=ALWAYS)
    behind.put_blob(blob(SMALL), SMALL)
    assert behind.read_blob(blob(SMALL)) == SMALL
    assert proxy.count("PUT", "/uploads/") == 1


def test_a_blob_put_that_is_answered_otherwise_and_not_stored_fails(
    behind: Repository, proxy: FaultyProxy
) -> None:
    proxy.fail("PUT", "/uploads/", answer_with(202), times=ALWAYS)
    with pytest.raises(Unavailable, match="answered 202"):
        behind.put_blob(blob(SMALL), SMALL)


def test_a_head_that_is_not_known_or_leads_to_a_refusal_means_upload(
    behind: Repository, proxy: FaultyProxy
) -> None:
    with FaultyProxy(proxy.upstream) as storage:
        storage.fail("HEAD", "", answer_with(403), times=ALWAYS)

        def elsewhere(exchange: Exchange) -> None:
            exchange.send(faulty.Answer(307, [("Location", f"http://{storage.address}/bucket")], b""))

        for number, action in enumerate((answer_with(405), elsewhere)):
            data = SMALL + bytes([number])
            proxy.faults.clear()
            proxy.fail("HEAD", "/blobs/", action, times=ALWAYS)
            behind.put_blob(blob(data), data)
            assert behind.read_blob(blob(data)) == data


def test_a_location_that_leaves_its_port_out_is_named(behind: Repository, proxy: FaultyProxy) -> None:
    def without_port(exchange: Exchange) -> None:
        answer = exchange.ask()
        location = dict(answer.headers)["Location"].replace(proxy.address, "127.0.0.1:9")
        change_headers(Location=location)(exchange)

    proxy.fail("POST", "/uploads/", without_port, times=ALWAYS)
    with pytest.raises(Unavailable) as caught:
        behind.put_blob(blob(SMALL), SMALL)
    assert "127.0.0.1:9" in caught.value.what
    assert f"leaves out the port {proxy.address.rpartition(':')[2]}" in caught.value.what


@pytest.mark.parametrize("location", ["http://[::1/v2/x", "http://127.0.0.1:99999/x", "http://:5000/x"])
def test_a_location_that_is_no_address_is_refused(
    behind: Repository, proxy: FaultyProxy, location: str
) -> None:
    proxy.fail("POST", "/uploads/", change_headers(Location=location), times=ALWAYS)
    with pytest.raises(Unavailable, match="no usable Location"):
        behind.put_blob(blob(SMALL), SMALL)


# --- referrers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 406])
def test_whatever_a_registry_without_the_api_answers_the_fallback_tag_is_read(
    behind: Repository, proxy: FaultyProxy, status: int
) -> None:
    subject = push_image(behind, SMALL)
    behind.put_blob(blob(b"{}"), b"{}")
    note = attestation(subject, "1")
    proxy.fail("GET", "/referrers/", answer_with(status), times=ALWAYS)
    behind.put_referrer(note)
    assert [one.digest for one in behind.list_referrers(subject.digest)] == [note.digest]


def test_an_image_under_the_tag_for_its_referrers_is_no_list(behind: Repository, proxy: FaultyProxy) -> None:
    """GitLab answers ``manifests/sha256-X`` with the manifest ``sha256:X``."""
    subject = push_image(behind, SMALL)
    index = push_index(behind, subject)
    for digest in (subject.digest, index):
        proxy.faults.clear()
        proxy.fail("GET", f"/manifests/{digest.replace(':', '-')}", as_digest, times=1)
        assert behind.list_referrers(digest) == []
    behind.put_blob(blob(b"{}"), b"{}")
    note = attestation(subject, "1")
    proxy.fail("GET", "/manifests/sha256-", as_digest, times=1)
    behind.put_referrer(note)
    assert [one.digest for one in behind.list_referrers(subject.digest)] == [note.digest]


def test_a_registry_that_can_keep_no_list_says_so(behind: Repository, proxy: FaultyProxy) -> None:
    subject = push_image(behind, SMALL)
    behind.put_blob(blob(b"{}"), b"{}")
    for method in ("GET", "HEAD"):
        proxy.fail(method, "/manifests/sha256-", as_digest, times=ALWAYS)
    with pytest.raises(Unavailable, match="keeps no list") as caught:
        behind.put_referrer(attestation(subject, "1"))
    assert "--no-attach" in str(caught.value.hint)


def test_a_list_without_types_is_completed_from_the_manifests(behind: Repository, proxy: FaultyProxy) -> None:
    subject = push_image(behind, SMALL)
    behind.put_blob(blob(b"{}"), b"{}")
    note = behind.put_referrer(attestation(subject, "1"))
    bare = {"mediaType": note.media_type, "digest": note.digest, "size": note.size}
    page = canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [bare]})
    proxy.fail("GET", "/referrers/", answer_with(200, page, Content_Type=OCI_INDEX))
    (found,) = behind.list_referrers(subject.digest, artifact_type="application/x.note")
    assert (found.artifact_type, found.annotations) == ("application/x.note", {"note": "1"})


def as_digest(exchange: Exchange) -> None:
    """Take a tag ``sha256-…`` for the digest."""
    exchange.path = exchange.path.replace("/manifests/sha256-", "/manifests/sha256:")
    exchange.send(exchange.ask())


def push_index(repository: Repository, *images: object) -> str:
    from builder.oci.model import RawManifest

    entries = [one.descriptor.as_json() for one in images if isinstance(one, RawManifest)]
    index = RawManifest(
        OCI_INDEX, canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})
    )
    return repository.put_manifest(index).digest


# --- builds -----------------------------------------------------------------------------------------------


@pytest.fixture
def build(
    prepared: Overlay,
    proxy: FaultyProxy,
    registry: Registry,
    small_base_pushed: str,
    wheel: Callable[[str], Path],
) -> Callable[..., Run]:
    """Build with everything through the proxy, to ``out:new`` unless told otherwise."""
    patient = prepared.with_environment(OVERLAY_RETRY_WAIT="0.02")
    base = small_base_pushed.replace(registry.address, proxy.address)

    target = f"{proxy.address}/{registry.space}/out:new"

    def run(*options: str) -> Run:
        words = ("--base", base, "--wheel", wheel("0.5.20"), "--push", target, *options)
        return patient("build", OVERLAY, *words)

    return run


def test_a_registry_that_refuses_a_subject_is_left_without_a_tag_and_the_hint_helps(
    build: Callable[..., Run], proxy: FaultyProxy, registry: Registry, prepared: Overlay
) -> None:
    def refuse_subject(exchange: Exchange) -> None:
        if b'"subject"' in exchange.body():
            body = b'{"errors":[{"code":"MANIFEST_INVALID","message":"unknown field subject"}]}'
            answer_with(400, body)(exchange)
        else:
            exchange.send(exchange.ask())

    proxy.fail("PUT", "/manifests/", refuse_subject, times=ALWAYS)
    done = build().check(8)
    assert "unknown field subject" in done.err
    assert "--no-attach" in done.err
    assert registry.tags("out") == []
    build("--no-attach").check()
    assert registry.tags("out") == ["new"]


def test_a_tag_is_never_without_its_attestations(
    build: Callable[..., Run], proxy: FaultyProxy, registry: Registry
) -> None:
    proxy.fail("PUT", "/manifests/sha256-", answer_with(500), times=ALWAYS)
    build().check(8)
    assert registry.tags("out") == []


def test_a_tag_that_is_right_is_not_written_again(build: Callable[..., Run], proxy: FaultyProxy) -> None:
    build().check()
    before = proxy.count("PUT", "/manifests/new")
    build().check()
    assert before == proxy.count("PUT", "/manifests/new") == 1


@pytest.mark.parametrize("status", [400, 412])
def test_a_tag_that_may_not_move_says_so(
    build: Callable[..., Run], proxy: FaultyProxy, registry: Registry, status: int
) -> None:
    """ECR and Nexus answer 400, Harbor 412."""
    repository = parse_reference(f"{proxy.address}/{registry.space}/out")
    with Network(SETTINGS, warn=pytest.fail) as network:
        push_image(network.repository(repository), SMALL, tag="new")
    body = b'{"errors":[{"code":"TAG_INVALID","message":"the tag is immutable"}]}'
    proxy.fail("PUT", "/manifests/new", answer_with(status, body), times=ALWAYS)
    done = build().check(8)
    assert "does not let the tag move" in done.err
    assert "--tag-template" in done.err


def test_what_was_delivered_is_in_the_lock_though_the_next_target_fails(
    build: Callable[..., Run], prepared: Overlay, tmp_path: Path
) -> None:
    (tmp_path / "layout" / "index.json").mkdir(parents=True)
    build("--output", f"oci:{tmp_path}/layout").check(5)
    lock = (prepared.directory / "overlays" / f"{OVERLAY}.lock").read_text()
    assert "/out:new@sha256:" in lock
