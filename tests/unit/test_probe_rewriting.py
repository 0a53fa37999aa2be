"""The same source in other words: what is made of it does the same when it is run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from builder.probe.variants import REWRITINGS, Touched, rewritten, touched_names

BEFORE = b"""import os

LIMIT = 3


def count(items):
    return len(items)


class Box:
    def size(self):
        return 0
"""

AFTER = '''from __future__ import annotations

import os

LIMIT = 3


def count(items, *more, start=0):
    """Count."""
    total = start  # so far
    names = [total for total in items]
    if total < LIMIT:
        total += len(names)
    else:
        total = -1

    def add(n):
        nonlocal total
        total += n
        return (lambda total: total)(n)

    add(len(more))
    if (last := total) != 0:
        return last
    return total if os.sep == "/" else None


class Box:
    def size(self, unit=1):
        try:
            width = 2 / unit
        except ZeroDivisionError as error:
            width = str(error)
        return width


def unchanged(x):
    return x
'''
NAMES = ("Box.size", "count")


def answers(directory: Path, files: dict[str, bytes]) -> list[object]:
    """What the module ``sglang_words.one`` says, run as Python does."""
    package = directory / "sglang_words"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for path, data in files.items():
        (package / Path(path).name).write_bytes(data.replace(b"sglang.one", b"sglang_words.one"))
    sys.path.insert(0, str(directory))
    try:
        for name in [name for name in sys.modules if name.startswith("sglang_words")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        module = importlib.import_module("sglang_words.one")
        box = module.Box()
        counted = [module.count([1, 2]), module.count([1], 5, 6), module.count([], start=9)]
        return [*counted, box.size(), box.size(0), module.unchanged(7)]
    finally:
        sys.path.remove(str(directory))


def test_the_innermost_definitions_that_changed_are_touched() -> None:
    assert touched_names(BEFORE, AFTER.encode()) == ("Box.size", "count.add", "unchanged")
    assert touched_names(BEFORE, BEFORE + b"# a comment\n") == ()
    assert "count.add" in touched_names(None, AFTER.encode())


@pytest.mark.parametrize("kind", REWRITINGS)
def test_it_does_the_same(kind: str, tmp_path: Path) -> None:
    files = rewritten(kind, [Touched("python/sglang/one.py", AFTER, NAMES)])
    assert files
    for path, data in files.items():
        compile(data, path, "exec")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    same = answers(tmp_path / "a", {"python/sglang/one.py": AFTER.encode()})
    assert answers(tmp_path / "b", files) == same
    assert same == [2, 3, -1, 2.0, "division by zero", 7]


def test_each_kind_changes_what_it_says() -> None:
    made = {kind: rewritten(kind, [Touched("python/sglang/one.py", AFTER, NAMES)]) for kind in REWRITINGS}
    by = {kind: b"".join(files.values()) for kind, files in made.items()}
    assert b"# so far" not in by["formatted anew, without comments"]
    assert b"total_1 += n" in by["local variables renamed"]
    assert b"lambda total: total" in by["local variables renamed"]
    assert b"not LIMIT > total" in by["branches and comparisons turned round"]
    assert b"def size(self, unit=1, spare_option=None)" in by["a parameter more, with a default"]
    assert sorted(made["moved to another module, re-exported"]) == [
        "python/sglang/one.py",
        "python/sglang/one_moved.py",
    ]
    assert all(b"def unchanged(x):\n    return x" in text for text in by.values())


def test_what_cannot_be_moved_stays() -> None:
    used = "def used():\n    return 1\n\n\nX = used()\n"
    assert rewritten("moved to another module, re-exported", [Touched("a.py", used, ("used",))]) == {}
    shared = "N = 0\n\n\ndef up():\n    global N\n    N += 1\n"
    assert rewritten("moved to another module, re-exported", [Touched("a.py", shared, ("up",))]) == {}
