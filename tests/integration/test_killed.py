"""Whatever a command was doing when it was killed: after the next one nothing unfinished is left anywhere."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.projects.image import ImageProject


@pytest.mark.parametrize("point", [0.2, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("command", ["build", "edit"])
def test_nothing_is_left_of_a_killed_command_after_the_next(
    command: str, point: float, tmp_path: Path
) -> None:
    """Killed with all of its processes, with a cold cache, at a point from its start (0) to its end (1)."""
    for name in ("first", "world", "temporary"):
        (tmp_path / name).mkdir()
    first, world = ImageProject.create_cold(tmp_path / "first"), ImageProject.create_cold(tmp_path / "world")
    start = time.monotonic()
    first.overlay(*words(first, command)).check()
    lasted = time.monotonic() - start

    places = {"TMPDIR": str(tmp_path / "temporary"), "XDG_STATE_HOME": str(tmp_path / "state")}
    overlay = world.overlay.with_environment(**places)
    killed = words(world, command)
    process = overlay.start(*killed, start_new_session=True)
    time.sleep(lasted * point)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    overlay(*killed).check()
    assert [path for path in tmp_path.rglob("*") if is_unfinished(path)] == []


def words(world: ImageProject, command: str) -> tuple[object, ...]:
    return world.build(world.base().reference) if command == "build" else ("patch", "edit", "one")


def is_unfinished(path: Path) -> bool:
    """Whether it is a file or directory under one of our temporary names."""
    is_part = re.fullmatch(r"\..+\.[0-9a-f]{16}", path.name) is not None
    return is_part or path.name.startswith(".partial-") or path.name.endswith((".held", ".new", ".tmp"))
