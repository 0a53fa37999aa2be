"""What overlay says of a bytecode file is what Python does with it."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from builder.verify.bytecode import Standing, standing_of

TIME = 1_700_000_000
OLD, NEW = b"VALUE = 'old'\n", b"VALUE = 'new'\n"


class Module:
    """A module whose source was replaced by one of the same size after it was compiled."""

    def __init__(self, directory: Path, mode: py_compile.PycInvalidationMode, *, mtime: int = TIME) -> None:
        self.directory = directory
        self.source = directory / "module.py"
        self.source.write_bytes(OLD)
        os.utime(self.source, (TIME, TIME))
        self.bytecode = Path(py_compile.compile(str(self.source), invalidation_mode=mode, doraise=True) or "")
        self.source.write_bytes(NEW)
        self.mtime = mtime
        os.utime(self.source, (mtime, mtime))

    def runs(self) -> str:
        """What Python runs: the old value is the bytecode's, the new one the source's."""
        command = [sys.executable, "-B", "-c", "import module; print(module.VALUE)"]
        done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def standing(self) -> Standing:
        return standing_of(self.bytecode.read_bytes(), self.source.read_bytes(), self.mtime)


def test_same_time_and_size_is_run_and_seen(tmp_path: Path) -> None:
    module = Module(tmp_path, py_compile.PycInvalidationMode.TIMESTAMP)
    assert (module.runs(), module.standing()) == ("old", Standing.TRUSTED)


def test_another_time_is_ignored(tmp_path: Path) -> None:
    module = Module(tmp_path, py_compile.PycInvalidationMode.TIMESTAMP, mtime=TIME + 1)
    assert (module.runs(), module.standing()) == ("new", Standing.IGNORED)


def test_unchecked_hash_is_run_and_seen(tmp_path: Path) -> None:
    module = Module(tmp_path, py_compile.PycInvalidationMode.UNCHECKED_HASH, mtime=TIME + 1)
    assert (module.runs(), module.standing()) == ("old", Standing.UNCHECKED)


def test_checked_hash_of_another_source_is_ignored(tmp_path: Path) -> None:
    module = Module(tmp_path, py_compile.PycInvalidationMode.CHECKED_HASH)
    assert (module.runs(), module.standing()) == ("new", Standing.IGNORED)


def test_checked_hash_of_this_source_is_trusted(tmp_path: Path) -> None:
    module = Module(tmp_path, py_compile.PycInvalidationMode.CHECKED_HASH)
    module.source.write_bytes(OLD)
    assert module.standing() is Standing.TRUSTED


def test_emptied_bytecode_is_ignored_and_the_source_runs(tmp_path: Path) -> None:
    """What a build leaves of the base's bytecode."""
    module = Module(tmp_path, py_compile.PycInvalidationMode.UNCHECKED_HASH)
    module.bytecode.write_bytes(b"")
    assert (module.runs(), module.standing()) == ("new", Standing.IGNORED)


@pytest.mark.parametrize("size", range(16))
def test_bytecode_cut_short_is_ignored(size: int) -> None:
    whole = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, TIME, len(NEW))
    assert standing_of(whole[:size], NEW, TIME) is Standing.IGNORED


def test_unknown_flags_are_ignored_as_python_does() -> None:
    data = importlib.util.MAGIC_NUMBER + struct.pack("<III", 4, TIME, len(NEW))
    assert standing_of(data, NEW, TIME) is Standing.IGNORED
