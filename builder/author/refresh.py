"""Refresh: a patch file that was edited by hand, read as it was meant and written as it should be."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from builder.author.export import Exported, export_applied
from builder.author.series_directory import SeriesDirectory
from builder.author.worktree import WorkTree
from builder.errors import InvalidInput
from builder.patch.apply import conflict_error, try_series
from builder.patch.patch import parse_patch
from builder.patch.repair import Repair, put_back_blanks, recount, repair_text
from builder.patch.series import Series, check_depends
from builder.source.upstream import Upstream


@dataclass(frozen=True)
class Refreshed:
    """What refreshing comes to; nothing is written yet.

    Args:
        repairs: what was wrong with the text of the patch.
        exported: the whole series in canonical form: a change moves the hunks of later patches.
    """

    repairs: tuple[Repair, ...]
    exported: tuple[Exported, ...]


def refresh_file(directory: SeriesDirectory, upstream: Upstream, name: str) -> Refreshed:
    """Repair a patch's text and counts, and write the series anew from it.

    Args:
        directory: the series.
        upstream: its release.
        name: the patch that was edited.

    Raises:
        InvalidInput: the patch cannot be read even then, or is not in the series.
        PatchConflict: it, or a later patch, does not apply.
    """
    names = directory.order()
    if name not in names:
        raise InvalidInput(
            "patch is not in the series",
            where=str(directory.directory / "series"),
            found=name,
            hint=f"the series has: {', '.join(names)}",
        )
    data, repairs = repair_text(directory.path(name).read_bytes())
    data, lost = put_back_blanks(data)
    data, miscounts = recount(data)
    patches = [parse_patch(n, data if n == name else directory.path(n).read_bytes()) for n in names]
    series = Series(directory.name, tuple(patches))
    check_depends(series)
    tried = try_series(series, upstream.files(series.paths), drop=directory.drop)
    if tried.failed:
        raise conflict_error(tried)
    exported = [
        Exported(e.name, e.data, directory.path(e.name).read_bytes(), e.kept) for e in export_applied(tried)
    ]
    return Refreshed((*repairs, *lost, *miscounts), tuple(exported))


def check_complete(
    directory: SeriesDirectory, upstream: Upstream, worktree: WorkTree, exported: Sequence[Exported]
) -> None:
    """The patches that are to be written must make, of the release, what the work tree holds.

    Raises:
        InvalidInput: naming the files that would be lost, or come out otherwise.
        PatchConflict: a patch does not apply.
    """
    series = Series(directory.name, tuple(parse_patch(one.name, one.data) for one in exported))
    tried = try_series(series, upstream.files(series.paths), drop=directory.drop)
    if tried.failed:
        raise conflict_error(tried)
    if wrong := worktree.differing(tried.before, tried.after):
        raise InvalidInput(
            "the patches are not what the work tree holds; nothing was written",
            where=str(worktree.path),
            expected="each file as in the work tree's last commit",
            found=", ".join(wrong[:10]),
            hint="the work tree keeps it all: git log there; please report this",
        )


def difference(exported: Exported) -> str:
    """How a patch's file changes, as a unified diff for people."""
    old, new = (
        (data or b"").decode("utf-8", "replace").splitlines() for data in (exported.before, exported.data)
    )
    name = f"{exported.name}.patch"
    return "\n".join(difflib.unified_diff(old, new, f"{name} (now)", f"{name} (refreshed)", n=1, lineterm=""))
