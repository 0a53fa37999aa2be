"""A build of the same inputs goes to another repository without being baked or sent again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Overlay, Run
from tests.integration.conftest import Registry
from tests.integration.faulty import Action, FaultyProxy, answer_with, reset_at_once
from tests.integration.judge import OVERLAY

EVERY_TIME = 1_000_000


@pytest.fixture
def push(
    prepared: Overlay, proxy: FaultyProxy, registry: Registry, small_base_pushed: str
) -> Callable[[str], Run]:
    """Build with everything through the proxy, and push to a repository by its name."""
    patient = prepared.with_environment(OVERLAY_RETRY_WAIT="0.02")
    base = small_base_pushed.replace(registry.address, proxy.address)

    def run(name: str) -> Run:
        target = f"{proxy.address}/{registry.space}/{name}:new"
        return patient("build", OVERLAY, "--base", base, "--push", target, "--json")

    return run


def lock_of(overlay: Overlay) -> Path:
    return overlay.directory / "overlays" / f"{OVERLAY}.lock"


def test_nothing_of_the_base_is_asked_for_and_no_blob_is_sent(
    push: Callable[[str], Run], proxy: FaultyProxy, registry: Registry
) -> None:
    first = push("first").check()
    proxy.seen.clear()
    second = push("second").check()
    assert second.json["digest"] == first.json["digest"]
    assert proxy.count("GET", "/blobs/") == 0
    assert proxy.count("GET", f"/{registry.space}/base") == 0
    assert proxy.count("POST", "mount=sha256") > 3
    assert proxy.count("PUT", "/blobs/uploads/") == 1, "all but the empty config of attestations is mounted"
    manifest = json.loads(registry.manifest("second", "new")[0])
    for part in (manifest["config"], *manifest["layers"]):
        assert len(registry.blob("second", part["digest"])) == part["size"]


def test_attestations_are_attached_there_too(
    push: Callable[[str], Run], prepared: Overlay, proxy: FaultyProxy, registry: Registry
) -> None:
    push("first").check()
    digest = push("second").check().json["digest"]
    listed = [
        prepared("attest", "--list", f"{registry.repository(name)}@{digest}", "--json").check().json
        for name in ("first", "second")
    ]
    assert listed[0] == listed[1]
    assert len(str(listed[0])) > 100


@pytest.mark.parametrize(
    "references",
    [
        pytest.param(["%s/gone:new"], id="a repository that is not there"),
        pytest.param(["not a reference", 7, "oci:x", "%s/first:new"], id="no references"),
        pytest.param(["elsewhere.example/first:new"], id="another registry"),
        pytest.param({"first": 1}, id="no list"),
    ],
)
def test_a_lock_that_lies_about_where_it_went(
    references: object,
    push: Callable[[str], Run],
    prepared: Overlay,
    proxy: FaultyProxy,
    registry: Registry,
) -> None:
    digest = push("first").check().json["digest"]
    lock = json.loads(lock_of(prepared).read_bytes())
    space = f"{proxy.address}/{registry.space}"
    if isinstance(references, list):
        references = [text.replace("%s", space) if isinstance(text, str) else text for text in references]
    for record in lock["images"].values():
        record["references"] = references
    lock_of(prepared).write_text(json.dumps(lock))
    assert push("second").check().json["digest"] == digest
    manifest = json.loads(registry.manifest("second", "new")[0])
    assert registry.blob("second", manifest["layers"][-1]["digest"])


@pytest.mark.parametrize("action", [answer_with(status) for status in (403, 404, 405, 409, 500)])
def test_a_hint_that_does_not_help_is_no_failure(
    action: Action, push: Callable[[str], Run], proxy: FaultyProxy, registry: Registry
) -> None:
    """The repository of which the lock says that the image was pushed there gives nothing, or fails."""
    digest = push("first").check().json["digest"]
    proxy.seen.clear()
    proxy.fail("POST", f"mount=.*from={registry.space}%2Ffirst", action, times=EVERY_TIME)
    assert push("second").check().json["digest"] == digest
    assert 0 < sum(seen.faulty for seen in proxy.seen) < 8


def test_a_registry_that_does_not_mount(push: Callable[[str], Run], proxy: FaultyProxy) -> None:
    digest = push("first").check().json["digest"]
    proxy.fail("POST", "mount=", answer_with(405), times=EVERY_TIME)
    assert push("second").check().json["digest"] == digest


def test_a_base_that_cannot_be_read_any_more_ends_it(
    push: Callable[[str], Run], proxy: FaultyProxy, registry: Registry
) -> None:
    push("first").check()
    proxy.fail("POST", "mount=", answer_with(405), times=EVERY_TIME)
    proxy.fail("GET", "/blobs/", reset_at_once, times=EVERY_TIME)
    run = push("second").check(8)
    assert run.json["error"]["hint"]
    assert registry.tags("second") == []
