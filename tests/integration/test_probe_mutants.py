"""Every probe on its mutants, none of which is called ``fixed``, and on its variants, which are."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.patch.series import read_series
from builder.probe.harness import Tree
from builder.probe.lists import lists_of
from builder.probe.mutants import try_probes
from builder.source.files import SourceFile
from tests.integration.sources import PATCHES, changed, read_tree
from tests.integration.test_probe_capture import BEFORE_THE_FIX, GLM5, WITH_THE_FIX

PROBES = PATCHES / "probes"
SERIES = sorted(path.parent.name for path in PATCHES.glob("v*/series"))
ANSWERS = Path(__file__).resolve().parents[2] / "build" / "answers"
"""Kept between runs, under all that they follow from: only probes of what was edited run again."""


def judged(probe: Path) -> bool:
    return all(path.is_file() for path in lists_of(probe))


CASES = [
    pytest.param(name, patch, id=f"{name}-{patch}")
    for name in SERIES
    for patch in read_series(PATCHES / name).names
    if judged(PROBES / f"{patch}.py")
]


def release_of(series: str) -> Tree:
    """What a series was cut for; of the development lane, the reconstruction."""
    version = series.removeprefix("v")
    if version.endswith("-dev"):
        return changed(read_tree(version.removesuffix("-dev")), GLM5, {WITH_THE_FIX: BEFORE_THE_FIX})
    return read_tree(version)


@pytest.mark.parametrize(("name", "patch"), CASES)
def test_no_mutant_is_called_fixed_and_variants_are(name: str, patch: str) -> None:
    series, tree = read_series(PATCHES / name), release_of(name)
    sources = {path: SourceFile("100644", tree.read(path)) for path in series.paths if path in tree}
    newest = max(other for other in SERIES if patch in read_series(PATCHES / other).names)
    listed = name == newest  # on the others, `overlay patch lint --probes` asks about the lists as well
    (trial,) = try_probes(PROBES, series, sources, tree, only=[patch], listed=listed, remembered=ANSWERS)
    if listed:
        assert trial.complaints == {}, trial.complaints
        assert trial.of("mutant")
        assert trial.of("variant")
    else:  # lint's share is of all variants; of the five that are made, one may be unknown
        assert not trial.unfit
        assert not [outcome for outcome in trial.outcomes if outcome.wrong]
        assert trial.share >= 4 / 5
