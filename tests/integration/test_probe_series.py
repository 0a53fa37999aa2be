"""The series against all probes: each patch repairs its own defect and no other, on its declared lines."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from builder.patch.apply import AppliedSeries, try_series
from builder.patch.patch import Patch
from builder.patch.series import Series, read_series
from builder.probe.evaluate import Matrix, ask_all, find_probes, probe_series
from builder.probe.harness import CannotTell, Definition, Program, Tree, parse
from builder.probe.trees import MappingTree
from builder.source.files import SourceFile
from tests.integration.sources import PATCHES, read_tree

PROBES = PATCHES / "probes"
SERIES = ("v0.5.17", "v0.5.20", "v0.5.23")
FINISHES = {("v0.5.23", "tilelang-fp8-saturate"): ("tilelang-fp8-kv-cuda",)}
"""Patches of an earlier series of which upstream took all but what this patch is: with it they are whole."""

EACH = [(name, patch) for name in SERIES for patch in read_series(PATCHES / name).names]


def pristine(name: str) -> Tree:
    """The release that a series was cut for."""
    return read_tree(name.removeprefix("v"))


def applied(name: str, patches: Series) -> AppliedSeries:
    base = pristine(name)
    files = {path: SourceFile("100644", base.read(path)) for path in patches.paths if path in base}
    made = try_series(patches, files)
    assert not made.failed, [problem for report in made.failed for problem in report.problems]
    return made


def tree_of(name: str, made: AppliedSeries) -> MappingTree:
    after = {path: file.data if file else None for path, file in made.after.items()}
    return MappingTree(after, pristine(name))


@pytest.fixture(scope="session")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("answers")


def everything(tree: Tree, remembered: Path) -> Matrix:
    return ask_all(find_probes(PROBES), {"tree": tree}, remembered=remembered)


@pytest.mark.parametrize("name", SERIES)
def test_series_lands_on_its_declared_lines(name: str) -> None:
    made = applied(name, read_series(PATCHES / name))
    assert {report.patch.name: report.offsets for report in made.reports if report.offsets} == {}


@pytest.mark.parametrize("name", SERIES)
def test_every_prefix_of_the_series_compiles(name: str) -> None:
    series = read_series(PATCHES / name)
    for count in range(1, len(series.patches) + 1):
        made = applied(name, Series(name, series.patches[:count]))
        for path, file in made.after.items():
            if file and path.endswith(".py"):
                compile(file.data, path, "exec", dont_inherit=True)


@pytest.mark.parametrize("name", SERIES)
def test_patched_modules_import_as_far_as_stand_ins_carry(name: str) -> None:
    made = applied(name, read_series(PATCHES / name))
    program = Program(tree_of(name, made))
    reached = 0
    for path in (path for path in made.after if path.endswith(".py")):
        for definition in parse(program.tree, path).body:
            if isinstance(definition, Definition):
                with suppress(CannotTell):  # it decides by torch at import
                    assert getattr(program.module(path), definition.name) is not None
                    reached += 1
    assert reached > 100


@pytest.mark.parametrize("name", SERIES)
def test_every_patch_has_a_probe_that_it_flips(name: str, remembered: Path) -> None:
    series = read_series(PATCHES / name)
    after = tree_of(name, applied(name, series))
    said = probe_series(
        series.names, PROBES, pristine(name), after, remembered=remembered, see="overlay probe"
    )
    assert said == dict.fromkeys(series.names, "defect->fixed")


@pytest.mark.parametrize(("name", "patch"), EACH)
def test_patch_alone_flips_its_own_probe_and_no_other(name: str, patch: str, remembered: Path) -> None:
    series = read_series(PATCHES / name)
    needed = _with_what_it_needs(series, patch)
    before = everything(pristine(name), remembered).answers
    after = everything(tree_of(name, applied(name, Series(name, needed))), remembered).answers
    changed = {
        probe: (before[probe, tree].state, after[probe, tree].state)
        for probe, tree in after
        if before[probe, tree].state != after[probe, tree].state
    }
    brought = {  # with a feature, the right answer to what is asked of it at a later release
        probe: flip
        for probe, flip in changed.items()
        if probe not in series.names and flip == ("absent", "fixed")
    }
    finished = dict.fromkeys(FINISHES.get((series.name, patch), ()), ("defect", "fixed"))
    repaired = dict.fromkeys((p.name for p in needed), ("defect", "fixed"))
    assert changed == repaired | finished | brought


def _with_what_it_needs(series: Series, name: str) -> tuple[Patch, ...]:
    """The patch and, before it, what its ``Overlay-Depends`` name, in the series' order."""
    wanted = {name}
    for patch in reversed(series.patches):
        if patch.name in wanted:
            wanted |= set(patch.depends)
    return tuple(patch for patch in series.patches if patch.name in wanted)
