"""A lock is canonical, whole or not there, and never believed when it is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import InvalidInput
from builder.project.lock import Lock, read_lock, write_lock
from builder.project.whole_file import write_whole


def test_what_is_written_is_read(tmp_path: Path) -> None:
    lock = Lock({"sha256:a": {"x": 1}}, {}, {"linux/arm64": {"digest": "d"}}, {"diff": {"p": "carry"}})
    write_lock(tmp_path / "a.lock", lock)
    assert read_lock([tmp_path / "a.lock"]) == lock


def test_the_same_lock_is_the_same_bytes(tmp_path: Path) -> None:
    write_lock(tmp_path / "a", Lock({"b": {"y": 1, "x": 2}, "a": {}}))
    write_lock(tmp_path / "b", Lock({"a": {}, "b": {"x": 2, "y": 1}}))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_unchanged_lock_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    write_lock(path, Lock({"a": {}}))
    before = path.stat().st_ino
    write_lock(path, Lock({"a": {}}))
    assert path.stat().st_ino == before


def test_the_first_lock_there_is_counts(tmp_path: Path) -> None:
    write_lock(tmp_path / "shipped", Lock({"shipped": {}}))
    assert read_lock([tmp_path / "mine", tmp_path / "shipped"]).bases == {"shipped": {}}
    write_lock(tmp_path / "mine", Lock({"mine": {}}))
    assert read_lock([tmp_path / "mine", tmp_path / "shipped"]).bases == {"mine": {}}


def test_no_lock_is_an_empty_one(tmp_path: Path) -> None:
    assert read_lock([tmp_path / "none"]) == Lock()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"{}",
        b'{"schema": 99}',
        b'{"schema": 1, "bases": []}',
        b'{"schema":1,"bases":{"a":1}}',
    ],
)
def test_a_damaged_lock_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.lock").write_bytes(data)
    with pytest.raises(InvalidInput) as caught:
        read_lock([tmp_path / "a.lock"])
    assert caught.value.hint


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    write_lock(path, Lock({"a": {}}))
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_lock(path, Lock({"a": {"x": object()}}))
    with pytest.raises(TypeError):
        write_whole(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.lock"]


def test_the_lock_says_its_schema_first_of_all(tmp_path: Path) -> None:
    write_lock(tmp_path / "a", Lock())
    assert json.loads((tmp_path / "a").read_text()) == {"schema": 1}
