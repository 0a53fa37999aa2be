"""Commits whose repository is at hand, merged into a series' tree as a rebase merges them.

Where a commit's files are not those of the release, the place of its hunks is not looked for: git merges the
commit's own pre-image and post-image with the file that is there, and what that changes becomes the patch.
"""

from __future__ import annotations

import re
from pathlib import Path

from builder.errors import InvalidInput, PatchConflict
from builder.patch.canonical import diff_all
from builder.patch.diff import NULL_BLOB, FileDiff, parse_diff
from builder.source.files import SourceFile
from builder.source.git import GitError, GitStore, run_git
from builder.source.merge_tree import Files, ThreeWay, open_scratch

_START = re.compile(rb"^diff --git ", re.MULTILINE)


def needs_merge(diff: FileDiff, now: SourceFile | None) -> bool:
    """Whether a commit's file is another than the one that is there now."""
    blobs = (diff.old_blob, diff.new_blob)
    if now is None or diff.binary or not diff.hunks or diff.kind == "create" or None in blobs:
        return False
    return diff.old_blob not in (NULL_BLOB, now.blob)


def merge_file(name: str, diff: FileDiff, now: SourceFile, repository: Path) -> FileDiff:
    """What a commit's change of one file becomes on the file that is there.

    Args:
        name: the patch, for errors.
        diff: the change, with whole blob ids.
        now: the file at ``diff.old_path`` as it is.
        repository: has both blobs.

    Raises:
        PatchConflict: git cannot merge it without a conflict, or nothing is left of it.
        InvalidInput: the repository lacks a blob, or what it has there is no text.
    """
    where = f"{name}, {diff.path}"
    base, theirs = _sides(diff, now, repository, where)
    ours = {diff.old_path: now}
    with open_scratch() as scratch:
        (merged,) = scratch.merge([ThreeWay(base, ours, theirs)])
    if merged.conflicts:
        marked = b"".join(merged.files[path].data for path in merged.conflicts if path in merged.files)
        raise PatchConflict(
            "the commit's change of a file does not merge into the release with the series on it",
            where=where,
            expected=f"blob {diff.old_blob}, or one that git can merge it into",
            found=f"blob {now.blob}",
            hint="rebase the commits onto the release in their repository, and import them from there",
            details=_conflicts(marked),
        )
    if merged.files == ours:
        raise PatchConflict(
            "the commit's change of a file is already there",
            where=where,
            expected="each change once",
            found=f"blob {now.blob} has all of it",
            hint="leave the commit out of the range",
        )
    (text,) = diff_all([(ours, merged.files)])
    start = _START.search(text)
    (made,) = parse_diff(text[start.start() if start else 0 :], where=where)
    return made


def _sides(diff: FileDiff, now: SourceFile, repository: Path, where: str) -> tuple[Files, Files]:
    """The commit's file before and after."""
    wanted = [blob for blob in (diff.old_blob, diff.new_blob) if blob and blob != NULL_BLOB]
    try:
        blobs = GitStore(_git_directory(repository)).blobs(wanted)
    except GitError as error:
        raise InvalidInput(
            "the repository lacks a file of the commit", where=where, found=str(error)
        ) from error
    mode = diff.old_mode or now.mode
    base = {diff.old_path: SourceFile(mode, blobs[diff.old_blob or ""])}
    if diff.kind == "delete":
        return base, {}
    theirs = {diff.new_path: SourceFile(diff.new_mode or mode, blobs[diff.new_blob or ""])}
    return (base, theirs | base) if diff.kind == "copy" else (base, theirs)


def _git_directory(repository: Path) -> Path:
    return Path(run_git(["rev-parse", "--absolute-git-dir"], cwd=repository).decode().rstrip("\n"))


def _conflicts(marked: bytes) -> str:
    """The parts between conflict markers, for people."""
    shown: list[str] = []
    inside = False
    for line in marked.decode("utf-8", "replace").splitlines():
        inside = inside or line.startswith("<<<<<<< ")
        if inside:
            shown.append(line)
        inside = inside and not line.startswith(">>>>>>> ")
    return "\n".join(shown[:60])
