"""A git work tree of a series: the pinned release, and one commit a patch on top of it, for plain git.

The repository is a partial clone of the release in the cache, checked out sparsely: the files that the
series touches and their neighbours are there, any other comes with ``git sparse-checkout add PATH``.
``refs/patches/upstream-head`` is the release, ``refs/patches/exported`` what was written back last. A
commit's patch is named by the trailer ``Overlay-Patch``, which export takes out again.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import InvalidInput, PatchConflict, UsageError
from builder.patch.canonical import Draft, Files
from builder.patch.message import Head, commit_message, raw_date, read_commit, split_author
from builder.patch.patch import check_patch_name
from builder.source.files import SourceFile
from builder.source.git import GitError, GitStore, run_git

NAME_TRAILER = "Overlay-Patch"
UPSTREAM_HEAD = "refs/patches/upstream-head"
EXPORTED = "refs/patches/exported"
RESCUED = "refs/patches/rescued"
_FOLDING = "overlay.folding"  # while changes are folded in: the commit that holds all of them
Versions = Mapping[str, SourceFile | None]
_OURS = {
    "GIT_COMMITTER_NAME": "overlay", "GIT_COMMITTER_EMAIL": "overlay@localhost",
    "GIT_AUTHOR_NAME": "overlay", "GIT_AUTHOR_EMAIL": "overlay@localhost",
    "GIT_EDITOR": "true", "GIT_SEQUENCE_EDITOR": "true",
}  # fmt: skip


@dataclass(frozen=True)
class State:
    """Where the work in a work tree stands.

    Args:
        busy: ``rebase`` or ``am`` while one is under way, which only the user can end.
        dirty: files with changes that are in no commit.
        unexported: whether there are commits that were not written back.
    """

    busy: str | None
    dirty: tuple[str, ...]
    unexported: bool

    @property
    def idle(self) -> bool:
        """Nothing in here would be lost."""
        return self.busy is None and not self.dirty and not self.unexported


class WorkTree:
    """An open work tree.

    Args:
        path: its directory.
        series: the series' name; its branch has the same.
    """

    def __init__(self, path: Path, series: str) -> None:
        self.path = path
        self.series = series

    @property
    def store(self) -> GitStore:
        """Its repository, to read objects from."""
        return GitStore(self.path / ".git")

    def exists(self) -> bool:
        return (self.path / ".git" / "HEAD").is_file()

    def git(self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        """Run git in the work tree without anybody's configuration.

        Args:
            arguments: git's arguments.
            stdin: bytes to feed.
            env: variables on top of ours.

        Raises:
            GitError: it failed.
        """
        return run_git(arguments, cwd=self.path, stdin=stdin, env=_OURS | dict(env or {}))

    def state(self) -> State:
        """Where the work stands."""
        git = self.path / ".git"
        busy = None
        if (git / "rebase-apply" / "applying").exists():
            busy = "am"
        elif (git / "rebase-merge").exists() or (git / "rebase-apply").exists():
            busy = "rebase"
        rows = self.git("status", "--porcelain=v1", "-z", "--untracked-files=normal").split(b"\0")
        dirty = tuple(os.fsdecode(row[3:]) for row in rows if len(row) > 3)
        head, exported = self.resolve("HEAD"), self.resolve(EXPORTED)
        return State(busy, dirty, head != exported)

    def require_settled(self) -> None:
        """Refuse to go on while git waits for the user, or changes are in no commit.

        Raises:
            PatchConflict: a rebase or am stopped, with the commands that go on.
            UsageError: there are uncommitted changes.
        """
        state = self.state()
        if state.busy:
            raise self.stopped(state.busy)
        if state.dirty:
            raise UsageError(
                "work tree has changes that are in no commit",
                where=str(self.path),
                found=", ".join(state.dirty[:10]),
                hint=f"commit them (git commit --amend, git commit), or fold them into a patch: "
                f"overlay patch refresh {self.series} PATCH",
            )

    def stopped(self, busy: str) -> PatchConflict:
        """The error for a conflict that git left in the work tree, with the next steps."""
        unmerged = self.git("diff", "--name-only", "--diff-filter=U", "-z").split(b"\0")
        # Where git am stopped, the tree is being made, and holds nothing else.
        give_up = "git rebase --abort" if busy == "rebase" else f"rm -r {shlex.quote(str(self.path))}"
        files = ", ".join(sorted({os.fsdecode(name) for name in unmerged if name}))
        return PatchConflict(
            f"git {busy} stopped and waits for you",
            where=str(self.path),
            found=f"conflicts in {files}" if files else None,
            hint=f"cd {self.path}; resolve, git add FILES, git {busy} --continue; then: "
            f"overlay patch export {self.series}. To give it up: {give_up}",
            facts={"worktree": str(self.path), "unmerged": [os.fsdecode(name) for name in unmerged if name]},
        )

    def drafts(self) -> list[Draft]:
        """Every commit on top of the release as a patch that is to be written, oldest first.

        Raises:
            InvalidInput: one is a merge, or two claim one name.
        """
        commits = self.git("rev-list", "--reverse", f"{UPSTREAM_HEAD}..HEAD").decode().split()
        drafts: list[Draft] = []
        for commit, changes in zip(commits, self._changes(commits), strict=True):
            head = read_commit(self.git("cat-file", "commit", commit))
            name = self._name(head, [draft.name for draft in drafts])
            drafts.append(Draft(name, head.without_trailer(NAME_TRAILER), *changes))
        return drafts

    def mark_exported(self, key: str) -> None:
        """Remember that what there is was written back, and to which series."""
        self.git("update-ref", EXPORTED, "HEAD")
        self.git("config", "overlay.series", key)

    def exported_key(self) -> str:
        """The key (:func:`series_key`) of the series that this work tree was made of or written back to."""
        return self.git("config", "--default", "", "--get", "overlay.series").decode().strip()

    def fold(self, patch: str) -> None:
        """Put the changes that are in no commit into a patch's commit, and the later ones on top again.

        Raises:
            InvalidInput: there are no changes, or no commit of this patch.
            PatchConflict: a later patch conflicts; the work tree is left as git leaves it.
        """
        commit = self._commit_of(patch)
        self.git("add", "--all")
        if not self.git("diff", "--cached", "--name-only"):
            raise InvalidInput("there are no changes to fold in", where=str(self.path))
        self.git("commit", "--quiet", "--no-verify", f"--fixup={commit}")
        self._squash()

    def resume(self) -> bool:
        """Finish a :meth:`fold` that was killed: its commit is folded in, whatever git had done by then.

        What the work tree holds is kept under :data:`RESCUED` before git's half-made rebase is taken back.

        Returns:
            Whether there was one.

        Raises:
            PatchConflict: as :meth:`fold`.
        """
        tip = self.git("config", "--default", "", "--get", _FOLDING).decode().strip()
        if tip:
            (self.path / ".git" / "index.lock").unlink(missing_ok=True)  # of the git that was killed with us
            self.git("add", "--all")
            tree = self.git("write-tree").decode().strip()
            kept = self.git("commit-tree", "-m", "as it was found", "-p", "HEAD", tree).decode().strip()
            self.git("update-ref", RESCUED, kept)
            if self.state().busy == "rebase":
                self.git("rebase", "--quit")
            self.git("checkout", "--quiet", "--force", "-B", self.series, tip)
            self.git("config", "--unset", _FOLDING)
        subjects = self.git("log", "--format=%s", f"{UPSTREAM_HEAD}..HEAD").split(b"\n")
        if not any(subject.startswith(b"fixup! ") for subject in subjects) or self.state().busy:
            return bool(tip)
        self._squash()
        return True

    def _squash(self) -> None:
        self.git("config", _FOLDING, str(self.resolve("HEAD")))
        try:
            self._rebase("rebase", "--quiet", "--interactive", "--autosquash", UPSTREAM_HEAD)
        finally:  # git ended by itself, and its state is the user's: only a kill leaves the mark
            self.git("config", "--unset", _FOLDING)

    def differing(self, before: Versions, after: Versions) -> list[str]:
        """The files that are not, in the last commit, what a series makes of them.

        Args:
            before, after: every file that the series touches; None where there is none.
        """
        listing = self.git("diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", UPSTREAM_HEAD, "HEAD")
        (rows,) = _raw_rows(b"HEAD\0" + listing, ["HEAD"])
        made = {path: (new if set(new[1]) != {"0"} else None) for path, _, new in rows}
        changed = {path: file for path, file in after.items() if file != before[path]}
        wanted = {path: file and (file.mode, file.blob) for path, file in changed.items()}
        paths = made.keys() | wanted.keys()
        return sorted(path for path in paths if made.get(path, "") != wanted.get(path, ""))

    def stop_at(self, patch: str) -> None:
        """Begin a rebase that stops at a patch's commit, for the user to amend.

        Raises:
            InvalidInput: there is no commit of this patch.
        """
        commit = self._commit_of(patch)
        editor = f"sed -i -e 's/^pick {commit}/edit {commit}/'"
        self._rebase(
            "-c", "core.abbrev=40", "rebase", "--quiet", "--interactive", f"{commit}~1",
            env={"GIT_SEQUENCE_EDITOR": editor},
        )  # fmt: skip

    def add_empty(self, name: str, head: Head) -> None:
        """A commit that changes nothing yet, for a new patch."""
        author, mail = split_author(head.author)
        message = commit_message(head.with_trailer(NAME_TRAILER, name))
        self.git(
            "commit", "--quiet", "--allow-empty", "--no-verify", "--cleanup=verbatim",
            f"--date={raw_date(head.date)}", "--file=-", stdin=message,
            env={"GIT_AUTHOR_NAME": os.fsdecode(author), "GIT_AUTHOR_EMAIL": os.fsdecode(mail)},
        )  # fmt: skip

    def resolve(self, name: str) -> str | None:
        """The commit that ``HEAD`` or a reference stands for; None when there is none."""
        from git import Repo
        from git.refs import SymbolicReference

        with Repo(self.path) as repository:
            try:
                return str(SymbolicReference.dereference_recursive(repository, name))
            except ValueError:
                return None

    def _name(self, head: Head, taken: Sequence[str]) -> str:
        """The patch that a commit stands for; a new one is named after its subject."""
        named = [value for key, value in head.trailers() if key == NAME_TRAILER]
        name = named[-1] if named else slug(head.subject)
        check_patch_name(name, where=f"{self.path}: {os.fsdecode(head.subject)}")
        if name in taken:
            raise InvalidInput(
                "two commits are of one patch",
                where=str(self.path),
                found=name,
                hint=f"squash them, or give one another {NAME_TRAILER} line: git rebase -i {UPSTREAM_HEAD}",
            )
        return name

    def _commit_of(self, patch: str) -> str:
        commits = self.git("rev-list", f"{UPSTREAM_HEAD}..HEAD").decode().split()
        for commit in commits:
            head = read_commit(self.git("cat-file", "commit", commit))
            if self._name(head, ()) == patch:
                return commit
        raise InvalidInput("no commit in the work tree is of this patch", where=str(self.path), found=patch)

    def _rebase(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        try:
            self.git(*arguments, env=env)
        except GitError as error:
            if busy := self.state().busy:
                raise self.stopped(busy) from error
            raise

    def _changes(self, commits: Sequence[str]) -> Iterator[tuple[Files, Files]]:
        """The files that each commit changes, before and after."""
        for commit in commits:
            if len(self.git("rev-list", "--parents", "-n1", commit).split()) != 2:
                raise InvalidInput(
                    "commit is a merge", where=str(self.path), found=commit, hint="rebase instead of merging"
                )
        listing = self.git(
            "diff-tree", "--stdin", "-r", "-z", "--no-renames", "--no-abbrev",
            stdin="".join(f"{commit}\n" for commit in commits).encode(),
        )  # fmt: skip
        rows = _raw_rows(listing, commits)
        wanted = {blob for changes in rows for _, old, new in changes for _, blob in (old, new)}
        blobs = self.store.blobs(blob for blob in wanted if set(blob) != {"0"})
        for changes in rows:
            before = {p: SourceFile(mode, blobs[blob]) for p, (mode, blob), _ in changes if blob in blobs}
            after = {p: SourceFile(mode, blobs[blob]) for p, _, (mode, blob) in changes if blob in blobs}
            yield before, after


_Side = tuple[str, str]


def _raw_rows(listing: bytes, commits: Sequence[str]) -> list[list[tuple[str, _Side, _Side]]]:
    """``git diff-tree --stdin -z``: for each commit the path, and mode and blob of both sides."""
    rows: dict[str, list[tuple[str, _Side, _Side]]] = {commit: [] for commit in commits}
    current: list[tuple[str, _Side, _Side]] = []
    fields = iter(listing.split(b"\0"))
    for field in fields:
        if field.startswith(b":"):
            old_mode, new_mode, old, new, _ = field[1:].decode().split(" ")
            current.append((os.fsdecode(next(fields)), (old_mode, old), (new_mode, new)))
        elif field:
            current = rows[field.decode().strip()]
    return [rows[commit] for commit in commits]


def slug(subject: bytes) -> str:
    """A patch name out of a subject."""
    text = subject.decode("ascii", "ignore").lower()
    name = "-".join(re.findall("[a-z0-9]+", text))[:60].strip("-")
    return name or "patch"
