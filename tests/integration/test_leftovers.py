"""What a killed command left is swept by the next one; what is in use, or is not ours, stays."""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import builder.temporary
from builder.project.project import Root
from builder.project.transaction import finish
from builder.project.whole_file import sweep_parts, write_whole
from builder.publish.buildx import write_bake_file
from builder.temporary import sweep_directories, sweep_files, temporary_directory
from tests.projects.image import NAME, ImageProject

HELD = "x = open(sys.argv[1], 'xb'); import fcntl; fcntl.flock(x, fcntl.LOCK_EX)"


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder.temporary, "_swept", set())


def killed(script: str, *arguments: object) -> None:
    """A process that runs a script up to where it prints a line, and is killed there."""
    words = [sys.executable, "-c", f"import sys, time\n{script}\nprint(flush=True); time.sleep(60)"]
    with subprocess.Popen([*words, *map(str, arguments)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)


def test_what_a_killed_writer_left_goes_with_the_next_write_of_the_file(tmp_path: Path) -> None:
    left, other = tmp_path / f".demo.yaml.{'0' * 16}", tmp_path / f".other.yaml.{'0' * 16}"
    for path in (left, other):
        killed(HELD, path)
    ours = [tmp_path / ".demo.yaml.swp", tmp_path / f".demo.yaml.{'0' * 15}"]
    for path in ours:
        path.write_bytes(b"")
    write_whole(tmp_path / "demo.yaml", b"x")
    assert {path.name for path in tmp_path.iterdir()} == {
        "demo.yaml", other.name, *(path.name for path in ours)
    }  # fmt: skip
    sweep_parts(tmp_path)
    assert not other.exists()
    assert all(path.exists() for path in ours)


def test_a_file_that_is_being_written_is_not_swept(tmp_path: Path) -> None:
    path = tmp_path / f".demo.yaml.{'0' * 16}"
    with path.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sweep_files(tmp_path, re.compile(r"\."))
        assert path.exists()
    sweep_files(tmp_path, re.compile(r"\."))
    assert not path.exists()


def test_directories_are_swept_when_nobody_holds_them(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from builder.temporary import temporary_directory as t\n"
        "kept = t('judging', Path(sys.argv[1])); (kept.__enter__() / 'x').write_text('')"
    )
    killed(script, tmp_path)
    (left,) = tmp_path.iterdir()
    foreign = [
        tmp_path / name for name in ("overlay-notes", "overlay-judging-abcdefgh", "overlayfs-12345678.held")
    ]
    for path in foreign:
        path.mkdir()
    with temporary_directory("render", tmp_path) as first:
        assert not left.exists()
        builder.temporary._swept.clear()
        sweep_directories(tmp_path)
        assert first.exists()
    assert sorted(tmp_path.iterdir()) == sorted(foreign)


def test_an_undecided_transaction_goes(tmp_path: Path) -> None:
    (tmp_path / ".overlay-transaction.new").mkdir()
    (tmp_path / ".overlay-transaction.new" / "0").write_bytes(b"x")
    finish(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_commands_sweep_what_stands_beside_specs_and_patches(tmp_path: Path) -> None:
    world = ImageProject.create_cold(tmp_path)
    temporary = tmp_path / "temporary"
    (temporary / "overlay-render-abcdefgh.held").mkdir(parents=True)
    left = [
        world.root / "overlays" / f".demo.yaml.{'a' * 16}",
        world.root / "patches/one" / f".p0.patch.{'a' * 16}",
    ]
    for path in left:
        path.write_bytes(b"x")
    (world.root / ".overlay-transaction.new").mkdir()
    world.overlay.with_environment(TMPDIR=str(temporary))("patch", "export", "one").check()
    assert not [path for path in left if path.exists()]
    assert not (world.root / ".overlay-transaction.new").exists()
    assert list(temporary.iterdir()) == []
    world.overlay("show", NAME).check()


def test_a_root_that_is_only_read_is_not_swept(tmp_path: Path) -> None:
    (tmp_path / "overlays").mkdir()
    left = tmp_path / "overlays" / f".demo.yaml.{'a' * 16}"
    left.write_bytes(b"x")
    Root(tmp_path, tmp_path / "overlays").locks("demo")
    assert left.exists()


def test_a_bake_file_sweeps_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / "overlay-bake-abcdefgh.held").mkdir()
    write_bake_file([], None, tmp_path / "bake")
    assert [path.name for path in tmp_path.iterdir()] == ["bake"]
