"""A throw-away repository in which git merges a few files at a time.

Objects are written as git's loose objects right here: a merge of a few files then costs one git process for a
whole batch, and nothing is ever written into the user's cache or into a repository that is only looked at.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from builder.errors import Unavailable
from builder.source.files import SourceFile
from builder.source.git import GitError, GitStore
from builder.source.upstream import Mount
from builder.temporary import temporary_directory

Files = Mapping[str, SourceFile]

MEMORY_WANTED = 512 << 20
"""Bytes that must be free in memory for files before they are used for a scratch repository."""

_WHO = b"overlay <overlay@localhost> 0 +0000"
# A handful of files stands for a whole tree: what git would conclude from whole directories does not hold.
_MERGE = ("-c", "merge.directoryRenames=false", "-c", "merge.renames=true", "merge-tree", "--write-tree")
# What `git merge-tree` compares with.
_MERGE_DIFF = ("--histogram", "--no-indent-heuristic", "--text", "--no-textconv", "--no-ext-diff", "-U0")
_SPAN = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class ThreeWay:
    """One question to git: what ``ours`` becomes when the step from ``base`` to ``theirs`` is made on it."""

    base: Files
    ours: Files
    theirs: Files


@dataclass(frozen=True)
class Merged:
    """Git's answer: the files, and those among them that conflict (they hold conflict markers)."""

    files: Files
    conflicts: tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """Lines (from 0, ends excluded) of one file in whose place another has others."""

    start: int
    end: int
    new_start: int
    new_end: int

    @property
    def size(self) -> int:
        """Lines of the longer side."""
        return max(self.end - self.start, self.new_end - self.new_start)


def borrow_objects(store: GitStore, mounts: Sequence[Mount]) -> None:
    """Let a repository see the objects of others; what a partial clone lacks is fetched when it is read."""
    objects = store.path / "objects"
    paths = dict.fromkeys(str((mount.store.path / "objects").resolve()) for mount in mounts)
    (objects / "info").mkdir(exist_ok=True)
    (objects / "info" / "alternates").write_text("".join(f"{path}\n" for path in paths))
    for mount in mounts:
        if not mount.partial:
            continue
        with suppress(GitError):  # a store without a remote has everything
            url = mount.store.git("config", "remote.origin.url").decode().strip()
            for key, value in {
                "core.repositoryFormatVersion": "1",
                "extensions.partialClone": "origin",
                "remote.origin.url": url,
                "remote.origin.promisor": "true",
            }.items():
                store.git("config", key, value)


@contextmanager
def open_scratch() -> Iterator[Scratch]:
    """A scratch repository that is gone afterwards; in memory where the system has room for files there.

    Thousands of small files are written for a large series, and only for a second.
    """
    memory = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there, as in any other
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > MEMORY_WANTED
    with temporary_directory("judging", memory if roomy else None) as directory:
        yield Scratch(directory)


class Scratch:
    """A bare repository in ``directory`` (which must exist and be empty).

    Args:
        directory: where it is made; whoever made the directory removes it.
    """

    def __init__(self, directory: Path) -> None:
        self.store = GitStore.create(directory / "scratch.git")
        self._objects = self.store.path / "objects"
        self._written: set[str] = set()
        self._directories: set[str] = set()

    def whole(self, mounts: Sequence[Mount]) -> GitStore:
        """A second repository that sees all objects of these stores, for questions about whole trees.

        Merges do not happen there: git writes no object that a store has already, and then it could not be
        read as the loose object that it is here.
        """
        store = GitStore.create(self.store.path.with_name("whole.git"))
        borrow_objects(store, mounts)
        return store

    def merge(self, questions: Sequence[ThreeWay]) -> list[Merged]:
        """Have git merge each, all in one process (``git merge-tree --write-tree --stdin``).

        Raises:
            Unavailable: git does not do what its documentation says.
        """
        if not questions:
            return []
        rows = []
        for question in questions:
            base = self.commit(question.base)
            rows.append(f"{self.commit(question.ours, base)} {self.commit(question.theirs, base)}\n")
        try:
            out = self.store.git(
                *_MERGE, "--stdin", "--no-messages", "--name-only", stdin="".join(rows).encode()
            )
        except GitError as error:
            raise Unavailable(
                "git cannot merge", found=str(error), hint="git 2.39 or newer is needed"
            ) from error
        fields = iter(out.split(b"\0"))
        return [self._answer(fields) for _ in questions]

    def _answer(self, fields: Iterator[bytes]) -> Merged:
        clean, tree = next(fields), next(fields).decode()
        rest = [_path(name) for name in iter(lambda: next(fields), b"")]
        if clean not in (b"0", b"1"):
            raise Unavailable("git cannot merge", found=f"status {clean!r} of merge-tree")
        return Merged(self.files(tree), tuple(dict.fromkeys(rest)))

    def differences(self, pairs: Sequence[tuple[SourceFile, SourceFile]]) -> list[list[Span]]:
        """What differs between files as a merge here sees it: by the same algorithm, all in one process.

        Raises:
            Unavailable: git does not do what its documentation says.
        """
        found: list[list[Span]] = [[] for _ in pairs]
        if all(old.data == new.data for old, new in pairs):
            return found
        sides = (
            self.commit({str(n): SourceFile("100644", pair[side].data) for n, pair in enumerate(pairs)})
            for side in (0, 1)
        )
        try:
            out = self.store.git("diff-tree", "-r", "--no-renames", *_MERGE_DIFF, *sides)
        except GitError as error:
            raise Unavailable("git cannot compare", found=str(error)) from error
        number = -1
        for line in out.split(b"\n"):
            if line.startswith(b"diff --git "):
                number = int(line.rpartition(b"/")[2])
            elif match := _SPAN.match(line):
                start, count, new_start, new_count = (int(one or 1) for one in match.groups())
                start, new_start = start - bool(count), new_start - bool(new_count)
                found[number].append(Span(start, start + count, new_start, new_start + new_count))
        return found

    # --- objects ------------------------------------------------------------------------------------------

    def commit(self, files: Files, parent: str | None = None) -> str:
        """A commit of exactly these files; its object id. Their names in it are one component each."""
        above = f"parent {parent}\n".encode() if parent else b""
        rows = sorted((os.fsencode(quote(os.fsencode(path), safe="")), file) for path, file in files.items())
        tree = self._write(
            b"tree",
            b"".join(
                b"%s %s\0%s" % (file.mode.encode(), name, bytes.fromhex(self._write(b"blob", file.data)))
                for name, file in rows
            ),
        )
        return self._write(
            b"commit", b"tree %s\n%sauthor %s\ncommitter %s\n\n-\n" % (tree.encode(), above, _WHO, _WHO)
        )

    def files(self, tree: str) -> dict[str, SourceFile]:
        """The regular files of a tree that a merge here has made."""
        body = self._read(tree)
        found: dict[str, SourceFile] = {}
        while body:
            head, _, rest = body.partition(b"\0")
            mode, _, name = head.partition(b" ")
            oid, body = rest[:20].hex(), rest[20:]
            if mode in (b"100644", b"100755", b"120000"):
                found[_path(name)] = SourceFile(mode.decode(), self._read(oid))
        return found

    def _write(self, kind: bytes, data: bytes) -> str:
        whole = b"%s %d\0" % (kind, len(data)) + data
        oid = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        if oid not in self._written:
            # os, not pathlib: thousands of objects are written for a large series.
            directory = f"{self._objects}/{oid[:2]}"
            if oid[:2] not in self._directories:
                os.makedirs(directory, exist_ok=True)  # noqa: PTH103
                self._directories.add(oid[:2])
            with open(f"{directory}/{oid[2:]}", "wb") as file:  # noqa: PTH123
                file.write(zlib.compress(whole, 1))
            self._written.add(oid)
        return oid

    def _read(self, oid: str) -> bytes:
        whole = zlib.decompress((self._objects / oid[:2] / oid[2:]).read_bytes())
        return whole.partition(b"\0")[2]


def _path(name: bytes) -> str:
    """The path that a file of a commit here stands for: unquoted, bytes that are not text as surrogates."""
    return os.fsdecode(unquote_to_bytes(name))
