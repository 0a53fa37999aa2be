"""Source trees of real releases, pristine, patched and changed by hand, for tests of probes."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from builder.patch.apply import try_series
from builder.patch.patch import parse_patch
from builder.patch.series import Series
from builder.probe.harness import Answer, Tree
from builder.probe.run import Prober
from builder.probe.trees import MappingTree
from builder.source.files import SourceFile
from tests.integration.wheels import release_wheel

PATCHES = Path(__file__).resolve().parents[2] / "patches"


class WheelTree:
    """A release wheel as the source tree it was built from: ``sglang/…`` is ``python/sglang/…``."""

    def __init__(self, wheel: Path) -> None:
        self._zip = zipfile.ZipFile(wheel)
        names = (name for name in self._zip.namelist() if not name.endswith((".so", "/")))
        self._members = {self._path(name): name for name in names}

    @staticmethod
    def _path(name: str) -> str:
        return "python/" + re.sub(r"\Asglang-[^/]*\.dist-info/", "sglang.dist-info/", name)

    def read(self, path: str) -> bytes:
        return self._zip.read(self._members[path])

    def __contains__(self, path: str) -> bool:
        return path in self._members

    def paths(self, prefix: str = "") -> list[str]:
        return sorted(path for path in self._members if path.startswith(prefix))

    def grep(self, text: bytes, prefix: str = "") -> list[str]:
        return [path for path in self.paths(prefix) if path.endswith(".py") and text in self.read(path)]


def release_tree(version: str) -> WheelTree:
    """The tree of a release, such as ``0.5.20``."""
    return WheelTree(release_wheel(version))


@cache
def read_tree(version: str) -> MappingTree:
    """The same, with what probes look at (SGLang's own sources) read once."""
    tree = release_tree(version)
    paths = [path for path in tree.paths("python/sglang/") if path.endswith(".py")]
    others = [path for path in tree.paths("python/") if path.endswith("METADATA") or path.count("/") == 2]
    return MappingTree({path: tree.read(path) for path in {*paths, *others}})


def patched(tree: Tree, *names: str) -> MappingTree:
    """``tree`` with patches (``v0.5.20/NAME``) applied in this order."""
    patches = [parse_patch(Path(name).name, (PATCHES / f"{name}.patch").read_bytes()) for name in names]
    series = Series("test", tuple(patches))
    files = {path: SourceFile("100644", tree.read(path)) for path in series.paths if path in tree}
    applied = try_series(series, files)
    assert not applied.failed, [problem for report in applied.failed for problem in report.problems]
    return MappingTree({path: file.data for path, file in applied.after.items() if file}, tree)


def changed(tree: Tree, path: str, edits: Mapping[str, str]) -> MappingTree:
    """``tree`` with texts of one file replaced, each of which must be there exactly once."""
    text = tree.read(path).decode()
    for old, new in edits.items():
        assert text.count(old) == 1, f"{text.count(old)} times in {path}: {old!r}"
        text = text.replace(old, new)
    compile(text, path, "exec", dont_inherit=True)
    return MappingTree({path: text.encode()}, tree)


def said(prober: Prober, name: str, tree: Tree) -> Answer:
    """What a patch's probe says of a tree."""
    return prober.ask(PATCHES / "probes" / f"{name}.py", tree)
