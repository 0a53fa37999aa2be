"""A registry that fails now and then is built on all the same; one that goes on failing ends in exit 8."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Overlay
from tests.integration.conftest import Registry
from tests.integration.faulty import (
    Action,
    FaultyProxy,
    answer_with,
    lose_answer,
    reset_answer,
    reset_at_once,
    reset_request,
    truncate_answer,
    wrong_bytes,
)
from tests.integration.judge import OVERLAY

EVERY_TIME = 1_000_000
BLOB = r"/blobs/sha256:"
UPLOAD = r"/blobs/uploads/"


@pytest.fixture
def build(
    prepared: Overlay,
    proxy: FaultyProxy,
    registry: Registry,
    small_base_pushed: str,
    wheel: Callable[[str], Path],
) -> Callable[[], tuple[int, str]]:
    """Build with everything through the proxy; exit code, and what was said."""
    patient = prepared.with_environment(OVERLAY_RETRY_WAIT="0.02")
    base = small_base_pushed.replace(registry.address, proxy.address)
    target = f"{proxy.address}/{registry.space}/out:new"

    def run() -> tuple[int, str]:
        done = patient("build", OVERLAY, "--base", base, "--wheel", wheel("0.5.20"), "--push", target)
        return done.code, done.out + done.err

    return run


# What goes wrong, how often in a row, and where.
PASSING: dict[str, tuple[str, str, Action, int]] = {
    "429 that says when, for a manifest": ("GET", "/manifests/", answer_with(429, Retry_After="1"), 1),
    "429 that does not, for a manifest": ("GET", "/manifests/", answer_with(429), 3),
    "429 for a layer": ("GET", BLOB, answer_with(429, b"slow down"), 3),
    "500 for the base's manifest": ("GET", "/manifests/", answer_with(500, b"oops"), 2),
    "503 for a layer": ("GET", BLOB, answer_with(503), 2),
    "no connection for a layer": ("GET", BLOB, reset_at_once, 2),
    "a layer cut off by a reset": ("GET", BLOB, reset_answer(300_000), 2),
    "a layer cut off in order": ("GET", BLOB, truncate_answer(300_000), 2),
    "a layer cut off at its start": ("GET", BLOB, truncate_answer(0), 2),
    "a layer with a wrong byte, once": ("GET", BLOB, wrong_bytes, 1),
    "500 for the start of an upload": ("POST", UPLOAD, answer_with(500), 2),
    "429 for a mount": ("POST", r"mount=", answer_with(429, Retry_After="0"), 2),
    "a reset in the middle of an upload": ("(PATCH|PUT)", UPLOAD, reset_request(100_000), 2),
    "502 for an upload": ("(PATCH|PUT)", UPLOAD, answer_with(502), 2),
    "the answer to an upload lost": ("PUT", UPLOAD, lose_answer, 1),
    "500 for the new manifest": ("PUT", "/manifests/", answer_with(500), 2),
    "the answer to the new manifest lost": ("PUT", "/manifests/", lose_answer, 1),
}


@pytest.mark.parametrize("what", PASSING)
def test_a_fault_that_passes_is_retried_and_the_build_succeeds(
    what: str, build: Callable[[], tuple[int, str]], proxy: FaultyProxy, registry: Registry
) -> None:
    methods, path, action, times = PASSING[what]
    for method in re.findall(r"\w+", methods):
        proxy.fail(method, path, action, times=times)
    code, said = build()
    assert code == 0, said
    assert any(seen.faulty for seen in proxy.seen), "the fault was never met"
    assert registry.tags("out") == ["new"]


LASTING: dict[str, tuple[str, str, Action]] = {
    "429 for manifests": ("GET", "/manifests/", answer_with(429)),
    "429 that asks for an hour": ("GET", "/manifests/", answer_with(429, Retry_After="3600")),
    "500 for layers": ("GET", BLOB, answer_with(500)),
    "resets before anything came": ("GET", BLOB, reset_at_once),
    "layers cut off at their start": ("GET", BLOB, truncate_answer(0)),
    "500 for uploads": ("POST", UPLOAD, answer_with(500)),
    "resets at the start of uploads": ("(PATCH|PUT)", UPLOAD, reset_at_once),
    "500 for the new manifest": ("PUT", "/manifests/", answer_with(500)),
}


@pytest.mark.parametrize("what", LASTING)
def test_a_fault_that_lasts_ends_in_exit_8_with_nothing_tagged(
    what: str, build: Callable[[], tuple[int, str]], proxy: FaultyProxy, registry: Registry
) -> None:
    methods, path, action = LASTING[what]
    for method in re.findall(r"\w+", methods):
        proxy.fail(method, path, action, times=EVERY_TIME)
    code, said = build()
    assert code == 8, said
    assert "again" in said, "it does not say what to do"
    assert len(proxy.seen) < 100, "the retries are not bounded"
    assert registry.tags("out") == []


def test_bytes_that_are_always_wrong_are_refused_and_never_cached(
    build: Callable[[], tuple[int, str]], proxy: FaultyProxy, registry: Registry
) -> None:
    proxy.fail("GET", BLOB, wrong_bytes, times=EVERY_TIME)
    code, said = build()
    assert code in (5, 8), said
    assert "sha256:" in said
    assert registry.tags("out") == []
    proxy.faults.clear()
    code, said = build()
    assert code == 0, said


def test_after_a_fault_the_same_command_gives_the_digest_of_an_undisturbed_build(
    build: Callable[[], tuple[int, str]],
    proxy: FaultyProxy,
    registry: Registry,
    prepared: Overlay,
    wheel: Callable[[str], Path],
) -> None:
    proxy.fail("PUT", "/manifests/", answer_with(500), times=EVERY_TIME)
    assert build()[0] == 8
    proxy.faults.clear()
    assert build()[0] == 0
    disturbed = registry.manifest("out", "new")[0]
    # The address of the registry is in the record, so the calm build goes through the proxy too.
    for lock in (prepared.directory / "overlays").glob("*.lock"):
        lock.unlink()
    assert build()[0] == 0
    assert registry.manifest("out", "new")[0] == disturbed
