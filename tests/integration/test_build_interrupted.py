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
from tests.integration.conftest import Registry, with_answers, with_sources
from tests.integration.judge import OVERLAY


@pytest.fixture
def command(small_base_pushed: str, wheel: Callable[[str], Path]) -> list[object]:
    return ["build", OVERLAY, "--base", small_base_pushed, "--wheel", wheel("0.5.20"), "--json", "--push"]


# Without them a build spends most of its time on the sources, so those are killed apart from the rest.
@pytest.mark.parametrize(
    ("start", "kills"), [("with what the probes said", 3), ("with the sources cached", 5)]
)
def test_killed_at_any_moment_the_next_build_gives_the_same_digest(
    start: str,
    kills: int,
    command: list[object],
    registry: Registry,
    sources_cache: Path,
    tmp_path: Path,
) -> None:
    is_cached = start == "with the sources"

    def fresh(name: str) -> Overlay:
        made = Overlay.prepare(tmp_path / name)
        return (with_sources if is_cached else with_answers)(made, sources_cache)

    if is_cached:  # then no wheel is needed, and the finished build is kept in the cache
        at = command.index("--wheel")
        command = command[:at] + command[at + 2 :]
    calm = fresh("calm")
    begun = time.monotonic()
    expected = calm(*command, registry.repository("calm") + ":new").check().json["digest"]
    whole = time.monotonic() - begun
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # shown when the test fails
    chance = random.Random(seed)
    for number in range(kills):
        troubled, moment = fresh(f"troubled-{number}"), chance.uniform(0.05, whole)
        target = registry.repository(f"troubled-{number}") + ":new"
        kill_after(troubled, moment, *command, target)
        assert registry.tags(f"troubled-{number}") in ([], ["new"])
        spoil_temporaries(troubled)
        for _ in range(2):
            again = troubled(*command, target).check().json["digest"]
            assert again == expected, f"killed after {moment:.3f} s of {whole:.3f} s"
        assert registry.tags(f"troubled-{number}") == ["new"]


def test_killed_again_and_again_in_one_cache(
    prepared: Overlay, sources_cache: Path, command: list[object], registry: Registry, tmp_path: Path
) -> None:
    overlay = with_answers(Overlay.prepare(tmp_path / "troubled"), sources_cache)
    expected = prepared(*command, registry.repository("calm") + ":new").check().json["digest"]
    target = registry.repository("troubled") + ":new"
    for moment in (0.2, 0.4, 0.8, 1.6, 0.3, 0.6):
        kill_after(overlay, moment, *command, target)
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
    names = ("OVERLAY_CACHE", "XDG_CACHE_HOME")
    caches = [Path(overlay.environment[name]) for name in names if name in overlay.environment]
    places = (*caches, overlay.directory / "overlays")
    for place in places:
        for path in place.rglob("*"):
            temporary = any(part.startswith((".", "tmp")) for part in path.relative_to(place).parts)
            if temporary and path.is_file() and not path.name.endswith(".lock"):
                path.chmod(0o644)
                path.write_bytes(b"garbage")


def test_two_builds_at_once_share_one_cache(
    overlay: Overlay, sources_cache: Path, command: list[object], registry: Registry
) -> None:
    overlay = with_answers(overlay, sources_cache)
    targets = [registry.repository(name) + ":new" for name in ("one", "two", "three")]
    processes = [overlay.start(*command, target) for target in targets]
    finished = [(process, *process.communicate(timeout=300)) for process in processes]
    for process, out, err in finished:
        assert process.returncode == 0, (out + err).decode()
    assert len({registry.manifest(name, "new")[0] for name in ("one", "two", "three")}) == 1
