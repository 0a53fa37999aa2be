"""Apply a series to the pinned upstream: all of it or nothing, with a report of every patch.

Places are found and post-images made here (:mod:`builder.patch.hunks`); git then applies the same series to
a temporary index, and both must give the same objects. Nothing is ever applied in a work tree.

Only the files that the series touches are handled. The tree ids in the record are those of git trees
that hold exactly these files before and after: they do not depend on whether the upstream came from the
repository (which has tests and docs) or from a release wheel (which has not).
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from builder.errors import PatchConflict
from builder.patch.diff import FileDiff, Kind
from builder.patch.hunks import (
    PlacedHunk,
    Problem,
    apply_hunks,
    find_lines,
    place_hunks,
    split_lines,
)
from builder.patch.patch import Patch
from builder.patch.series import Series, rule_for
from builder.printable import counted
from builder.project.cache import Store
from builder.source.files import SourceFile, Sources
from builder.source.git import GitError, GitStore, TreeEntry, tree_id


@dataclass(frozen=True)
class FileChange:
    """What one patch did to one file.

    Args:
        path: the file afterwards (before, when it was deleted).
        old_path: the file before.
        kind: what happened.
        pre, post: the file before and after this patch; None where there is none.
        hunks: where each hunk landed.
    """

    path: str
    old_path: str
    kind: Kind
    pre: SourceFile | None
    post: SourceFile | None
    hunks: tuple[PlacedHunk, ...]


@dataclass(frozen=True)
class PatchReport:
    """What became of one patch: what it changed, what a rule left out, and why it failed if it did."""

    patch: Patch
    files: tuple[FileChange, ...]
    dropped: tuple[tuple[str, str], ...]
    problems: tuple[Problem, ...]

    @property
    def offsets(self) -> int:
        """Number of hunks that did not land on their declared line."""
        return sum(hunk.declared != hunk.landed for change in self.files for hunk in change.hunks)


@dataclass(frozen=True)
class AppliedSeries:
    """A series and what it made of the upstream.

    Args:
        series: the series.
        reports: one for each patch, in order.
        before, after: every touched file in the pristine and in the patched tree; None where there is none.
        tree, patched_tree: git tree ids of exactly these files before and after (empty on failure).
        patch_ids: ``git patch-id --stable``, by patch (empty on failure).
    """

    series: Series
    reports: tuple[PatchReport, ...]
    before: Mapping[str, SourceFile | None]
    after: Mapping[str, SourceFile | None]
    tree: str = ""
    patched_tree: str = ""
    patch_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[PatchReport, ...]:
        return tuple(report for report in self.reports if report.problems)


@dataclass
class _State:
    """The tree while the series goes in, and every version of each file so far with who made it."""

    files: dict[str, SourceFile | None]
    made: dict[str, list[tuple[str, SourceFile | None]]]


def try_series(series: Series, sources: Sources, *, drop: Sequence[str] = ()) -> AppliedSeries:
    """Apply every patch that applies, in memory, and report them all.

    Args:
        series: the patches.
        sources: the upstream's files at :attr:`Series.paths`, as far as they exist there.
        drop: patterns (fnmatch, whole path) of files to leave out, such as ``test/*``.
    """
    before: dict[str, SourceFile | None] = {
        path: sources.get(path) for path in series.paths if not rule_for(path, drop)
    }
    state = _State(dict(before), {path: [("the pinned upstream", file)] for path, file in before.items()})
    reports = [_apply_patch(patch, state, drop) for patch in series.patches]
    return AppliedSeries(series, tuple(reports), before, dict(state.files))


def apply_series(
    series: Series,
    sources: Sources,
    store: GitStore,
    *,
    drop: Sequence[str] = (),
    overlay: str | None = None,
    anew: bool = False,
) -> AppliedSeries:
    """Apply a whole series, or nothing.

    Args:
        series, sources, drop: as in :func:`try_series`.
        store: where git applies it a second time, and where its objects are kept.
        overlay: whose series it is, for hints.
        anew: whether git is asked although what it said before is kept.

    Raises:
        PatchConflict: a patch does not apply (all of them are named), or git makes something else of it.
    """
    tried = try_series(series, sources, drop=drop)
    if tried.failed:
        raise conflict_error(tried, overlay=overlay)
    tree, patched_tree = _tree_of(tried.before), _tree_of(tried.after)
    _check_with_git(tried, tree, patched_tree, store, anew=anew)
    return replace(tried, tree=tree, patched_tree=patched_tree, patch_ids=_patch_ids(series, store))


def conflict_error(
    tried: AppliedSeries, *, hint: str | None = None, overlay: str | None = None
) -> PatchConflict:
    """The error for a series of which at least one patch does not apply; it names every one.

    Args:
        tried: what was tried.
        hint: what to do, where that is not to repair the series or to ask whether upstream has the fix.
        overlay: whose series it is, for hints; None where it may be that of several.
    """
    first = tried.failed[0]
    problem = first.problems[0]
    lines = []
    for report in tried.failed:
        for found in report.problems:
            at = f", hunk {found.hunk}" if found.hunk else ""
            lines.append(f"{report.patch.name}: {found.path}{at}: {found.kind}: {found.what}")
            lines += [
                f"    {key} {value}"
                for key, value in (("expected", found.expected), ("found", found.found))
                if value
            ]
            lines += [f"    | {line}" for line in found.details.splitlines()]
    good = len(tried.reports) - len(tried.failed)
    return PatchConflict(
        f"{len(tried.failed)} of {counted(len(tried.reports), 'patch', 'patches')} "
        f"{'does' if len(tried.failed) == 1 else 'do'} not apply; nothing was written",
        where=f"patches/{tried.series.name}/{first.patch.name}.patch, {problem.path}"
        + (f", hunk {problem.hunk}" if problem.hunk else ""),
        expected=problem.expected or None,
        found=problem.found or problem.what,
        hint=problem.advice(tried.series.name)
        or hint
        or f"{good} {'applies' if good == 1 else 'apply'}; {_ways_on(tried.series.name, overlay)}",
        details="\n".join(lines),
        facts={"patches": [_report_facts(report) for report in tried.reports]},
    )


def _ways_on(series: str, overlay: str | None) -> str:
    """What to do about a series that does not apply; an overlay can also be taken to another release."""
    asked = f"overlay diff {overlay}" if overlay else "overlay diff"
    ways = f"{asked} tells whether upstream has the fix; to fix the patch: overlay patch edit {series}"
    return f"{ways}; for another release: overlay rebase {overlay} --onto RELEASE" if overlay else ways


def _report_facts(report: PatchReport) -> dict[str, object]:
    return {
        "name": report.patch.name,
        "applies": not report.problems,
        "offsets": report.offsets,
        "problems": [asdict(problem) for problem in report.problems],
    }


def _apply_patch(patch: Patch, state: _State, drop: Sequence[str]) -> PatchReport:
    """Apply one patch to the state, or leave the state as it was and say why."""
    draft: dict[str, SourceFile | None] = {}
    files = ChainMap(draft, state.files)
    changes: list[FileChange] = []
    dropped: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for diff in patch.files:
        if rule := rule_for(diff.path, drop):
            dropped.append((diff.path, rule))
            continue
        outcome = _change_file(diff, files)
        if isinstance(outcome, FileChange):
            changes.append(outcome)
            if outcome.kind in ("delete", "rename"):
                draft[outcome.old_path] = None
            if outcome.kind != "delete":
                draft[outcome.path] = outcome.post
        else:
            problems += outcome
    if problems:
        named = tuple(_name_origin(problem, patch, state) for problem in problems)
        return PatchReport(patch, tuple(changes), tuple(dropped), named)
    state.files |= draft
    for path, file in draft.items():
        state.made.setdefault(path, []).append((f"patch {patch.name}", file))
    return PatchReport(patch, tuple(changes), tuple(dropped), ())


def _change_file(diff: FileDiff, files: Mapping[str, SourceFile | None]) -> FileChange | list[Problem]:
    """What ``diff`` makes of the tree's file, or every reason why it cannot."""
    pre = None if diff.kind == "create" else files.get(diff.old_path)
    if problem := _refusal(diff, files, pre):
        return [problem]
    placed, problems = place_hunks(diff, pre)
    if problems:
        return problems
    data = apply_hunks(diff.hunks, placed, split_lines(pre.data) if pre else [])
    if diff.kind == "delete":
        if data:
            return [
                Problem("content", diff.old_path, None, "file to be deleted has more than the patch removes")
            ]
        return FileChange(diff.old_path, diff.old_path, "delete", pre, None, tuple(placed))
    mode = pre.mode if pre else "100644"
    if diff.new_mode and diff.new_mode != diff.old_mode:
        mode = diff.new_mode
    return FileChange(diff.new_path, diff.old_path, diff.kind, pre, SourceFile(mode, data), tuple(placed))


def _refusal(
    diff: FileDiff, files: Mapping[str, SourceFile | None], pre: SourceFile | None
) -> Problem | None:
    """Why a file's diff cannot be applied whatever its hunks say."""
    if diff.binary:
        return Problem(
            "binary",
            diff.path,
            None,
            "binary change",
            found="no text hunks",
            expected="text, or a path rule that drops it",
        )
    modes = {diff.old_mode, diff.new_mode, pre.mode if pre else None}
    if "120000" in modes:
        return Problem(
            "unsupported", diff.path, None, "symbolic link", found="mode 120000", expected="a regular file"
        )
    if diff.kind == "create" and files.get(diff.new_path) is not None:
        return Problem("exists", diff.new_path, None, "file to be created is already there")
    if diff.kind != "create" and pre is None:
        return Problem("missing", diff.old_path, None, "file is not in the tree")
    if diff.kind in ("rename", "copy") and files.get(diff.new_path) is not None:
        return Problem("exists", diff.new_path, None, f"target of the {diff.kind} is already there")
    return None


def _name_origin(problem: Problem, patch: Patch, state: _State) -> Problem:
    """Say who did what this problem finds already done: upstream, or which earlier patch."""
    if problem.kind not in ("already", "exists"):
        return problem
    wanted: Sequence[bytes] = []
    if problem.hunk:
        # The last: where a patch changes one file twice, its second change meets what the first one did.
        *_, wanted = (
            diff.hunks[problem.hunk - 1].new
            for diff in patch.files
            if problem.path in (diff.old_path, diff.new_path) and len(diff.hunks) >= problem.hunk
        )
    who = next(
        (
            name
            for name, source in state.made.get(problem.path, ())
            if source and (not wanted or find_lines(split_lines(source.data), wanted))
        ),
        f"an earlier part of patch {patch.name}",
    )
    return replace(
        problem,
        what=f"{problem.what}, from {who}",
        expected="each change once",
        found=f"{problem.found} ({who})" if problem.found else who,
    )


# Part of what names a remembered agreement: another number whenever git is asked in another way.
AGREEMENT_SCHEMA = 1


def _check_with_git(
    tried: AppliedSeries, tree: str, patched_tree: str, store: GitStore, *, anew: bool
) -> None:
    """git must make the same of the series; that it did is remembered for each series and sources.

    Args:
        tree, patched_tree: ids of the trees before and after, as they were computed here.
        anew: whether it is asked whatever is remembered.

    Raises:
        PatchConflict: git refuses it, or makes other objects of it.
    """
    kept, key = Store(store.path / "opinions"), _agreement_key(tried)
    agreed = f"{tree} {patched_tree}"
    if not anew and kept.get(key) == agreed.encode():
        return
    files, found = _ask_git(tried, store)
    wanted = {path: f"{source.mode} {source.blob}" for path, source in tried.after.items() if source}
    if files != wanted or found != agreed:
        differing = sorted(
            path for path in files.keys() | wanted.keys() if files.get(path) != wanted.get(path)
        )
        raise PatchConflict(
            "git makes other files of the series; nothing was written",
            where=", ".join(differing) or f"patches/{tried.series.name}",
            expected=", ".join(str(wanted.get(path)) for path in differing) or f"trees {agreed}",
            found=", ".join(str(files.get(path)) for path in differing) or f"trees {found}",
            hint="please report this with the patch",
        )
    kept.put(key, agreed.encode())


def _agreement_key(tried: AppliedSeries) -> str:
    """Names everything that git is given: the patches' bytes, and modes and blobs of the sources."""
    digest = hashlib.sha256(f"{AGREEMENT_SCHEMA} {tried.series.digest}".encode())
    for report in tried.reports:
        digest.update(repr(report.dropped).encode())
    for path, source in sorted(tried.before.items()):
        digest.update(repr((path, source and source.mode, source and source.blob)).encode())
    return digest.hexdigest()


def _tree_of(files: Mapping[str, SourceFile | None]) -> str:
    """The id of the git tree that holds exactly these files."""
    return tree_id({path: TreeEntry(one.mode, one.blob) for path, one in files.items() if one})


def _ask_git(tried: AppliedSeries, store: GitStore) -> tuple[dict[str, str], str]:
    """Have git apply the series to a temporary index.

    Returns:
        Modes and blob ids of the result, and the ids of the trees before and after.
    """
    present = {path: source for path, source in tried.before.items() if source is not None}
    ids = store.write_blobs([source.data for source in present.values()])
    entries = {
        path: TreeEntry(source.mode, oid) for (path, source), oid in zip(present.items(), ids, strict=True)
    }
    with store.index() as index:
        index.put(entries)
        tree = index.write_tree()
        try:
            for text in _git_runs(tried.reports):
                index.apply(text)
        except GitError as error:
            raise PatchConflict(
                "git does not apply what was found to apply; nothing was written",
                where=f"patches/{tried.series.name}",
                found=error.stderr,
                hint="please report this with the patch",
            ) from error
        made = {path: f"{entry.mode} {entry.blob}" for path, entry in index.entries().items()}
        return made, f"{tree} {index.write_tree()}"


def _patch_ids(series: Series, store: GitStore) -> dict[str, str]:
    """``git patch-id --stable`` of every patch, by name; empty for a diff that has none."""
    numbered = {f"{number:040x}": patch for number, patch in enumerate(series.patches, 1)}
    text = b"".join(b"commit " + key.encode() + b"\n" + patch.diff + b"\n" for key, patch in numbered.items())
    found = dict.fromkeys(series.names, "")
    for line in store.git("patch-id", "--stable", stdin=text).decode().splitlines():
        patch_id, key = line.split()
        found[numbered[key].name] = patch_id
    return found


def _git_runs(reports: Sequence[PatchReport]) -> list[bytes]:
    """The series in as few runs of git-apply as are right.

    One run may hold many patches that change lines. Where files come, go or move, a patch needs its own: in
    one run git loses the deletion of a file that was changed before. A patch of which rules dropped every
    file is left out, since git refuses to apply nothing.
    """
    runs: list[bytes] = []
    open_run = False
    for report in reports:
        text = _for_git(report)
        plain = all(change.kind == "modify" for change in report.files)
        if text and plain and open_run:
            runs[-1] += text
        elif text:
            runs.append(text)
            open_run = plain
    return runs


def _for_git(report: PatchReport) -> bytes:
    """The patch for ``git apply``: as it is; where it moved or files were dropped, with its true lines."""
    if not report.dropped and not report.offsets and _counts_on(report.patch):
        diff = report.patch.diff
        return diff if diff.endswith(b"\n") else diff + b"\n"
    return b"".join(render_change(change, diff) for change, diff in _pairs(report))


def _counts_on(patch: Patch) -> bool:
    """Whether every hunk's line in the post-image is what its line in the pre-image makes it.

    git begins to look for a hunk there, and with equal blocks takes the one that is nearest.
    """
    for diff in patch.files:
        shift = 0
        for hunk in diff.hunks:
            old = hunk.old_start + (not hunk.old_count)
            if old + shift != hunk.new_start + (not hunk.new_count):
                return False
            shift += hunk.new_count - hunk.old_count
    return True


def _pairs(report: PatchReport) -> list[tuple[FileChange, FileDiff]]:
    left_out = {path for path, _ in report.dropped}
    diffs = [diff for diff in report.patch.files if diff.path not in left_out]
    return list(zip(report.files, diffs, strict=True))


def render_change(change: FileChange, diff: FileDiff) -> bytes:
    """A file's diff with its hunks on the lines they landed on."""
    old, new = (
        b"a/" + change.old_path.encode("utf-8", "surrogateescape"),
        b"b/" + change.path.encode("utf-8", "surrogateescape"),
    )
    out = [b"diff --git " + quoted_path(old) + b" " + quoted_path(new) + b"\n"]
    if change.kind == "create" and change.post:
        out.append(f"new file mode {change.post.mode}\n".encode())
    elif change.kind == "delete" and change.pre:
        out.append(f"deleted file mode {change.pre.mode}\n".encode())
    elif change.pre and change.post and change.pre.mode != change.post.mode:
        out.append(f"old mode {change.pre.mode}\nnew mode {change.post.mode}\n".encode())
    if change.kind in ("rename", "copy"):
        out.append(change.kind.encode() + b" from " + quoted_path(old[2:]) + b"\n")
        out.append(change.kind.encode() + b" to " + quoted_path(new[2:]) + b"\n")
    if diff.hunks:
        out.append(b"--- " + (b"/dev/null" if change.kind == "create" else quoted_path(old)) + b"\n")
        out.append(b"+++ " + (b"/dev/null" if change.kind == "delete" else quoted_path(new)) + b"\n")
    shift = 0
    for hunk, place in zip(diff.hunks, change.hunks, strict=True):
        new_start = (
            place.landed
            + shift
            + (hunk.new_start - hunk.old_start if not (hunk.old_count and hunk.new_count) else 0)
        )
        out.append(f"@@ -{place.landed},{hunk.old_count} +{max(new_start, 0)},{hunk.new_count} @@\n".encode())
        out += [
            line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
            for line in hunk.lines
        ]
        shift += hunk.new_count - hunk.old_count
    return b"".join(out)


def quoted_path(path: bytes) -> bytes:
    """A path as git quotes it in a diff."""
    if all(32 < byte < 127 and byte not in b'"\\' for byte in path):
        return path
    return (
        b'"'
        + b"".join(bytes([b]) if 32 <= b < 127 and b not in b'"\\' else b"\\%03o" % b for b in path)
        + b'"'
    )
