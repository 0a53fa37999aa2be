"""Patches that come into a series, or are mended in it, must leave the release Python."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from builder.author.series_directory import Home
from builder.patch.apply import conflict_error, try_series
from builder.patch.patch import parse_patch
from builder.patch.series import Series
from builder.probe.named_trees import pristine_tree
from builder.soundness.check import Checker
from builder.soundness.series import check_written
from builder.source.upstream import Upstream


def check_sound(
    home: Home,
    upstream: Upstream,
    patches: Sequence[tuple[str, bytes]],
    names: Collection[str],
    cache: Path,
    *,
    hint: str,
) -> tuple[str, ...]:
    """A series that is about to be written breaks nothing by the patches that are new or changed.

    Args:
        home: the series.
        upstream: its release.
        patches: all of it, as it is to be written.
        names: those that are new or changed.
        cache: where it is kept what was found to be sound.
        hint: how it is mended.

    Returns:
        What could not be looked at, what other patches break, and what these are allowed to break.

    Raises:
        PatchConflict: one of them breaks something.
    """
    series = Series(home.name, tuple(parse_patch(name, data) for name, data in patches))
    tried = try_series(series, upstream.files(series.paths), drop=home.drop)
    if tried.failed:
        raise conflict_error(tried)
    checker = Checker(cache)
    notes = check_written(tried, names, pristine_tree(upstream), checker, hint=hint)
    checker.save()
    return notes
