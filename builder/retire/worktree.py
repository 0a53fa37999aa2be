"""A real git work tree in which patches are carried to a new release, one commit a patch.

It is an ordinary repository: conflicts are as git leaves them, and every git tool works in it. The patches as
they were are commits of it as well, on the old release, so that git merges with the right base and can show
the difference between a patch before and after.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.author.export import head_of
from builder.errors import InvalidInput, PatchConflict
from builder.patch.apply import PatchReport
from builder.patch.message import Head, commit_message, raw_date, read_commit, split_author
from builder.project.whole_file import write_whole
from builder.retire.text import Versions
from builder.source.files import SourceFile
from builder.source.git import GitError, GitIndex, GitStore, TreeEntry, run_git
from builder.source.merge_tree import borrow_objects
from builder.source.upstream import Upstream

NAME_TRAILER = "Overlay-Patch"
_STATE = "overlay-rebase.json"
_LISTS = ("order", "shown", "needless", "emptied")
_MERGE = (
    "-c",
    "merge.directoryRenames=false",
    "-c",
    "merge.renameLimit=0",
    "-c",
    "merge.conflictStyle=diff3",
)


@dataclass(frozen=True)
class State:
    """How far a rebase has come; kept in the repository's own directory.

    Args:
        order: the patches to carry, in order.
        originals: the commit of each on the old release.
        base: the commit of the new release.
        settings: what the command line asked for, to go on with it.
        retired: the patches that are left out, and why.
        next: number of the patch that is to be picked next.
        stopped: the patch that conflicted, and HEAD before it.
        shown: merges that a person was shown and has to accept.
        to_rework: the patches that were judged to need a person, and why.
        needless: those among ``retired`` that upstream has not: it needs them no more for another reason.
        emptied: patches of which git left nothing when it merged them; no person left those out.
        picks: where the new release has a part of a patch: the commit of the rest, which is picked instead.
    """

    order: tuple[str, ...]
    originals: Mapping[str, str]
    base: str
    settings: Mapping[str, Any]
    retired: Mapping[str, str]
    next: int = 0
    stopped: tuple[str, str] | None = None
    shown: tuple[str, ...] = ()
    to_rework: Mapping[str, str] = field(default_factory=dict)
    needless: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()
    picks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Carried:
    """A patch in the work tree."""

    name: str
    commit: str
    head: Head
    before: Mapping[str, SourceFile] = field(repr=False)
    after: Mapping[str, SourceFile] = field(repr=False)


class WorkTree:
    """The repository at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = GitStore(path / ".git")

    @classmethod
    def create(
        cls,
        path: Path,
        pin: Upstream,
        target: Upstream,
        reports: Sequence[PatchReport],
        keep: Sequence[str],
        settings: Mapping[str, Any],
        retired: Mapping[str, str],
        to_rework: Mapping[str, str] | None = None,
        needless: Sequence[str] = (),
        there: Mapping[str, Versions] | None = None,
    ) -> WorkTree:
        """Make it: the new release checked out, the patches as commits on the old one.

        Args:
            path: a directory that does not exist.
            pin, target: the old and the new release.
            reports: the whole series on the old release.
            keep: the patches to carry.
            settings: what the command line asked for.
            retired: the patches that are left out, and why.
            to_rework: the patches that were judged to need a person, and why.
            needless: those of the retired that upstream has not.
            there: by patch, its files before it with those of its hunks that the new release has already.

        Raises:
            InvalidInput: there is something at the path.
            PatchConflict: a patch to carry does not apply to the old release.
        """
        if path.exists():
            raise InvalidInput(
                "there is a work tree already",
                where=str(path),
                hint="go on with --continue, or give it up with --abort",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.new")
        if draft.exists():
            shutil.rmtree(draft)
        draft.mkdir()
        run_git(["init", "--quiet", "--object-format=sha1"], cwd=draft)
        tree = cls(draft)
        borrow_objects(tree.store, [pin.main, target.main])
        for key, value in (("user.name", "overlay"), ("user.email", "overlay@localhost")):
            tree.store.git("config", key, value)
        base = tree._commit(f"{target.main.commit}^{{tree}}", None, b"upstream\n", {})
        tree.git("reset", "--quiet", "--hard", base)
        originals, picks = tree._originals(pin, reports, keep, there or {})
        state = State(tuple(keep), originals, base, settings, retired)
        tree.write_state(
            replace(state, to_rework=dict(to_rework or {}), needless=tuple(needless), picks=picks)
        )
        draft.rename(path)
        return cls(path)

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run git in the work tree."""
        return run_git([*_MERGE, *arguments], cwd=self.path, stdin=stdin, env={"GIT_EDITOR": "true"})

    # --- state --------------------------------------------------------------------------------------------

    def state(self) -> State:
        """How far it has come.

        Raises:
            InvalidInput: there is no rebase at the path.
        """
        try:
            value = json.loads((self.store.path / _STATE).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise InvalidInput(
                "there is no rebase to go on with", where=str(self.path), hint="start one with --onto RELEASE"
            ) from error
        stopped = tuple(value.pop("stopped") or ()) or None
        lists = {key: tuple(value.pop(key, ())) for key in _LISTS}
        return State(stopped=stopped, **lists, **value)  # type: ignore[arg-type]

    def write_state(self, state: State) -> None:
        write_whole(self.store.path / _STATE, json.dumps(asdict(state), indent=1).encode())

    # --- carrying -----------------------------------------------------------------------------------------

    def carry(self) -> State:
        """Pick patch after patch, until one conflicts or all are there.

        Raises:
            PatchConflict: a patch conflicts; the work tree is as git leaves it.
        """
        state = self.state()
        while state.next < len(state.order):
            name = state.order[state.next]
            head = self.head()
            try:
                commit = state.picks.get(name, state.originals[name])
                self.git("cherry-pick", "--keep-redundant-commits", commit)
            except GitError as error:
                if not (self.store.path / "CHERRY_PICK_HEAD").exists():
                    raise
                self.write_state(replace(state, next=state.next + 1, stopped=(name, head)))
                raise self._conflict(name, error) from error
            if self._tree_of("HEAD") == self._tree_of(head):
                self.git("reset", "--quiet", "--hard", head)  # the release has all of it
                state = replace(state, emptied=(*state.emptied, name))
            state = replace(state, next=state.next + 1)
            self.write_state(state)
        return state

    def resume(self) -> None:
        """Commit what a person has resolved, as the patch that conflicted.

        Raises:
            PatchConflict: files still conflict.
        """
        state = self.state()
        if state.stopped is None:
            return
        name, _ = state.stopped
        unmerged = sorted(
            {row.split(b"\t")[1] for row in self.git("ls-files", "-u", "-z").split(b"\0") if row}
        )
        if unmerged:
            raise self._unresolved(name, [os.fsdecode(path) for path in unmerged])
        if (self.store.path / "CHERRY_PICK_HEAD").exists():
            self.git("add", "--update")
            if self._staged():
                self.git("commit", "--quiet", "--cleanup=verbatim", "-C", state.originals[name])
            else:
                self.git("cherry-pick", "--quit")
        elif self.git("status", "--porcelain", "--untracked-files=no").strip():
            raise self._unresolved(name, ["changes that are not committed"])
        self.write_state(replace(state, stopped=None))

    def carried(self) -> list[Carried]:
        """The patches that are commits on the new release, oldest first.

        Raises:
            InvalidInput: a commit does not say which patch it is, or changes something but files.
        """
        state = self.state()
        rows = self.git("rev-list", "--reverse", f"{state.base}..HEAD").decode().split()
        found = []
        for commit in rows:
            head = read_commit(self.git("cat-file", "commit", commit))
            names = [value for key, value in head.trailers() if key == NAME_TRAILER]
            if len(names) != 1 or names[0] not in state.order:
                raise InvalidInput(
                    "a commit does not say which patch it is",
                    where=f"{self.path}: {commit[:12]} {head.subject.decode(errors='replace')}",
                    expected=f"one trailer {NAME_TRAILER}: NAME, of {', '.join(state.order)}",
                    hint="squash it into its patch: git commit --fixup, git rebase -i --autosquash",
                )
            before, after = (self._changed(commit, side) for side in (f"{commit}^", commit))
            found.append(Carried(names[0], commit, head.without_trailer(NAME_TRAILER), before, after))
        return found

    def range_diff(self, original: str, commit: str) -> str:
        """How a patch differs from what it was (``git range-diff``)."""
        out = self.git("range-diff", "--no-color", f"{original}^..{original}", f"{commit}^..{commit}")
        return out.decode(errors="replace")

    def diff(self, commit: str) -> bytes:
        """What a commit changes."""
        return self.git("diff-tree", "-p", "-M50%", "--no-color", "--full-index", f"{commit}^", commit)

    def head(self) -> str:
        return self.git("rev-parse", "HEAD").decode().strip()

    def remove(self) -> None:
        """Remove the work tree."""
        gone = self.path.with_name(f".{self.path.name}.gone")
        if gone.exists():
            shutil.rmtree(gone)
        self.path.rename(gone)
        shutil.rmtree(gone)

    # --- inside -------------------------------------------------------------------------------------------

    def _originals(
        self,
        pin: Upstream,
        reports: Sequence[PatchReport],
        keep: Sequence[str],
        there: Mapping[str, Versions],
    ) -> tuple[dict[str, str], dict[str, str]]:
        """The patches as commits, and the rest of those of which the new release has a part."""
        made: dict[str, str] = {}
        picks: dict[str, str] = {}
        parent = self._commit(f"{pin.main.commit}^{{tree}}", None, b"upstream\n", {})
        with self.store.index() as index:
            index.read_tree(parent)
            for report in reports:
                if report.problems and report.patch.name in keep:
                    raise PatchConflict(
                        "patch does not apply to the release that it is of",
                        where=report.patch.name,
                        found=report.problems[0].what,
                        hint="fix the series first: overlay patch lint",
                    )
                if report.problems:
                    continue  # it is not in any tree, and is left out
                before = self._with_files(index, parent, there.get(report.patch.name, {}))
                for change in report.files:
                    if change.kind in ("delete", "rename"):
                        index.git("update-index", "--force-remove", "--", change.old_path)
                    if change.post is not None:
                        (blob,) = self.store.write_blobs([change.post.data])
                        index.put({change.path: TreeEntry(change.post.mode, blob)})
                head = head_of(report.patch).with_trailer(NAME_TRAILER, report.patch.name)
                name, mail = (part.decode("utf-8", "surrogateescape") for part in split_author(head.author))
                who = {
                    "GIT_AUTHOR_NAME": name,
                    "GIT_AUTHOR_EMAIL": mail,
                    "GIT_AUTHOR_DATE": f"@{raw_date(head.date)}",
                }
                tree, message = index.write_tree(), commit_message(head)
                parent = self._commit(tree, parent, message, who)
                made[report.patch.name] = parent
                if before is not None:
                    picks[report.patch.name] = self._commit(tree, before, message, who)
        return made, picks

    def _with_files(self, index: GitIndex, parent: str, files: Versions) -> str | None:
        """A commit of the index with these files in it; None without any."""
        present = {path: file for path, file in files.items() if file is not None}
        if not present:
            return None
        blobs = self.store.write_blobs([file.data for file in present.values()])
        rows = zip(present.items(), blobs, strict=True)
        index.put({path: TreeEntry(file.mode, blob) for (path, file), blob in rows})
        return self._commit(index.write_tree(), parent, b"what the release has already\n", {})

    def _commit(self, tree: str, parent: str | None, message: bytes, who: Mapping[str, str]) -> str:
        above = ["-p", parent] if parent else []
        committer = {"GIT_COMMITTER_DATE": "@0 +0000", "GIT_AUTHOR_DATE": "@0 +0000"}
        out = self.store.git("commit-tree", tree, *above, stdin=message, env=committer | dict(who))
        return out.decode().strip()

    def _tree_of(self, name: str) -> str:
        return self.git("rev-parse", f"{name}^{{tree}}").decode().strip()

    def _staged(self) -> bool:
        return bool(self.git("diff", "--cached", "--name-only").strip())

    def _changed(self, commit: str, side: str) -> dict[str, SourceFile]:
        """The files that a commit changes, as they are at ``side``."""
        out = self.git("diff-tree", "-r", "--no-renames", "--name-only", "-z", f"{commit}^", commit)
        entries = self.store.entries(side, [os.fsdecode(path) for path in out.split(b"\0")[:-1]])
        blobs = self.store.blobs(entry.blob for entry in entries.values())
        return {path: SourceFile(entry.mode, blobs[entry.blob]) for path, entry in entries.items()}

    def _conflict(self, name: str, error: GitError) -> PatchConflict:
        lines = [line for line in error.stderr.splitlines() if not line.startswith("hint:")]
        out = self.git("diff", "--no-color").decode(errors="replace")
        state = self.state()
        why = state.to_rework.get(name)
        later = [other for other in state.order[state.next :] if other in state.to_rework]
        return PatchConflict(
            f"{name} conflicts; it is open in a work tree, as git leaves it",
            where=str(self.path),
            found="; ".join([*self._unmerged(), *([why] if why else [])]) or " ".join(lines),
            hint=self._how_to_go_on(),
            expected=f"after it, these need a person too: {', '.join(later)}" if later else None,
            details=re.sub(r"^index .*\n", "", out, flags=re.MULTILINE)[:20_000],
            facts={
                "patch": name,
                "why": why,
                "later": later,
                "worktree": str(self.path),
                "files": self._unmerged(),
            },
        )

    def _how_to_go_on(self) -> str:
        return f"resolve the files, git add them, then: overlay rebase {self.overlay} --continue (or --abort)"

    @property
    def overlay(self) -> str:
        """The overlay that is rebased; ``NAME`` where the tree's state does not say."""
        return str(self.state().settings.get("name", "NAME"))

    def _unmerged(self) -> list[str]:
        out = self.git("diff", "--name-only", "--diff-filter=U", "-z")
        return [os.fsdecode(path) for path in out.split(b"\0")[:-1]]

    def _unresolved(self, name: str, files: Sequence[str]) -> PatchConflict:
        return PatchConflict(
            f"{name} is not resolved",
            where=str(self.path),
            found=", ".join(files),
            hint=self._how_to_go_on(),
            facts={"patch": name, "worktree": str(self.path), "files": list(files)},
        )
