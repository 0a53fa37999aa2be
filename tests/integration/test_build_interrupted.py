"""A build that is killed leaves nothing that a later one is misled by; two at once share one cache."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Overlay
from tests.integration.conftest import Registry
from tests.integration.judge import OVERLAY

KILLS = 12


@pytest.fixture
def command(small_base_pushed: str, wheel: Callable[[str], Path]) -> list[object]:
    return ["build", OVERLAY, "--base", small_base_pushed, "--wheel", wheel("0.5.20"), "--json", "--push"]


def test_killed_at_any_moment_the_next_build_gives_the_same_digest(
    command: list[object], registry: Registry, tmp_path: Path
) -> None:
    calm = Overlay.prepare(tmp_path / "calm")
    start = time.monotonic()
    expected = calm(*command, registry.repository("calm") + ":new").check().json["digest"]
    whole = time.monotonic() - start
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # shown when the test fails
    moments = sorted(random.Random(seed).uniform(0.05, whole) for _ in range(KILLS))
    for number, moment in enumerate(moments):
        troubled = Overlay.prepare(tmp_path / f"troubled-{number}")
        target = registry.repository(f"troubled-{number}") + ":new"
        kill_after(troubled, moment, *command, target)
        assert registry.tags(f"troubled-{number}") in ([], ["new"])
        spoil_temporaries(troubled)
        again = troubled(*command, target).check().json["digest"]
        assert again == expected, f"killed after {moment:.3f} s of {whole:.3f} s"
        assert registry.manifest(f"troubled-{number}", "new")[0]


def test_killed_again_and_again_in_one_cache(
    overlay: Overlay, command: list[object], registry: Registry, tmp_path: Path
) -> None:
    calm = Overlay.prepare(tmp_path / "calm")
    expected = calm(*command, registry.repository("calm") + ":new").check().json["digest"]
    target = registry.repository("troubled") + ":new"
    for number in range(KILLS):
        kill_after(overlay, 0.1 * (number + 1), *command, target)
    spoil_temporaries(overlay)
    assert overlay(*command, target).check().json["digest"] == expected


def kill_after(overlay: Overlay, seconds: float, *command: object) -> None:
    """``kill -9`` of the build and all that it started."""
    process = overlay.start(*command, start_new_session=True)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def spoil_temporaries(overlay: Overlay) -> None:
    """Garbage in whatever a killed build left under a temporary name: nothing may ever read it."""
    places = (Path(overlay.environment["XDG_CACHE_HOME"]), overlay.directory / "overlays")
    for place in places:
        for path in place.rglob("*"):
            temporary = any(part.startswith((".", "tmp")) for part in path.relative_to(place).parts)
            if temporary and path.is_file() and not path.name.endswith(".lock"):
                path.chmod(0o644)
                path.write_bytes(b"garbage")


def test_two_builds_at_once_share_one_cache(
    overlay: Overlay, command: list[object], registry: Registry
) -> None:
    targets = [registry.repository(name) + ":new" for name in ("one", "two", "three")]
    processes = [overlay.start(*command, target) for target in targets]
    finished = [(process, *process.communicate(timeout=300)) for process in processes]
    for process, out, err in finished:
        assert process.returncode == 0, (out + err).decode()
    assert len({registry.manifest(name, "new")[0] for name in ("one", "two", "three")}) == 1
