"""Import: anybody's patches as canonical ones at the end of a series, proved on its release."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from builder.author.export import draft_of
from builder.author.inputs import InputPatch
from builder.author.paths import ORDINARY, find_reading, rewrite
from builder.author.series_directory import SeriesDirectory
from builder.author.skeleton import DEFAULT_AUTHOR
from builder.author.three_way import merge_file, needs_merge
from builder.author.worktree import slug
from builder.errors import InvalidInput
from builder.patch.apply import AppliedSeries, PatchReport, conflict_error, try_series
from builder.patch.canonical import Draft, write_patches
from builder.patch.message import Head, date_of, write_head
from builder.patch.patch import Patch, check_patch_name, parse_patch
from builder.patch.repair import Repair, hunk_spans, split
from builder.patch.series import Series, check_reaches, rule_for
from builder.source.files import SourceFile, Sources
from builder.source.upstream import Upstream

IMPORT_TRAILER = "Overlay-Import"


@dataclass(frozen=True)
class ImportOptions:
    """What the importer wants to be said of the patches; empty where the patches themselves decide.

    Args:
        name: the patch's name; for one patch alone.
        author: ``Name <address>`` for patches that name none.
        status: ``Upstream-Status`` for patches that have none.
        bugs: ``Bug`` trailers to add.
        origin: ``Origin`` trailer to add.
        strip: leading path components to take off.
    """

    name: str = ""
    author: str = ""
    status: str = ""
    bugs: tuple[str, ...] = ()
    origin: str = ""
    strip: int | None = None


@dataclass(frozen=True)
class Imported:
    """A patch that is to be added to the series.

    Args:
        name: its name in the series.
        data: its canonical bytes.
        repairs: what was wrong with its text.
        reading: how its paths were read, in words; empty where they were as they should be.
        dropped: files that a rule left out, with the rule.
        offsets: number of hunks that were not on their line.
        merged: files that were others when the commit was made, and that git merged.
    """

    name: str
    data: bytes
    repairs: tuple[Repair, ...]
    reading: str
    dropped: tuple[tuple[str, str], ...]
    offsets: int
    merged: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "sha256": hashlib.sha256(self.data).hexdigest(),
            "mended": [asdict(repair) for repair in self.repairs],
            "reading": self.reading,
            "dropped": [{"path": path, "rule": rule} for path, rule in self.dropped],
            "offsets": self.offsets,
            "merged": list(self.merged),
        }


def import_input_patches(
    directory: SeriesDirectory,
    upstream: Upstream,
    input_patches: Sequence[InputPatch],
    options: ImportOptions,
) -> list[Imported]:
    """Make patches of a series out of input_patches; nothing is written.

    Args:
        directory: the series that they come after.
        upstream: its release.
        input_patches: what was found, in order.
        options: what is to be said of them.

    Raises:
        InvalidInput: a patch is for other files, has no author to be found, or nothing is left of it.
        PatchConflict: one does not apply on top of the series.
    """
    series = directory.series()
    taken = list(series.names)
    known = {*upstream.entries(), *series.paths}
    patches: list[Patch] = []
    notes: list[tuple[InputPatch, str]] = []
    for input_patch in input_patches:
        name = _name(input_patch, options, taken)
        taken.append(name)
        reading = find_reading(
            input_patch.diff, known, name, options.strip if options.strip is not None else input_patch.strip
        )
        patch = _patch(name, _head(directory, input_patch, name, options), rewrite(input_patch.diff, reading))
        known |= {diff.new_path for diff in patch.files}
        patches.append(patch)
        notes.append((input_patch, "" if reading == ORDINARY else str(reading)))
    merged = _merged_with_history(directory, upstream, series, patches, input_patches)
    applied = _applied(directory, upstream, series, patches, [input_patch for input_patch, _ in notes])
    reports = applied.reports[len(series.patches) :]
    written = _write(directory, reports, input_patches)
    return [
        Imported(
            report.patch.name,
            data,
            input_patch.repairs,
            reading,
            report.dropped,
            report.offsets,
            tuple(dict.fromkeys(paths)),
        )
        for report, data, (input_patch, reading), paths in zip(reports, written, notes, merged, strict=True)
    ]


def squash(input_patches: Sequence[InputPatch]) -> InputPatch:
    """Several patches as one: the first one's head, the others' subjects in its text.

    Their diffs stand one after the other; applying them in order gives the change of all.
    """
    first = input_patches[0]
    others = b"\n".join(
        b"- " + input_patch.head.subject for input_patch in input_patches[1:] if input_patch.head.subject
    )
    body = first.head.text
    for key in ("Upstream-Status", IMPORT_TRAILER):
        body = replace(first.head, text=body).without_trailer(key).text
    text = b"\n\n".join(part for part in (others, body) if part)
    return replace(
        first,
        head=replace(first.head, text=text),
        diff=b"".join(input_patch.diff for input_patch in input_patches),
        original=b"".join(input_patch.original for input_patch in input_patches),
        repairs=tuple(repair for input_patch in input_patches for repair in input_patch.repairs),
        commit=None,
    )


def _merged_with_history(
    directory: SeriesDirectory,
    upstream: Upstream,
    series: Series,
    patches: list[Patch],
    input_patches: Sequence[InputPatch],
) -> list[list[str]]:
    """Merge what comes from a repository, in place of ``patches``; the files of each that git merged.

    Where a commit was made for other files than those here, its lines alone do not say where it belongs.
    """
    merged: list[list[str]] = [[] for _ in patches]
    if not any(input_patch.repository for input_patch in input_patches):
        return merged
    paths = Series(series.name, (*series.patches, *patches)).paths
    files = upstream.files(paths)
    files = _after(series, files, directory)
    for number, (patch, input_patch) in enumerate(zip(patches, input_patches, strict=True)):
        diffs = list(patch.files)
        for at, diff in enumerate(patch.files):
            now = files.get(diff.old_path)
            if (
                input_patch.repository
                and now
                and not rule_for(diff.path, directory.drop)
                and needs_merge(diff, now)
            ):
                diffs[at] = merge_file(patch.name, diff, now, input_patch.repository)
                merged[number].append(diff.path)
            step = Series(series.name, (replace(patch, files=(diffs[at],)),))
            files = _after(step, files, directory)
        patches[number] = replace(patch, files=tuple(diffs))
    return merged


def _after(series: Series, files: Sources, directory: SeriesDirectory) -> dict[str, SourceFile]:
    """The files when a series has been applied to them."""
    after = {**files, **try_series(series, files, drop=directory.drop).after}
    return {path: file for path, file in after.items() if file is not None}


def _applied(
    directory: SeriesDirectory,
    upstream: Upstream,
    series: Series,
    patches: list[Patch],
    input_patches: Sequence[InputPatch],
) -> AppliedSeries:
    """The series with the new patches tried on the release; CRLF patches once more for files in CRLF."""
    tried = _try(directory, upstream, series, patches)
    for number, (patch, input_patch) in enumerate(zip(patches, input_patches, strict=True)):
        report = tried.reports[len(series.patches) + number]
        paths = {problem.path for problem in report.problems if problem.kind == "endings"}
        if paths and input_patch.crlf:
            patches[number] = _patch(patch.name, None, _with_crlf(patch.data, paths))
            tried = _try(directory, upstream, series, patches)
    if tried.failed:
        release, name = directory.spec.upstream.release, tried.failed[0].patch.name
        again = f"to make it there: overlay patch new {directory.name} {name}"
        raise conflict_error(tried, hint=f"it must fit {release} with the series on it; {again}")
    return tried


def _try(
    directory: SeriesDirectory, upstream: Upstream, series: Series, patches: Sequence[Patch]
) -> AppliedSeries:
    longer = Series(series.name, (*series.patches, *patches))
    return try_series(longer, upstream.files(longer.paths), drop=directory.drop)


def _patch(name: str, head: Head | None, diff: bytes) -> Patch:
    return parse_patch(name, diff if head is None else write_head(head) + b"---\n\n" + diff)


def _write(
    directory: SeriesDirectory, reports: Sequence[PatchReport], input_patches: Sequence[InputPatch]
) -> list[bytes]:
    """Canonical bytes; where they are not what was found, they say what that was."""
    for report in reports:
        if not report.files:
            raise InvalidInput(
                "nothing is left of the patch: rules drop every file",
                where=report.patch.name,
                found=", ".join(f"{path} ({rule})" for path, rule in report.dropped),
                hint="change patches.drop in the spec, if the image has these files",
            )
    check_reaches([report.patch for report in reports], directory.spec.base.roots)
    drafts = [_merged(draft_of(report)) for report in reports]
    plain = write_patches(drafts)
    traced = [
        draft if data == input_patch.original else _traced(draft, input_patch)
        for draft, data, input_patch in zip(drafts, plain, input_patches, strict=True)
    ]
    return write_patches(traced)


def _traced(draft: Draft, input_patch: InputPatch) -> Draft:
    """The draft with the hash of what it was imported from, if an earlier import did not say so."""
    if any(key == IMPORT_TRAILER for key, _ in draft.head.trailers()):
        return draft
    return replace(draft, head=draft.head.with_trailer(IMPORT_TRAILER, f"sha256:{input_patch.sha256}"))


def _merged(draft: Draft) -> Draft:
    """The draft without files that end as they began."""
    same = {path for path in draft.before if draft.after.get(path) == draft.before[path]}

    def rest(files: dict[str, SourceFile]) -> dict[str, SourceFile]:
        return {path: file for path, file in files.items() if path not in same}

    return replace(draft, before=rest(dict(draft.before)), after=rest(dict(draft.after)))


def _name(input_patch: InputPatch, options: ImportOptions, taken: Sequence[str]) -> str:
    stem = input_patch.name.removesuffix(".gz").rpartition("/")[2]
    for ending in (".patch", ".diff", ".mbox", ".eml", ".txt"):
        stem = stem.removesuffix(ending)
    named = slug(stem.encode()) if stem and not stem.isdigit() and stem != "-" else ""
    # `0001-…` is format-patch's numbering, not a name.
    named = named if not named[:4].isdigit() else named[4:].strip("-")
    name = (
        options.name
        or (named if not input_patch.head.subject or named else "")
        or slug(input_patch.head.subject)
    )
    check_patch_name(name, where="the patch's name")
    if options.name and name in taken:
        raise InvalidInput("there is a patch of this name", found=name, hint="choose another with --name")
    number = 2
    unique = name
    while unique in taken:
        unique = f"{name}-{number}"
        number += 1
    return unique


def _head(directory: SeriesDirectory, input_patch: InputPatch, name: str, options: ImportOptions) -> Head:
    """The patch's head with what is missing filled in."""
    head = input_patch.head
    author = head.author or options.author.encode("utf-8", "surrogateescape") or DEFAULT_AUTHOR.encode()
    head = replace(
        head,
        author=author,
        date=head.date or date_of(directory.spec.date),
        subject=head.subject or name.encode(),
    )
    said = {key for key, _ in head.trailers()}
    if "Upstream-Status" not in said:
        head = head.with_trailer("Upstream-Status", options.status or _status(head))
    if options.origin and "Origin" not in said:
        head = head.with_trailer("Origin", options.origin)
    elif input_patch.commit and "Origin" not in said:
        head = head.with_trailer("Origin", f"commit:{input_patch.commit}")
    for bug in options.bugs:
        if ("Bug", bug) not in head.trailers():
            head = head.with_trailer("Bug", bug)
    return head


def _status(head: Head) -> str:
    """What DEP-3's trailers say of the patch's standing."""
    said = dict(head.trailers())
    if said.get("Forwarded", "").startswith("http"):
        return f"Submitted [{said['Forwarded']}]"
    if said.get("Forwarded") == "not-needed":
        return "Inappropriate [not needed upstream]"
    return "Pending"


def _with_crlf(data: bytes, paths: set[str]) -> bytes:
    """Hunks of these files with CRLF at their lines' ends."""
    lines = split(data)
    for span in hunk_spans(lines):
        if span.path.partition(b"/")[2].decode("utf-8", "surrogateescape") in paths:
            for number in range(span.header + 1, span.end):
                if not lines[number].startswith(b"\\"):
                    lines[number] = lines[number].removesuffix(b"\n").removesuffix(b"\r") + b"\r\n"
    return b"".join(lines)
