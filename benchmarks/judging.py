"""How long verdicts take, first and again: as times of ``overlay list``, which does next to nothing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from benchmarks.measure import Series, repeat
from benchmarks.real_series import NAME, PATCHES, write_root
from benchmarks.section import Section, at_most
from benchmarks.stage import OVERLAY, Stage

MOST_TIMES = {"first": 40.0, "again": 5.0, OVERLAY: 3.0}
"""Of ``overlay list``: 8 s, 1 s and 0.6 s where that takes 0.2 s."""


def measure_judging(stage: Stage, runs: int, listing: Series) -> Section:
    """A real series on every later release, and the shipped overlay on every release after its pin.

    Args:
        stage: where it runs; the releases' wheels are brought into its cache, which is not measured.
        runs: of each that is asked again.
        listing: ``overlay list``, measured before.
    """
    root = stage.directory / "real"
    write_root(root, stage.cache)
    words = ("diff", NAME, "--root", str(root), "--upstream", "all")
    shutil.rmtree(stage.cache / "evidence", ignore_errors=True)
    shipped = ("diff", OVERLAY, "--upstream", "all")
    found = {
        "first": repeat("first", 1, lambda _: stage.overlay(*words)),
        "again": repeat("again", runs, lambda _: stage.overlay(*words)),
    }
    stage.overlay(*shipped)
    found[OVERLAY] = repeat(OVERLAY, runs, lambda _: stage.overlay(*shipped))
    says = {
        "first": f"{PATCHES} patches on every later release, first",
        "again": "the same again",
        OVERLAY: f"`overlay diff {OVERLAY} --upstream all`, again",
    }
    return Section(
        "Verdicts",
        f"{PATCHES} real changes of upstream, of one file each, cut against the oldest release and judged on "
        "all later ones; and the shipped overlay. The wheels are in the cache.",
        ["what", "median s", "times `overlay list`"],
        [_row(says[name], series, listing) for name, series in found.items()],
        {name: series.as_json() for name, series in found.items()},
        [
            at_most(says[name], series.seconds / listing.seconds, MOST_TIMES[name], "times `overlay list`")
            for name, series in found.items()
        ],
    )


def _row(says: str, series: Series, listing: Series) -> Sequence[str]:
    return [says, f"{series.seconds:.2f}", f"{series.seconds / listing.seconds:.1f}"]
