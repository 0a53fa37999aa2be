"""The cache can be looked at and emptied, and damage in it is seen."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest

from builder.project.cache import KINDS, STORES, Store, damaged, list_entries, prune

DAY = 24 * 3600.0


def layer(cache: Path, data: bytes, *, name: str | None = None) -> Path:
    (cache / "layers").mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(data).hexdigest()
    path = cache / "layers" / f"sha256-{name or 'a' * 64}-{digest}.layer"
    path.write_bytes(data)
    return path


def unused_for(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def test_everything_is_listed_the_largest_first(tmp_path: Path) -> None:
    small, large = layer(tmp_path, b"1"), layer(tmp_path, b"2" * 1000, name="b" * 64)
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / "answer").write_bytes(b"x" * 10)
    found = list_entries(tmp_path)
    assert [entry.path for entry in found if entry.path.suffix == ".layer"] == [large, small]
    assert {entry.kind for entry in found} == {"indexes of base layers", "answers of probes"}
    assert {entry.size for entry in found} >= {1, 1000}


def test_a_cache_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list_entries(tmp_path / "none") == []
    assert prune(tmp_path / "none", older_than=0) == []


def test_an_index_whose_bytes_changed_is_damaged(tmp_path: Path) -> None:
    good, bad = layer(tmp_path, b"1"), layer(tmp_path, b"2", name="b" * 64)
    bad.write_bytes(b"3")
    assert damaged(tmp_path) == [bad]
    assert good.exists()


@pytest.mark.parametrize("kind", STORES)
def test_an_entry_that_is_not_what_was_kept_under_its_key_is_damaged(kind: str, tmp_path: Path) -> None:
    store = Store(tmp_path / kind)
    for key in ("a", "b", "c", "d"):
        store.put(key, b"the rest")
    directory = store.directory
    (directory / "b").write_bytes((directory / "b").read_bytes() + b".")
    (directory / "c").write_bytes((directory / "a").read_bytes())
    (directory / "d").unlink()
    (directory / "d").mkdir()
    (directory / ".e.0123").write_bytes(b"half")
    assert damaged(tmp_path) == [directory / name for name in (".e.0123", "b", "c", "d")]
    assert {entry.kind for entry in list_entries(tmp_path)} == {KINDS[kind.partition("/")[0]]}


@pytest.mark.parametrize("other", ["evidence", "probes"])
def test_an_entry_of_another_kind_is_not_believed(other: str, tmp_path: Path) -> None:
    Store(tmp_path / other).put("key", b"said")
    (tmp_path / other).rename(tmp_path / "lint")
    assert Store(tmp_path / "lint").get("key") is None
    assert list((tmp_path / "lint").iterdir()) == []


def test_prune_removes_what_is_old_or_damaged_and_leaves_the_rest(tmp_path: Path) -> None:
    kept, old, bad = (layer(tmp_path, data, name=data.hex() * 32) for data in (b"12", b"34", b"56"))
    unused_for(old, 31)
    bad.write_bytes(b"changed")
    assert {entry.path for entry in prune(tmp_path, older_than=30 * DAY)} == {old, bad}
    assert [path.name for path in (tmp_path / "layers").iterdir()] == [kept.name]


def test_prune_of_everything(tmp_path: Path) -> None:
    layer(tmp_path, b"1")
    (tmp_path / "series.git" / "objects").mkdir(parents=True)
    (tmp_path / "series.git" / "objects" / "x").write_bytes(b"x")
    (tmp_path / "wheels.lock").touch()
    prune(tmp_path, older_than=0)
    assert list_entries(tmp_path) == []
    assert (tmp_path / "wheels.lock").exists(), "somebody may hold it"


def test_prune_follows_no_link_out_of_the_cache(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "link").symlink_to(outside)
    prune(cache, older_than=0)
    assert (outside / "precious").exists()
    assert not (cache / "link").is_symlink()


def test_what_an_open_work_tree_reads_from_stays(tmp_path: Path) -> None:
    cache, tree = tmp_path / "cache", tmp_path / "state" / "edit" / "v1-0123" / ".git"
    for path in (cache / "wheels.git", cache / "repository-1.git", tree):
        path.mkdir(parents=True)
    url = os.fsencode(cache / "wheels.git")
    (tree / "config").write_bytes(b'[user]\n\tname = J\xf6rg\n[remote "origin"]\n\turl = ' + url + b"\n")
    assert [e.path.name for e in prune(cache, older_than=0, state=tmp_path / "state")] == ["repository-1.git"]
    assert (cache / "wheels.git").is_dir()
    shutil.rmtree(tmp_path / "state")
    assert [e.path.name for e in prune(cache, older_than=0, state=tmp_path / "state")] == ["wheels.git"]
