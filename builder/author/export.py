"""Export: every patch of a series as its canonical bytes, hunks on their true lines, blob ids as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.author.series_directory import SeriesDirectory
from builder.errors import InvalidInput
from builder.patch.apply import AppliedSeries, PatchReport, apply_series, conflict_error, try_series
from builder.patch.canonical import Draft, write_patches
from builder.patch.message import Head, read_head
from builder.patch.patch import Patch
from builder.project.whole_file import write_whole
from builder.source.files import SourceFile
from builder.source.git import GitStore
from builder.source.upstream import Upstream


@dataclass(frozen=True)
class Exported:
    """A patch as it should be written.

    Args:
        name: its name in the series.
        data: its canonical bytes.
        before: the bytes of its file now; None where there is none.
        kept: why it is left as it is, although nobody can say whether it is canonical; else None.
    """

    name: str
    data: bytes
    before: bytes | None
    kept: str | None = None

    @property
    def changed(self) -> bool:
        return self.data != self.before


def apply_directory(
    directory: SeriesDirectory, upstream: Upstream, store: GitStore | None = None
) -> AppliedSeries:
    """A series applied to its release, all of it.

    Args:
        directory: the series.
        upstream: its release.
        store: where git confirms it; None where our own reading is enough (a draft, a completion).

    Raises:
        PatchConflict: a patch does not apply.
    """
    series = directory.series()
    sources = upstream.files(series.paths)
    if store is not None:
        return apply_series(series, sources, store, drop=directory.drop)
    tried = try_series(series, sources, drop=directory.drop)
    if tried.failed:
        raise conflict_error(tried)
    return tried


def export_applied(applied: AppliedSeries) -> list[Exported]:
    """Every patch of an applied series in canonical form.

    A patch with files that a rule drops is left as it is: the release does not have their pre-images, so
    their hunks cannot be made anew.
    """
    whole = [report for report in applied.reports if not report.dropped]
    written = dict(
        zip(
            (report.patch.name for report in whole),
            write_patches([draft_of(report) for report in whole]),
            strict=True,
        )
    )
    return [
        Exported(
            report.patch.name,
            written.get(report.patch.name, report.patch.data),
            report.patch.data,
            None if not report.dropped else "has files that the release lacks: " + _dropped(report),
        )
        for report in applied.reports
    ]


def draft_of(report: PatchReport) -> Draft:
    """What an applied patch does to its files as a draft, its head as it is."""
    before: dict[str, SourceFile] = {}
    after: dict[str, SourceFile] = {}
    for change in report.files:
        # The first sight of a file is its pre-image, the last one its post-image.
        if change.pre is not None and change.old_path not in after and change.kind != "copy":
            before.setdefault(change.old_path, change.pre)
        if change.kind in ("delete", "rename"):
            after.pop(change.old_path, None)
        if change.post is not None:
            after[change.path] = change.post
    return Draft(report.patch.name, head_of(report.patch), before, after)


def head_of(patch: Patch) -> Head:
    """A patch's head, as bytes."""
    return read_head(patch.data[: patch.diff_offset])


def as_mailbox(exported: Sequence[Exported]) -> bytes:
    """One mailbox of all patches, for ``git am``."""
    return b"\n".join(patch.data for patch in exported)


def write_directory(directory: Path, exported: Sequence[Exported]) -> None:
    """A quilt directory of its own: the patches and a list of them.

    Raises:
        InvalidInput: there is something else at its place.
    """
    if directory.exists() and not (directory / "series").is_file() and any(directory.iterdir()):
        raise InvalidInput(
            "directory is not empty, and no series",
            where=str(directory),
            hint="name another one with --output",
        )
    directory.mkdir(parents=True, exist_ok=True)
    for patch in exported:
        write_whole(directory / f"{patch.name}.patch", patch.data)
    write_whole(directory / "series", "".join(f"{patch.name}.patch\n" for patch in exported).encode())


def _dropped(report: PatchReport) -> str:
    return ", ".join(path for path, _ in report.dropped)
