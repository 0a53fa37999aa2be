"""Images reach a registry and come back whole, whatever the line between does; or it is said why not.

A real ``docker-registry``, alone, behind a proxy that fails (``faulty.py``), or asking who we are.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from builder.errors import ImageMismatch, InvalidInput, OverlayError, Unavailable
from builder.oci.layout import Layout
from builder.oci.model import (
    DOCKER_CONFIG,
    DOCKER_LAYER_GZIP,
    DOCKER_MANIFEST,
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_MANIFEST,
    Descriptor,
    RawManifest,
    canonical_json,
    sha256_digest,
)
from builder.oci.parallel import run_parallel
from builder.oci.reference import Reference, parse_reference
from builder.oci.registry.client import MOST_PAGES, Network, Repository
from builder.oci.registry.retry import RetryPolicy
from builder.oci.registry.transport import NetworkSettings
from tests.conftest import ROOT
from tests.integration import faulty, registry_fixtures
from tests.integration.conftest import Registry
from tests.integration.faulty import FaultyProxy
from tests.integration.registry_fixtures import IDENTITY_TOKEN, PASSWORD, USER, TokenServer

SETTINGS = NetworkSettings(
    retry=RetryPolicy(attempts=4, first_wait=0.01, longest_wait=2.0), upload_chunk=256 << 10, read_timeout=5.0
)
CONFIG = b'{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}'
LAYER = os.urandom(1_000_003)


def blob(data: bytes, media_type: str = OCI_LAYER) -> Descriptor:
    return Descriptor(media_type, sha256_digest(data), len(data))


def image(*layers: bytes, **more: object) -> RawManifest:
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": blob(CONFIG, OCI_CONFIG).as_json(),
        "layers": [blob(layer).as_json() for layer in layers],
    }
    return RawManifest(OCI_MANIFEST, canonical_json(manifest | more))


def push_image(repository: Repository, *layers: bytes, tag: str = "v1") -> RawManifest:
    repository.put_blob(blob(CONFIG, OCI_CONFIG), CONFIG)
    for layer in layers:
        repository.put_blob(blob(layer), layer)
    manifest = image(*layers)
    repository.put_manifest(manifest, tag=tag)
    return manifest


@pytest.fixture
def warnings() -> list[str]:
    """What the network code warned of. Most tests expect nothing: see ``network``."""
    return []


@pytest.fixture
def network(warnings: list[str]) -> Iterator[Network]:
    with Network(SETTINGS, warn=warnings.append) as running:
        yield running
    assert warnings == [], "a test that expects warnings clears them"


@pytest.fixture
def direct(network: Network, registry: Registry) -> Repository:
    """A repository of the registry itself."""
    return network.repository(parse_reference(registry.repository("app")))


@pytest.fixture
def behind(network: Network, registry: Registry, proxy: FaultyProxy) -> Repository:
    """The same repository, seen through the proxy."""
    return network.repository(parse_reference(f"{proxy.address}/{registry.space}/app"))


# --- what works ------------------------------------------------------------------------------------------


def test_what_was_pushed_reads_back(direct: Repository) -> None:
    manifest = push_image(direct, LAYER)
    assert direct.get_manifest("v1") == manifest
    assert direct.get_manifest(manifest.digest) == manifest
    assert direct.head_manifest("v1") == manifest.descriptor
    assert direct.read_blob(blob(LAYER)) == LAYER
    assert direct.has_blob(blob(LAYER).digest)
    assert direct.list_tags() == ["v1"]


def test_empty_and_docker_schema_2_and_index(direct: Repository) -> None:
    for data, config, layer, kind in (
        (b"", OCI_CONFIG, OCI_LAYER, OCI_MANIFEST),
        (LAYER, DOCKER_CONFIG, DOCKER_LAYER_GZIP, DOCKER_MANIFEST),
    ):
        direct.put_blob(blob(data), data)
        direct.put_blob(blob(CONFIG), CONFIG)
        manifest = RawManifest(
            kind,
            canonical_json(
                {
                    "schemaVersion": 2,
                    "mediaType": kind,
                    "config": blob(CONFIG, config).as_json(),
                    "layers": [blob(data, layer).as_json()],
                }
            ),
        )
        child = direct.put_manifest(manifest)
        index = RawManifest(
            OCI_INDEX,
            canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [child.as_json()]}),
        )
        direct.put_manifest(index, tag="index")
        assert direct.get_manifest("index") == index
        assert direct.get_manifest(child.digest) == manifest
        assert direct.read_blob(blob(data)) == data


def test_writing_twice_uploads_once(behind: Repository, proxy: FaultyProxy) -> None:
    push_image(behind, LAYER)
    proxy.seen.clear()
    push_image(behind, LAYER)
    assert proxy.count("POST") == proxy.count("PATCH") == 0
    assert proxy.count("PUT") == 1  # the tag


def test_a_whole_push_uses_one_connection(behind: Repository, proxy: FaultyProxy) -> None:
    push_image(behind, LAYER, b"small")
    behind.get_manifest("v1")
    behind.read_blob(blob(LAYER))
    with pytest.raises(ImageMismatch):
        behind.get_manifest("none")
    assert len(proxy.seen) > 15
    assert proxy.connections == 1


def test_within_one_registry_a_blob_is_mounted_and_not_sent(
    network: Network, registry: Registry, behind: Repository, proxy: FaultyProxy
) -> None:
    push_image(behind, LAYER)
    proxy.seen.clear()
    neighbour = network.repository(parse_reference(f"{proxy.address}/{registry.space}/other/deep"))
    heard: list[int] = []
    neighbour.copy_blob(behind, blob(LAYER), progress=heard.append)
    assert neighbour.read_blob(blob(LAYER)) == LAYER
    assert [seen.method for seen in proxy.seen] == ["POST", "GET"]
    assert f"mount={blob(LAYER).digest}&from={registry.space}%2Fapp" in proxy.seen[0].path
    assert sum(seen.length for seen in proxy.seen) == 0
    assert heard == []


@pytest.mark.parametrize("status", [202, 404, 405])
def test_a_registry_that_does_not_mount_gets_the_bytes(
    network: Network, registry: Registry, behind: Repository, proxy: FaultyProxy, status: int
) -> None:
    push_image(behind, LAYER)

    def ask_for_another(exchange: faulty.Exchange) -> None:
        """What a registry answers for a blob that may not be mounted: an upload to go on with."""
        exchange.path = exchange.path.replace(blob(LAYER).digest, "sha256:" + "0" * 64)
        exchange.send(exchange.ask())

    proxy.fail("POST", "mount=", ask_for_another if status == 202 else faulty.answer_with(status))
    neighbour = network.repository(parse_reference(f"{proxy.address}/{registry.space}/other"))
    neighbour.copy_blob(behind, blob(LAYER))
    assert neighbour.read_blob(blob(LAYER)) == LAYER
    assert proxy.count("POST", "other/blobs/uploads") == (1 if status == 202 else 2)
    # It is not asked to mount the next one, only whether it has it already.
    behind.put_blob(blob(b"another"), b"another")
    proxy.seen.clear()
    neighbour.copy_blob(behind, blob(b"another"))
    assert proxy.seen[0].method == "HEAD"
    assert proxy.count("POST", "mount=") == 0


def test_an_upload_opened_instead_of_a_mount_is_closed_where_the_blob_is_there(
    network: Network, registry: Registry, behind: Repository, direct: Repository, proxy: FaultyProxy
) -> None:
    push_image(behind, LAYER)
    there = network.repository(parse_reference(registry.repository("other")))
    there.copy_blob(direct, blob(LAYER))

    def ask_for_another(exchange: faulty.Exchange) -> None:
        exchange.path = exchange.path.replace(blob(LAYER).digest, "sha256:" + "0" * 64)
        exchange.send(exchange.ask())

    proxy.fail("POST", "mount=", ask_for_another)
    proxy.seen.clear()
    neighbour = network.repository(parse_reference(f"{proxy.address}/{registry.space}/other"))
    neighbour.copy_blob(behind, blob(LAYER))
    assert [seen.method for seen in proxy.seen] == ["POST", "HEAD", "DELETE"]


def test_between_registries_a_blob_is_streamed(
    network: Network, direct: Repository, registry: Registry, proxy: FaultyProxy
) -> None:
    push_image(direct, LAYER)
    elsewhere = network.repository(parse_reference(f"{proxy.address}/{registry.space}/copy"))
    heard: list[int] = []
    elsewhere.copy_blob(direct, blob(LAYER), progress=heard.append)
    assert elsewhere.read_blob(blob(LAYER)) == LAYER
    assert sum(heard) == len(LAYER)
    pieces = [seen.length for seen in proxy.requests("PATCH")]
    assert max(pieces) == SETTINGS.upload_chunk
    assert sum(pieces) == len(LAYER)


def test_an_image_goes_to_a_layout_and_back(
    network: Network, registry: Registry, direct: Repository, tmp_path: Path
) -> None:
    manifest = push_image(direct, LAYER)
    layout = Layout(tmp_path / "layout")
    back = network.repository(parse_reference(registry.repository("back")))
    for source, sink in ((direct, layout), (layout, back)):
        sink.copy_blob(source, blob(LAYER))
        sink.copy_blob(source, blob(CONFIG, OCI_CONFIG))
        sink.put_manifest(source.get_manifest("v1"), tag="v1")
    assert back.get_manifest("v1") == manifest
    assert back.read_blob(blob(LAYER)) == LAYER


def test_skopeo_reads_what_was_pushed_and_we_read_what_skopeo_pushes(
    direct: Repository, network: Network, registry: Registry, skopeo: Callable[..., str], tmp_path: Path
) -> None:
    tar = b"\0" * 10240
    config = canonical_json(
        {
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [sha256_digest(tar)]},
        }
    )
    direct.put_blob(blob(tar), tar)
    direct.put_blob(blob(config), config)
    manifest = image(tar, config=blob(config, OCI_CONFIG).as_json())
    direct.put_manifest(manifest, tag="v1")
    place = f"oci:{tmp_path / 'layout'}:v1"
    skopeo("copy", "--preserve-digests", f"docker://{registry.repository('app')}:v1", place)
    assert Layout(tmp_path / "layout").get_manifest("v1") == manifest
    skopeo("copy", "--preserve-digests", place, f"docker://{registry.repository('again')}:v2")
    again = network.repository(parse_reference(registry.repository("again")))
    assert again.get_manifest("v2").digest == manifest.digest
    assert again.read_blob(blob(tar)) == tar
    ours = Layout(tmp_path / "ours")
    for descriptor in (blob(tar), blob(config, OCI_CONFIG)):
        ours.copy_blob(again, descriptor)
    ours.put_manifest(manifest, tag="v3")
    skopeo("copy", "--preserve-digests", f"{ours.name}:v3", f"docker://{registry.repository('again')}:v3")
    assert again.get_manifest("v3") == manifest


def test_copying_a_large_blob_takes_little_memory(
    registry: Registry, proxy: FaultyProxy, tmp_path: Path
) -> None:
    script = """
        import sys
        from builder.oci.model import Descriptor
        from builder.oci.reference import parse_reference
        from builder.oci.registry.client import Network
        from builder.oci.layout import Layout
        source, target, digest, size = sys.argv[1:]
        blob = Descriptor("application/octet-stream", digest, int(size))
        with Network(warn=print) as network:
            sink = network.repository(parse_reference(target))
            sink.copy_blob(Layout(source), blob)
            with sink.open_blob(blob) as chunks:
                assert sum(map(len, chunks)) == int(size)
        print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
    """
    large = bytes(1 << 20) * 192
    layout = Layout(tmp_path / "layout")
    layout.put_blob(blob(large), large)
    arguments = [str(layout.path), registry.repository("large"), blob(large).digest, str(len(large))]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 80 * 1024  # KiB


# --- what fails for a while ------------------------------------------------------------------------------

REQUESTS = {
    "get manifest": ("GET", "/manifests/"),
    "get blob": ("GET", "/blobs/sha256"),
    "ask for blob": ("HEAD", "/blobs/sha256"),
    "open upload": ("POST", "/uploads/"),
    "send piece": ("PATCH", "/uploads/"),
    "finish upload": ("PUT", "/uploads/"),
    "put manifest": ("PUT", "/manifests/"),
}
FAILURES = {
    "429": faulty.answer_with(429),
    "429 with a time": faulty.answer_with(429, Retry_After="0"),
    "500": faulty.answer_with(500, b"<html>oops</html>"),
    "503": faulty.answer_with(503, b'{"errors":[{"code":"UNAVAILABLE","message":"down"}]}'),
    "reset at once": faulty.reset_at_once,
    "answer lost": faulty.lose_answer,
    "reset halfway through the request": faulty.reset_request(100),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_failure_that_passes_is_survived(
    behind: Repository, direct: Repository, proxy: FaultyProxy, request_name: str, failure: str
) -> None:
    method, path = REQUESTS[request_name]
    proxy.fail(method, path, FAILURES[failure], times=3)
    manifest = push_image(behind, LAYER)
    assert behind.get_manifest("v1") == manifest
    assert behind.read_blob(blob(LAYER)) == LAYER
    # A registry that did what it was asked and could not say so is not asked three times.
    assert proxy.faults[0].left == 0 or failure in ("answer lost", "reset halfway through the request")
    assert proxy.faults[0].left < 3
    assert direct.get_manifest("v1") == manifest
    assert direct.read_blob(blob(LAYER)) == LAYER


WRITES = ("ask for blob", "open upload", "send piece", "finish upload", "put manifest")


@pytest.mark.parametrize(
    ("request_name", "failure"),
    [(name, how) for name in WRITES for how in FAILURES if (name, how) != ("put manifest", "answer lost")],
)
def test_a_failure_that_stays_ends_with_nothing_tagged(
    behind: Repository, registry: Registry, proxy: FaultyProxy, request_name: str, failure: str
) -> None:
    method, path = REQUESTS[request_name]
    proxy.fail(method, path, FAILURES[failure], times=10_000)
    if request_name == "finish upload":
        # A blob that was stored though nobody could say so is found to be there: keep that from view.
        proxy.fail("HEAD", "/blobs/sha256", faulty.answer_with(404), times=10_000)
    with pytest.raises(Unavailable) as failed:
        push_image(behind, LAYER)
    assert failed.value.exit_code == 8
    assert failed.value.hint
    assert registry.tags("app") == []
    assert len(proxy.seen) < 100


def test_a_blob_whose_answer_was_lost_is_not_sent_again(behind: Repository, proxy: FaultyProxy) -> None:
    proxy.fail("PUT", "/uploads/", faulty.lose_answer)
    behind.put_blob(blob(LAYER), LAYER)
    assert proxy.count("POST", "/uploads/") == proxy.count("PUT", "/uploads/") == 1
    assert behind.read_blob(blob(LAYER)) == LAYER


def test_a_manifest_whose_every_answer_is_lost_is_found_to_be_stored(
    behind: Repository, registry: Registry, proxy: FaultyProxy
) -> None:
    proxy.fail("PUT", "/manifests/", faulty.lose_answer, times=10_000)
    push_image(behind, LAYER)
    assert registry.tags("app") == ["v1"]


@pytest.mark.parametrize("cut", [faulty.reset_answer(300_000), faulty.truncate_answer(300_000)])
def test_a_broken_download_goes_on_where_it_stopped(
    behind: Repository, proxy: FaultyProxy, cut: faulty.Action
) -> None:
    push_image(behind, LAYER)
    proxy.fail("GET", "/blobs/", cut, times=3)
    assert behind.read_blob(blob(LAYER)) == LAYER
    ranges = [seen.headers.get("Range") for seen in proxy.requests("GET", "/blobs/")]
    assert ranges == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_a_download_that_gets_on_may_break_more_often_than_one_request_is_tried(
    behind: Repository, proxy: FaultyProxy
) -> None:
    push_image(behind, LAYER)
    proxy.fail("GET", "/blobs/", faulty.truncate_answer(100_000), times=10)
    assert behind.read_blob(blob(LAYER)) == LAYER
    assert proxy.count("GET", "/blobs/") == 11 > SETTINGS.retry.attempts


def test_a_download_that_does_not_get_on_ends(behind: Repository, proxy: FaultyProxy) -> None:
    push_image(behind, LAYER)
    proxy.fail("GET", "/blobs/", faulty.truncate_answer(100), times=10_000)
    with pytest.raises(Unavailable, match="download"):
        behind.read_blob(blob(LAYER))
    assert proxy.count("GET", "/blobs/") == SETTINGS.retry.attempts


def test_a_registry_that_ignores_ranges_is_read_from_the_start(
    behind: Repository, proxy: FaultyProxy
) -> None:
    push_image(behind, LAYER)
    proxy.fail("GET", "/blobs/", faulty.truncate_answer(300_000))
    proxy.fail("GET", "/blobs/", faulty.ignore_range)
    assert behind.read_blob(blob(LAYER)) == LAYER


@pytest.mark.parametrize("told", ["bytes 300001-1000002/1000003", "none", None])
def test_a_part_that_is_not_the_one_asked_for_is_not_taken(
    behind: Repository, proxy: FaultyProxy, told: str | None
) -> None:
    push_image(behind, LAYER)
    proxy.fail("GET", "/blobs/", faulty.truncate_answer(300_000))
    proxy.fail("GET", "/blobs/", faulty.change_headers(Content_Range=told), times=10_000)
    with pytest.raises(OverlayError):
        behind.read_blob(blob(LAYER))


def test_an_upload_goes_on_where_the_registry_says_it_stopped(behind: Repository, proxy: FaultyProxy) -> None:
    keeper = faulty.Keeper(after=100_000)
    proxy.fail("PATCH", "/uploads/", keeper.cut)
    proxy.fail("GET", "/uploads/", keeper.status)
    behind.put_blob(blob(LAYER), LAYER)
    ranges = [seen.headers["Content-Range"] for seen in proxy.requests("PATCH")]
    assert ranges[:3] == ["0-262143", "100000-262143", "262144-524287"]
    assert proxy.count("POST", "/uploads/") == 1
    assert behind.read_blob(blob(LAYER)) == LAYER


@pytest.mark.parametrize("status", [404, 416])
def test_an_upload_the_registry_forgot_starts_again(
    behind: Repository, proxy: FaultyProxy, status: int
) -> None:
    proxy.fail("PATCH", "/uploads/", lambda exchange: exchange.send(exchange.ask()))
    proxy.fail("PATCH", "/uploads/", faulty.answer_with(status))
    behind.put_blob(blob(LAYER), LAYER)
    assert proxy.count("POST", "/uploads/") == 2
    assert behind.read_blob(blob(LAYER)) == LAYER


def test_a_registry_that_takes_no_pieces_gets_a_blob_as_one(
    behind: Repository, proxy: FaultyProxy, tmp_path: Path
) -> None:
    layout = Layout(tmp_path)
    layout.put_blob(blob(LAYER), LAYER)

    def whole_only(exchange: faulty.Exchange) -> None:
        if not exchange.headers.get("Content-Range", "0-").startswith("0-"):
            faulty.answer_with(416)(exchange)
        else:
            exchange.send(exchange.ask())

    proxy.fail("PATCH", "/uploads/", whole_only, times=10_000)
    heard: list[int] = []
    behind.copy_blob(layout, blob(LAYER), progress=heard.append)
    assert behind.read_blob(blob(LAYER)) == LAYER
    assert [seen.length for seen in proxy.requests("PUT", "/uploads/")][-1] == len(LAYER)
    assert proxy.count("POST", "/uploads/") == 2
    assert sum(heard) == len(LAYER)


def test_a_blob_sent_as_one_that_breaks_is_sent_again_and_wrong_bytes_of_it_are_not_stored(
    behind: Repository, proxy: FaultyProxy, tmp_path: Path
) -> None:
    layout = Layout(tmp_path)
    layout.put_blob(blob(LAYER), LAYER)
    first_piece: faulty.Action = lambda exchange: exchange.send(exchange.ask())  # noqa: E731
    for action in (first_piece, faulty.answer_with(416)):
        proxy.fail("PATCH", "/uploads/", action)
    for action in (faulty.reset_request(1000), faulty.answer_with(503)):
        proxy.fail("PUT", "/uploads/", action)
    behind.copy_blob(layout, blob(LAYER))
    assert behind.read_blob(blob(LAYER)) == LAYER
    assert [seen.length for seen in proxy.requests("PUT", "/uploads/")] == [len(LAYER)] * 3

    other = blob(b"x" * 3_000_000)
    (tmp_path / "blobs" / "sha256" / other.digest[7:]).write_bytes(b"x" * 2_999_999 + b"y")
    for action in (first_piece, faulty.answer_with(416)):
        proxy.fail("PATCH", "/uploads/", action)
    with pytest.raises(ImageMismatch, match="not what its digest says"):
        behind.copy_blob(layout, other)
    assert not behind.has_blob(other.digest)


def test_a_registry_may_take_its_time_to_store_a_blob(registry: Registry, proxy: FaultyProxy) -> None:
    settings = NetworkSettings(retry=SETTINGS.retry, read_timeout=0.2)

    def slowly(exchange: faulty.Exchange) -> None:
        answer = exchange.ask()
        time.sleep(0.5)
        exchange.send(answer)

    proxy.fail("PUT", "/uploads/", slowly)
    with Network(settings, warn=pytest.fail) as network:
        repository = network.repository(parse_reference(f"{proxy.address}/{registry.space}/app"))
        repository.put_blob(blob(LAYER), LAYER)
    assert proxy.count("PUT") == 1


def test_progress_takes_back_what_is_sent_again(
    behind: Repository, direct: Repository, proxy: FaultyProxy, tmp_path: Path
) -> None:
    layout = Layout(tmp_path)
    layout.put_blob(blob(LAYER), LAYER)
    proxy.fail("PATCH", "/uploads/", lambda exchange: exchange.send(exchange.ask()))
    proxy.fail("PATCH", "/uploads/", faulty.reset_request(1000))
    heard: list[int] = []
    behind.copy_blob(layout, blob(LAYER), progress=heard.append)
    assert sum(heard) == len(LAYER)
    assert min(heard) == -SETTINGS.upload_chunk


def test_download_and_upload_may_both_break_in_one_copy(
    network: Network, registry: Registry, proxy: FaultyProxy, behind: Repository
) -> None:
    push_image(behind, LAYER)
    with FaultyProxy(registry.address) as other:
        target = network.repository(parse_reference(f"{other.address}/{registry.space}/copy"))
        proxy.fail("GET", "/blobs/", faulty.reset_answer(400_000), times=2)
        other.fail("PATCH", "/uploads/", faulty.answer_with(503), times=2)
        other.fail("PATCH", "/uploads/", faulty.reset_request(1000))
        target.copy_blob(behind, blob(LAYER))
        assert target.read_blob(blob(LAYER)) == LAYER


def test_a_time_to_wait_is_kept(behind: Repository, proxy: FaultyProxy) -> None:
    push_image(behind, LAYER)
    for told, least in (("1", 1.0), (None, 0.9)):
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
        proxy.fail("GET", "/manifests/", faulty.answer_with(429, Retry_After=told or date))
        started = time.monotonic()
        behind.get_manifest("v1")
        assert time.monotonic() - started >= least


def test_a_wait_that_is_too_long_is_told_and_not_waited(behind: Repository, proxy: FaultyProxy) -> None:
    proxy.fail("GET", "/manifests/", faulty.answer_with(429, Retry_After="3600"))
    started = time.monotonic()
    with pytest.raises(Unavailable) as failed:
        behind.get_manifest("v1")
    assert time.monotonic() - started < 1
    assert "3600 s" in str(failed.value.hint)


def test_silence_and_a_crawl_end_within_their_limits(
    registry: Registry, direct: Repository, proxy: FaultyProxy
) -> None:
    push_image(direct, LAYER)
    settings = NetworkSettings(
        retry=RetryPolicy(attempts=2, first_wait=0), read_timeout=0.2, slowest=1 << 20, patience=0.3
    )
    with Network(settings, warn=pytest.fail) as network:
        slow = network.repository(parse_reference(f"{proxy.address}/{registry.space}/app"))
        proxy.fail("GET", "/manifests/", faulty.silence(0.5), times=2)
        with pytest.raises(Unavailable, match="time limit"):
            slow.get_manifest("v1")
        proxy.fail("GET", "/blobs/", faulty.crawl(1000, 0.05), times=2)
        with pytest.raises(Unavailable, match="bytes came in"):
            slow.read_blob(blob(LAYER))
        proxy.fail("GET", "/blobs/", faulty.crawl(100_000, 0.05), times=1)
        assert slow.read_blob(blob(LAYER)) == LAYER  # slow is not silent


def test_no_registry_there_is_told_soon(network: Network) -> None:
    started = time.monotonic()
    with pytest.raises(Unavailable) as failed:
        network.repository(parse_reference("127.0.0.1:1/x")).get_manifest("v1")
    assert "connection refused" in failed.value.what
    assert failed.value.where == "127.0.0.1:1"
    assert time.monotonic() - started < 2


# --- what is wrong ---------------------------------------------------------------------------------------


def test_wrong_bytes_are_refused_and_never_handed_on(
    behind: Repository, proxy: FaultyProxy, tmp_path: Path
) -> None:
    push_image(behind, LAYER)
    proxy.fail("GET", "/blobs/", faulty.wrong_bytes, times=3)
    with pytest.raises(ImageMismatch, match="not what its digest says"):
        behind.read_blob(blob(LAYER))
    assert proxy.count("GET", "/blobs/") == 2
    layout = Layout(tmp_path)
    with pytest.raises(ImageMismatch, match="not what its digest says"):
        layout.copy_blob(behind, blob(LAYER))
    assert not layout.has_blob(blob(LAYER).digest)


@pytest.mark.parametrize("body", [LAYER[:-1], LAYER + b"x", b""])
def test_a_blob_of_another_size_is_refused(behind: Repository, proxy: FaultyProxy, body: bytes) -> None:
    push_image(behind, LAYER)
    proxy.fail("GET", "/blobs/", faulty.other_body(body), times=10)
    with pytest.raises(ImageMismatch, match="not what its digest says"):
        behind.read_blob(blob(LAYER))


def test_wrong_bytes_of_a_source_are_not_stored_in_a_registry(
    behind: Repository, network: Network, registry: Registry, proxy: FaultyProxy
) -> None:
    push_image(behind, LAYER)
    proxy.fail("GET", "/blobs/", faulty.wrong_bytes)
    target = network.repository(parse_reference(registry.repository("copy")))
    with pytest.raises(ImageMismatch):
        target.copy_blob(behind, blob(LAYER))
    assert not target.has_blob(blob(LAYER).digest)
    assert target.registry is not behind.registry


def test_a_changed_manifest_is_refused_by_digest_and_by_tag(behind: Repository, proxy: FaultyProxy) -> None:
    manifest = push_image(behind, LAYER)
    evil = image(LAYER, annotations={"evil": "yes"}).data
    proxy.fail("GET", "/manifests/", faulty.other_body(evil), times=4)
    for identifier in (manifest.digest, "v1"):
        with pytest.raises(ImageMismatch) as wrong:
            behind.get_manifest(identifier)
        assert wrong.value.expected == manifest.digest


@pytest.mark.parametrize(
    "body",
    [
        b"<html>sign in</html>",
        b"[]",
        canonical_json({"schemaVersion": 1, "fsLayers": []}),
        canonical_json(
            {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "manifests": [], "config": {}, "layers": []}
        ),
        canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}),
    ],
)
def test_what_is_no_manifest_of_its_type_is_refused(
    behind: Repository, proxy: FaultyProxy, body: bytes
) -> None:
    push_image(behind, LAYER)

    def act(exchange: faulty.Exchange) -> None:
        answer = exchange.ask()
        heads = [(k, v) for k, v in answer.headers if k.lower() != "docker-content-digest"]
        exchange.send(faulty.Answer(200, heads, body))

    proxy.fail("GET", "/manifests/", act)
    with pytest.raises(ImageMismatch):
        behind.get_manifest("v1")


def test_a_manifest_larger_than_4_mib_is_not_read(behind: Repository, proxy: FaultyProxy) -> None:
    push_image(behind, LAYER)
    proxy.fail("GET", "/manifests/", faulty.other_body(b" " * (5 << 20)))
    with pytest.raises(Unavailable, match="longer than"):
        behind.get_manifest("v1")


def test_a_blob_that_may_not_be_large_is_not_read(behind: Repository, proxy: FaultyProxy) -> None:
    push_image(behind, LAYER)
    with pytest.raises(ImageMismatch, match="larger than it may be"):
        behind.read_blob(blob(LAYER), limit=1000)
    assert proxy.count("GET", "/blobs/") == 0


def test_small_things_damaged_once_are_read_again(behind: Repository, proxy: FaultyProxy) -> None:
    manifest = push_image(behind, LAYER)
    proxy.fail("GET", "/blobs/", faulty.wrong_bytes)
    proxy.fail("GET", "/manifests/", faulty.other_body(image(annotations={"a": "b"}).data))
    assert behind.read_blob(blob(LAYER)) == LAYER
    assert behind.get_manifest(manifest.digest) == manifest


def test_wrong_data_is_never_uploaded(behind: Repository, proxy: FaultyProxy) -> None:
    with pytest.raises(ImageMismatch):
        behind.put_blob(blob(LAYER), LAYER[:-1] + b"x")
    assert proxy.seen == []


def test_a_tag_that_does_not_exist_names_the_nearest(direct: Repository) -> None:
    for tag in ("v0.5.19-cu130", "v0.5.20", "v0.5.20-cu130", "nightly"):
        push_image(direct, tag=tag)
    with pytest.raises(ImageMismatch, match="no such tag") as missing:
        direct.get_manifest("v0.5.20-cu13")
    assert missing.value.facts["nearest"][0] == "v0.5.20-cu130"  # type: ignore[index]
    assert "v0.5.20-cu130" in str(missing.value.hint)


def test_tags_are_read_from_every_page(behind: Repository, proxy: FaultyProxy) -> None:
    """docker-registry 2.8 has one page for all; others point to the next (distribution-spec, "Link")."""
    for number, tags in enumerate((["a", "b"], ["c", "not a tag", 1], None)):
        link = {"Link": f'</v2/next?page={number}>; rel="next"'} if tags else {}
        page = json.dumps({"name": "app", "tags": tags}).encode()
        proxy.fail("GET", "/tags/list|/v2/next", faulty.answer_with(200, page, **link))
    assert behind.list_tags() == ["a", "b", "c"]
    assert [seen.path for seen in proxy.seen[1:]] == ["/v2/next?page=0", "/v2/next?page=1"]


def test_an_endless_list_of_tags_ends(behind: Repository, proxy: FaultyProxy) -> None:
    page = json.dumps({"tags": ["a"]}).encode()
    proxy.fail("GET", "/v2/", faulty.answer_with(200, page, Link='</v2/more>; rel="next"'), times=1000)
    assert behind.list_tags() == ["a"] * len(proxy.seen)
    assert len(proxy.seen) == MOST_PAGES


def test_a_repository_that_does_not_exist_says_so(direct: Repository) -> None:
    with pytest.raises(ImageMismatch) as missing:
        direct.get_manifest("v1")
    assert "no tags" in str(missing.value.hint)


def test_a_missing_digest_and_a_missing_blob_say_what_it_means(direct: Repository) -> None:
    with pytest.raises(ImageMismatch, match="no image with this digest"):
        direct.get_manifest("sha256:" + "0" * 64)
    with pytest.raises(ImageMismatch, match="blob is not there"):
        direct.read_blob(Descriptor(OCI_LAYER, "sha256:" + "0" * 64, 3))
    assert direct.head_manifest("v1") is None


def test_a_manifest_without_its_blobs_is_refused_by_the_registry(
    direct: Repository, registry: Registry
) -> None:
    with pytest.raises(Unavailable, match="BLOB_UNKNOWN"):
        direct.put_manifest(image(LAYER), tag="v1")
    assert registry.tags("app") == []


@pytest.mark.parametrize("identifier", ["../tags/list", "v1?x=y", "", "a/b", "sha256:12"])
def test_what_is_neither_tag_nor_digest_is_never_asked_for(
    behind: Repository, proxy: FaultyProxy, identifier: str
) -> None:
    with pytest.raises(InvalidInput):
        behind.get_manifest(identifier)
    with pytest.raises(OverlayError):
        behind.read_blob(Descriptor(OCI_LAYER, identifier, 3))
    assert proxy.seen == []


# --- referrers -------------------------------------------------------------------------------------------


def attestation(subject: RawManifest, note: str, artifact_type: str = "application/x.note") -> RawManifest:
    return RawManifest(
        OCI_MANIFEST,
        canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "artifactType": artifact_type,
                "config": blob(b"{}", "application/vnd.oci.empty.v1+json").as_json(),
                "layers": [blob(b"{}", "application/vnd.oci.empty.v1+json").as_json()],
                "subject": subject.descriptor.as_json(),
                "annotations": {"note": note},
            }
        ),
    )


def test_referrers_are_found_without_a_referrers_api(direct: Repository, registry: Registry) -> None:
    subject = push_image(direct, LAYER)
    direct.put_blob(blob(b"{}"), b"{}")
    assert direct.list_referrers(subject.digest) == []
    first, second = attestation(subject, "1"), attestation(subject, "2", "application/x.other")
    for manifest in (first, second, first):
        direct.put_referrer(manifest)
    found = direct.list_referrers(subject.digest)
    assert [(one.digest, one.artifact_type, one.annotations) for one in found] == [
        (first.digest, "application/x.note", {"note": "1"}),
        (second.digest, "application/x.other", {"note": "2"}),
    ]
    assert direct.list_referrers(subject.digest, artifact_type="application/x.other") == found[1:]
    assert direct.get_manifest(first.digest) == first
    # As any other client finds them.
    data, media_type = registry.manifest("app", subject.digest.replace(":", "-"))
    assert media_type == OCI_INDEX
    assert [entry["digest"] for entry in json.loads(data)["manifests"]] == [first.digest, second.digest]


def test_a_registry_with_the_api_gets_no_fallback_tag(
    behind: Repository, registry: Registry, proxy: FaultyProxy
) -> None:
    subject = push_image(behind, LAYER)
    behind.put_blob(blob(b"{}"), b"{}")
    note = attestation(subject, "1")
    proxy.fail("PUT", "/manifests/sha256:", faulty.change_headers(OCI_Subject=subject.digest))
    own = behind.put_referrer(note)
    assert registry.tags("app") == ["v1"]
    pages = [[own.as_json()], [behind.head_manifest("v1").as_json()]]  # type: ignore[union-attr]
    for number, page in enumerate(pages):
        index = canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": page})
        headers = {"Content_Type": OCI_INDEX} | ({} if number else {"Link": '</v2/more>; rel="next"'})
        proxy.fail("GET", "/referrers/|/v2/more", faulty.answer_with(200, index, **headers))
    assert [one.digest for one in behind.list_referrers(subject.digest)] == [note.digest, subject.digest]


def test_referrers_written_at_the_same_time_are_all_listed(
    behind: Repository, direct: Repository, proxy: FaultyProxy
) -> None:
    subject = push_image(direct, LAYER)
    direct.put_blob(blob(b"{}"), b"{}")
    ours, theirs = attestation(subject, "ours"), attestation(subject, "theirs")
    tag = subject.digest.replace(":", "-")

    def overwritten(exchange: faulty.Exchange) -> None:
        """Somebody who read the list before we wrote writes it after."""
        answer = exchange.ask()
        own = direct.put_manifest(theirs)
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [own.as_json()]}
        direct.put_manifest(RawManifest(OCI_INDEX, canonical_json(index)), tag=tag)
        exchange.send(answer)

    proxy.fail("PUT", f"/manifests/{tag}", overwritten)
    behind.put_referrer(ours)
    assert {one.digest for one in direct.list_referrers(subject.digest)} == {ours.digest, theirs.digest}


def test_a_referrer_without_a_subject_and_a_tag_that_is_no_list_are_refused(direct: Repository) -> None:
    subject = push_image(direct, LAYER)
    with pytest.raises(ImageMismatch, match="no subject"):
        direct.put_referrer(subject)
    direct.put_blob(blob(b"{}"), b"{}")
    direct.put_manifest(attestation(subject, "alone"), tag=subject.digest.replace(":", "-"))
    with pytest.raises(ImageMismatch, match="not a list"):
        direct.list_referrers(subject.digest)


# --- redirects -------------------------------------------------------------------------------------------


def redirect_to(address: str, scheme: str = "http") -> faulty.Action:
    def act(exchange: faulty.Exchange) -> None:
        target = f"{scheme}://{address}{exchange.path}"
        exchange.send(faulty.Answer(307, [("Location", target)], b""))

    return act


def test_a_redirect_is_followed_without_telling_the_other_host_who_we_are(
    tmp_path: Path, warnings: list[str]
) -> None:
    with (
        registry_fixtures.password_registry(tmp_path / "r") as address,
        FaultyProxy(address) as proxy,
        FaultyProxy(address) as other,
    ):
        files = (login_file(tmp_path, proxy.address, USER, PASSWORD),)
        with Network(
            NetworkSettings(retry=SETTINGS.retry, login_files=files), warn=warnings.append
        ) as network:
            repository = network.repository(parse_reference(f"{proxy.address}/x"))
            push_image(repository, LAYER)
            proxy.fail("GET", "/blobs/", redirect_to(other.address))
            other.fail("GET", "/blobs/", faulty.answer_with(200, LAYER))
            assert repository.read_blob(blob(LAYER)) == LAYER
            (asked,) = other.requests("GET")
            assert "Authorization" not in asked.headers
            assert "Authorization" in proxy.requests("GET", "/blobs/")[0].headers


def test_a_redirect_loop_or_another_scheme_is_not_followed(behind: Repository, proxy: FaultyProxy) -> None:
    push_image(behind, LAYER)
    for action in (
        redirect_to(proxy.address),
        redirect_to("x", "ftp"),
        redirect_to("", "file"),
        faulty.answer_with(307),
    ):
        proxy.faults.clear()
        proxy.fail("GET", "/blobs/", action, times=100)
        with pytest.raises(Unavailable, match="not safe to follow"):
            behind.read_blob(blob(LAYER))


# --- who we are ------------------------------------------------------------------------------------------


def login_file(directory: Path, registry: str, user: str, password: str, **more: object) -> Path:
    """A Docker configuration file with this login."""
    path = directory / "config.json"
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {registry: {"auth": auth}}} | more))
    return path


def connect(warnings: list[str], *files: Path) -> Network:
    return Network(NetworkSettings(retry=SETTINGS.retry, login_files=files), warn=warnings.append)


def assert_no_secret(error: OverlayError, *secrets: str) -> None:
    text = "".join(traceback.format_exception(error)) + json.dumps(error.as_json()) + repr(error)
    for secret in (PASSWORD, IDENTITY_TOKEN, *secrets):
        assert secret not in text


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry_fixtures.password_registry(tmp_path_factory.mktemp("password") / "registry") as address:
        yield address


@pytest.fixture
def tokens(token_server: TokenServer) -> TokenServer:
    token_server.asked.clear()
    token_server.failures.clear()
    token_server.closed.clear()
    token_server.life = 300
    token_server.logins_are_worthless = False
    return token_server


@pytest.fixture(scope="module")
def token_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    with registry_fixtures.token_registry(tmp_path_factory.mktemp("token") / "registry") as server:
        alice = login_file(tmp_path_factory.mktemp("home"), server.registry, USER, PASSWORD)
        with connect([], alice) as network:
            push_image(network.repository(Reference(server.registry, "alice/app")), LAYER)
        publish(server)
        yield server


def publish(server: TokenServer) -> None:
    """Put an image where everybody may read."""
    server.open.add("public/app")
    with connect([]) as network:
        push_image(network.repository(Reference(server.registry, "public/app")), LAYER)
    server.open.clear()


def test_a_password_opens_a_private_registry(private: str, tmp_path: Path, warnings: list[str]) -> None:
    with connect(warnings, login_file(tmp_path, private, USER, PASSWORD)) as network:
        repository = network.repository(parse_reference(f"{private}/x"))
        manifest = push_image(repository, LAYER)
        assert repository.get_manifest("v1") == manifest
        network.registry(private).ping()
    assert warnings == []


def test_no_login_says_which_one_is_missing(private: str, warnings: list[str]) -> None:
    with connect(warnings) as network, pytest.raises(Unavailable, match="denied") as denied:
        network.repository(parse_reference(f"{private}/x")).get_manifest("v1")
    assert f"docker login {private}" in str(denied.value.hint)
    assert "no login" in str(denied.value.hint)


def test_a_wrong_login_says_which_one_it_is(private: str, tmp_path: Path, warnings: list[str]) -> None:
    path = login_file(tmp_path, private, USER, "stale-secret")
    with connect(warnings, path) as network:
        repository = network.repository(parse_reference(f"{private}/x"))
        doings: list[Callable[[], object]] = [
            lambda: repository.get_manifest("v1"),
            lambda: push_image(repository, LAYER),
        ]
        for doing in doings:
            with pytest.raises(Unavailable) as denied:
                doing()
            assert f"{USER} from {path}" in str(denied.value.hint)
            assert_no_secret(denied.value, "stale-secret", base64.b64encode(b"alice:stale-secret").decode())


def test_a_login_of_another_registry_is_not_used(private: str, tmp_path: Path, warnings: list[str]) -> None:
    path = login_file(tmp_path, "elsewhere.example.org", USER, PASSWORD)
    with connect(warnings, path) as network, pytest.raises(Unavailable) as denied:
        network.repository(parse_reference(f"{private}/x")).get_manifest("v1")
    assert "no login" in str(denied.value.hint)


def helper(directory: Path, answer: str, status: int = 0) -> None:
    path = directory / "docker-credential-test"
    path.write_text(f"#!/bin/sh\nread host\ncat <<'END'\n{answer}\nEND\nexit {status}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("key", ["credHelpers", "credsStore"])
def test_a_credential_helper_is_asked(
    private: str, tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    helper(tmp_path, json.dumps({"Username": USER, "Secret": PASSWORD}))
    config = (
        {"credHelpers": {private: "test"}}
        if key == "credHelpers"
        else {"credsStore": "test", "auths": {private: {}}}
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with connect(warnings, path) as network:
        network.registry(private).ping()
    assert warnings == []


def test_a_credential_helper_that_fails_is_named(
    private: str,
    tmp_path: Path,
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"credHelpers": {private: "test"}}))
    with connect(warnings, path) as network, pytest.raises(Unavailable):
        network.registry(private).ping()
    assert "docker-credential-test" in warnings[0]
    assert "not installed" in warnings[0]
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for answer, status in (("credentials not found in native keychain", 1), ("not JSON", 0), ("{}", 0)):
        helper(tmp_path, answer, status)
        warnings.clear()
        with connect(warnings, path) as network, pytest.raises(Unavailable) as failed:
            network.registry(private).ping()
        told = " ".join([*warnings, str(failed.value.hint)])
        assert "docker-credential-test" in told or f"docker login {private}" in told
    assert capfd.readouterr() == ("", "")


def test_a_damaged_login_file_is_named(private: str, tmp_path: Path, warnings: list[str]) -> None:
    path = tmp_path / "config.json"
    for content in ("{", json.dumps({"auths": {private: {"auth": "%%%"}}})):
        path.write_text(content)
        with connect(warnings, path) as network, pytest.raises(Unavailable) as failed:
            network.registry(private).ping()
        assert str(path) in str(failed.value.where)


def test_a_public_image_needs_no_login(tokens: TokenServer, warnings: list[str]) -> None:
    with connect(warnings) as network:
        repository = network.repository(Reference(tokens.registry, "public/app"))
        repository.get_manifest("v1")
        assert repository.read_blob(blob(LAYER)) == LAYER
    assert [(asked.scopes, asked.login) for asked in tokens.asked] == [
        (("repository:public/app:pull",), None)
    ]
    assert warnings == []


def test_a_stale_login_does_not_hide_a_public_image(
    tokens: TokenServer, tmp_path: Path, warnings: list[str]
) -> None:
    path = login_file(tmp_path, tokens.registry, USER, "stale-secret")
    with connect(warnings, path) as network:
        repository = network.repository(Reference(tokens.registry, "public/app"))
        assert repository.read_blob(blob(LAYER)) == LAYER
        repository.get_manifest("v1")
    (warning,) = warnings
    assert f"refused the login {USER} from {path}" in warning
    assert "stale-secret" not in warning


@pytest.mark.parametrize("attempt", range(5))
def test_threads_that_meet_a_registry_first_find_out_once_who_they_are(
    attempt: int, tokens: TokenServer, tmp_path: Path, warnings: list[str]
) -> None:
    """The login's token is refused, and nobody's is not: each thread could try both, and undo the others."""
    tokens.logins_are_worthless = True
    path = login_file(tmp_path, tokens.registry, USER, PASSWORD)
    read: list[bytes] = []
    with connect(warnings, path) as network:
        repository = network.repository(Reference(tokens.registry, "public/app"))
        run_parallel([lambda check: read.append(repository.read_blob(blob(LAYER)))] * 8, 8)
    assert read == [LAYER] * 8
    assert [asked.login for asked in tokens.asked] == [USER, None]
    assert len(warnings) == 1


def test_a_stale_login_and_a_private_image_say_which_login(
    tokens: TokenServer, tmp_path: Path, warnings: list[str]
) -> None:
    path = login_file(tmp_path, tokens.registry, USER, "stale-secret")
    with connect(warnings, path) as network:
        repository = network.repository(Reference(tokens.registry, "alice/app"))
        doings: list[Callable[[], object]] = [
            lambda: repository.get_manifest("v1"),
            lambda: push_image(repository, LAYER),
        ]
        for doing in doings:
            with pytest.raises(Unavailable, match="denied") as denied:
                doing()
            assert f"{USER} from {path}" in str(denied.value.hint)
            assert_no_secret(denied.value, "stale-secret")
    assert warnings == []


def test_one_token_a_scope_serves_a_whole_build(
    tokens: TokenServer, tmp_path: Path, warnings: list[str]
) -> None:
    path = login_file(tmp_path, tokens.registry, USER, PASSWORD)
    with connect(warnings, path) as network:
        source = network.repository(Reference(tokens.registry, "public/app"))
        target = network.repository(Reference(tokens.registry, f"alice/out-{os.urandom(4).hex()}"))
        source.get_manifest("v1")
        push_image(target, b"one", b"two", b"three")
        target.copy_blob(source, blob(LAYER))
        target.put_manifest(image(LAYER), tag="v2")
        assert target.read_blob(blob(LAYER)) == LAYER
    scopes = [asked.scopes for asked in tokens.asked]
    pull, write = f"repository:{target.path}:pull", f"repository:{target.path}:pull,push"
    public = "repository:public/app:pull"
    # The mount's token also lets the neighbour be read.
    assert scopes == [(public,), (write,), tuple(sorted((write, public))), (pull,)]
    assert {asked.login for asked in tokens.asked} == {USER}
    assert warnings == []


def test_a_mount_that_is_not_allowed_becomes_a_copy(
    tokens: TokenServer, tmp_path: Path, warnings: list[str]
) -> None:
    """The token server leaves the neighbour out of the token, and the registry then opens an upload."""
    path = login_file(tmp_path, tokens.registry, USER, PASSWORD)
    with connect(warnings, path) as network:
        source = network.repository(Reference(tokens.registry, "public/app"))
        source.get_manifest("v1")
        tokens.closed.add("public/app")  # what was given out before still opens it
        target = network.repository(Reference(tokens.registry, f"alice/out-{os.urandom(4).hex()}"))
        target.copy_blob(source, blob(LAYER))
        assert target.read_blob(blob(LAYER)) == LAYER
    assert any(
        len(asked.scopes) == 2 and asked.granted == (f"{target.path}:pull,push",) for asked in tokens.asked
    )


def test_a_token_that_ran_out_is_renewed(tokens: TokenServer, tmp_path: Path, warnings: list[str]) -> None:
    with connect(warnings, login_file(tmp_path, tokens.registry, USER, PASSWORD)) as network:
        repository = network.repository(Reference(tokens.registry, "alice/app"))
        tokens.life = -120  # registries allow a minute of leeway; this one is over it
        with pytest.raises(Unavailable):
            repository.get_manifest("v1")
        tokens.life = 11  # ours for one second
        repository.get_manifest("v1")
        before = len(tokens.asked)
        repository.get_manifest("v1")
        assert len(tokens.asked) == before
        time.sleep(1.1)
        repository.get_manifest("v1")
        assert len(tokens.asked) == before + 1
    assert warnings == []


def test_an_identity_token_is_exchanged(tokens: TokenServer, tmp_path: Path, warnings: list[str]) -> None:
    path = login_file(
        tmp_path, tokens.registry, USER, "", auths={tokens.registry: {"identitytoken": IDENTITY_TOKEN}}
    )
    with connect(warnings, path) as network:
        network.repository(Reference(tokens.registry, "alice/app")).get_manifest("v1")
    assert {asked.method for asked in tokens.asked} == {"POST"}
    path.write_text(json.dumps({"auths": {tokens.registry: {"identitytoken": "stale"}}}))
    with connect(warnings, path) as network:
        network.repository(Reference(tokens.registry, "public/app")).get_manifest("v1")
    assert "refused the login" in warnings[0]


def test_a_token_server_that_fails_for_a_while_is_asked_again(
    tokens: TokenServer, warnings: list[str]
) -> None:
    with connect(warnings) as network:
        repository = network.repository(Reference(tokens.registry, "public/app"))
        tokens.failures = [429, 500, 503]
        repository.get_manifest("v1")
    with connect(warnings) as network:
        tokens.failures = [503] * 100
        with pytest.raises(Unavailable, match="503"):
            network.repository(Reference(tokens.registry, "public/app")).get_manifest("v1")
    assert len(tokens.failures) == 100 - SETTINGS.retry.attempts


# --- TLS -------------------------------------------------------------------------------------------------


def test_tls_is_the_rule_and_only_trusted(
    tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # 0.0.0.0 reaches this machine too, but is not a loopback address: nothing makes it an exception.
    certificate, key = registry_fixtures.make_certificate(tmp_path, "tls", address="0.0.0.0")
    tls = {"tls": {"certificate": str(certificate), "key": str(key)}}
    with registry_fixtures.running_registry(tmp_path / "registry", http=tls) as address:
        name = address.replace("127.0.0.1", "0.0.0.0")
        started = time.monotonic()
        with (
            connect(warnings) as network,
            pytest.raises(Unavailable, match="no secure connection") as refused,
        ):
            network.registry(name).ping()
        assert time.monotonic() - started < 2
        assert "certificate" in str(refused.value.found)
        assert "SSL_CERT_FILE" in str(refused.value.hint)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with connect(warnings) as network:
            manifest = push_image(network.repository(parse_reference(f"{name}/x")), LAYER)
            assert network.repository(parse_reference(f"{name}/x")).get_manifest("v1") == manifest


def test_plain_http_beyond_loopback_has_to_be_asked_for(registry: Registry, warnings: list[str]) -> None:
    name = registry.address.replace("127.0.0.1", "0.0.0.0")
    with connect(warnings) as network, pytest.raises(Unavailable):
        network.registry(name).ping()
    settings = NetworkSettings(retry=SETTINGS.retry, insecure=frozenset({name}))
    with Network(settings, warn=warnings.append) as network:
        network.registry(name).ping()
