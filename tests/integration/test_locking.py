"""One process at a time works in a place, and what several change at once is all there afterwards."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from builder.errors import Unavailable
from builder.locking import exclusive
from tests.projects.series import SeriesProject, workshop

__all__ = ["workshop"]

NEW_FILE = (
    "diff --git a/python/sglang/{0}.py b/python/sglang/{0}.py\nnew file mode 100644\n--- /dev/null\n"
    "+++ b/python/sglang/{0}.py\n@@ -0,0 +1 @@\n+{0} = 1\n"
)


@pytest.mark.parametrize("is_directory", [True, False])
def test_another_process_that_holds_a_place_is_named(tmp_path: Path, is_directory: bool) -> None:
    place = tmp_path if is_directory else tmp_path / "lock"
    place.exists() or place.touch()
    said: list[str] = []
    other = os.open(place, os.O_RDONLY)  # as another process would have it
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(Unavailable) as held, exclusive(place, timeout=1.2, waiting=said.append):
        pass
    assert held.value.where == str(place)
    assert said == [f"waiting for another process that works in {place}"]
    os.close(other)
    with exclusive(place, timeout=1.0):
        pass


def test_a_thread_may_take_its_place_again_and_another_thread_may_not(tmp_path: Path) -> None:
    order: list[str] = []

    def late() -> None:
        with exclusive(tmp_path):
            order.append("late")

    thread = threading.Thread(target=late)
    with exclusive(tmp_path):
        with exclusive(tmp_path):
            thread.start()
            thread.join(0.1)
        thread.join(0.1)
        order.append("first")
    thread.join(10)
    assert order == ["first", "late"]


def test_patches_that_are_imported_at_once_are_all_in_the_series(workshop: SeriesProject) -> None:
    names = [f"new{number}" for number in range(4)]
    environment = os.environ | {
        "OVERLAY_ROOT": str(workshop.root),
        "OVERLAY_CACHE": str(workshop.cache),
        "XDG_STATE_HOME": str(workshop.directory / "state"),
        "HOME": str(workshop.directory / "home"),
    }
    running = []
    for name in names:
        patch = workshop.directory / f"{name}.patch"
        patch.write_text(NEW_FILE.format(name))
        command = [sys.executable, "-m", "builder", "patch", "import", "demo", str(patch)]
        running.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    ended = [(process.communicate(), process.returncode) for process in running]
    assert [code for _, code in ended] == [0] * len(names), ended
    assert sorted(workshop.names()) == names
    assert all(workshop.path(name).is_file() for name in names)
