"""Rules that need the pinned release: the series applies, is canonical, and compiles after every patch."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from builder.author.export import export_applied
from builder.author.lint.finding import Finding
from builder.author.series_directory import SeriesDirectory
from builder.errors import InvalidInput
from builder.patch.apply import AppliedSeries, PatchReport, try_series
from builder.patch.repair import added_lines, split
from builder.probe.named_trees import pristine_tree
from builder.project.cache import Store
from builder.project.program import git_identity
from builder.project.remembered import Remembered
from builder.soundness.check import Checker
from builder.soundness.series import ALLOW, changes_of, check_each, without
from builder.source.files import SourceFile
from builder.source.upstream import Upstream

# What a kind of flaw is called here, where that is another word.
_RULES = {"does-not-compile": "compiles"}
_IMPORT = re.compile(rb"[ \t]*(?:from[ \t]+([A-Za-z_]\w*)[\w.]*[ \t]+import\b|import[ \t]+(.+))")


def lint_release(
    directory: SeriesDirectory, upstream: Upstream, cache: Path
) -> tuple[list[Finding], list[str]]:
    """Every rule that needs the release's sources.

    Args:
        directory: the series.
        upstream: its pinned release.
        cache: where it is kept what was found to be in order.

    Returns:
        What is wrong; and what could not be looked at, or was so before the series.
    """
    try:
        series = directory.series()
    except InvalidInput:
        return [], []  # the text rules have said what is wrong with it
    sources = upstream.files(series.paths)
    applied = try_series(series, sources, drop=directory.drop)
    found = [finding for report in applied.failed for finding in _failed(directory, report)]
    if not found:
        known = Remembered(Store(cache / "lint"), "canonical")
        found += _canonical(directory, applied, known)
        known.save()
    unsound, notes = _soundness(directory, applied, upstream, cache)
    return [*found, *unsound, *_imports(directory, applied, sources.values())], notes


def _failed(directory: SeriesDirectory, report: PatchReport) -> Iterator[Finding]:
    for problem in report.problems:
        diff = next((d for d in report.patch.files if problem.path in (d.old_path, d.new_path)), None)
        line = diff.hunks[problem.hunk - 1].patch_line if diff and problem.hunk else None
        what = f"{problem.path}: {problem.kind}: {problem.what}"
        yield Finding(
            "applies",
            _file(directory, report),
            line,
            what,
            problem.expected,
            problem.found,
            problem.advice(directory.name),
        )


def _canonical(directory: SeriesDirectory, applied: AppliedSeries, known: Remembered) -> Iterator[Finding]:
    repair = f"overlay patch export {directory.name}"
    keys = [_rendering_key(report) for report in applied.reports]
    if all(map(known.__contains__, keys)):
        return
    for report, exported, key in zip(applied.reports, export_applied(applied), keys, strict=True):
        wrong = [*_blob_ids(directory, report, repair)]
        yield from wrong
        if not exported.changed:
            known.add(key)
        elif not wrong:
            line = _first_difference(report.patch.data, exported.data)
            what = "patch is not what export writes"
            yield Finding("canonical", _file(directory, report), line, what, repair=repair)


def _rendering_key(report: PatchReport) -> str:
    """Names all that decides whether a patch is canonical: its bytes, its files before and after, and git."""
    digest = hashlib.sha256(report.patch.data)
    for change in report.files:
        sides = [(side.mode, side.blob) if side else None for side in (change.pre, change.post)]
        digest.update(repr((change.old_path, change.path, sides, git_identity())).encode())
    return digest.hexdigest()


def _blob_ids(directory: SeriesDirectory, report: PatchReport, repair: str) -> Iterator[Finding]:
    left_out = {path for path, _ in report.dropped}
    diffs = [diff for diff in report.patch.files if diff.path not in left_out]
    for change, diff in zip(report.files, diffs, strict=True):
        for said, is_now in ((diff.old_blob, change.pre), (diff.new_blob, change.post)):
            if said and is_now and not is_now.blob.startswith(said):
                what = f"{diff.path}: index line names a blob that is not the release's"
                yield Finding(
                    "blob-ids", _file(directory, report), diff.patch_line, what, is_now.blob, said, repair
                )


def _soundness(
    directory: SeriesDirectory, applied: AppliedSeries, upstream: Upstream, cache: Path
) -> tuple[list[Finding], list[str]]:
    """What each patch breaks in the release, what it need not be allowed, and notes."""
    found: list[Finding] = []
    notes: dict[str, None] = {}
    checker = Checker(cache)
    changes = changes_of(applied)
    for change, sound in check_each(changes, pristine_tree(upstream), checker):
        file = str(directory.path(change.name).relative_to(directory.root.path))
        for flaw in without(sound.flaws, change.allows):
            found.append(Finding(_RULES.get(flaw.kind, flaw.kind), file, None, str(flaw)))
        for kind, name in sorted(change.allows - {(flaw.kind, flaw.name) for flaw in sound.flaws}):
            what = f"{ALLOW}: {kind} {name}: what is allowed was not found"
            found.append(Finding("allowance", file, None, what))
        notes |= dict.fromkeys(sound.notes)
    checker.save()
    return found, list(notes)


def _imports(
    directory: SeriesDirectory, applied: AppliedSeries, sources: Iterable[SourceFile]
) -> Iterator[Finding]:
    """Added imports of modules that neither Python, SGLang nor the touched files have."""
    there = {"sglang", *sys.stdlib_module_names}
    there |= {name for source in sources for line in source.data.split(b"\n") for name in imported(line)}
    for report in applied.reports:
        for number, path, text in added_lines(split(report.patch.data)):
            if path.endswith(b".py"):
                for name in imported(text):
                    if name not in there:
                        what = "added line imports what the release's files do not"
                        yield Finding("added-import", _file(directory, report), number, what, found=name)


def imported(line: bytes) -> list[str]:
    """The top-level modules that a line of Python imports, if it is an absolute import."""
    match = _IMPORT.match(line)
    if match is None:
        return []
    if match[1]:
        return [match[1].decode()]
    names = (part.split(b" as ")[0].strip().split(b".")[0] for part in match[2].split(b"#")[0].split(b","))
    return [name.decode() for name in names if re.fullmatch(rb"[A-Za-z_]\w*", name)]


def _first_difference(one: bytes, two: bytes) -> int:
    ours, theirs = one.split(b"\n"), two.split(b"\n")
    pairs = enumerate(zip(ours, theirs, strict=False), 1)
    return next((n for n, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


def _file(directory: SeriesDirectory, report: PatchReport) -> str:
    return str(directory.path(report.patch.name).relative_to(directory.root.path))
