"""Patches that come into a series, or are repaired in it, must leave the release Python."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from builder.author.series_directory import SeriesDirectory
from builder.patch.apply import conflict_error, try_series
from builder.patch.patch import parse_patch
from builder.patch.series import Series
from builder.probe.named_trees import pristine_tree
from builder.soundness.check import Checker
from builder.soundness.series import check_written
from builder.source.upstream import Upstream


def check_sound(
    directory: SeriesDirectory,
    upstream: Upstream,
    patches: Sequence[tuple[str, bytes]],
    names: Collection[str],
    cache: Path,
    *,
    hint: str,
) -> tuple[str, ...]:
    """A series that is about to be written breaks nothing by the patches that are new or changed.

    Args:
        directory: the series.
        upstream: its release.
        patches: all of it, as it is to be written.
        names: those that are new or changed.
        cache: where it is kept what was found to be sound.
        hint: how it is repaired.

    Returns:
        What could not be looked at, what other patches break, and what these are allowed to break.

    Raises:
        PatchConflict: one of them breaks something.
    """
    series = Series(directory.name, tuple(parse_patch(name, data) for name, data in patches))
    tried = try_series(series, upstream.files(series.paths), drop=directory.drop)
    if tried.failed:
        raise conflict_error(tried)
    checker = Checker(cache)
    notes = check_written(tried, names, pristine_tree(upstream), checker, hint=hint)
    checker.save()
    return notes
