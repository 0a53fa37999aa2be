"""Source trees that probes can be asked about: in memory, in a directory, in git."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, cast

from builder.errors import InvalidInput, Unavailable
from builder.probe.harness import Tree
from builder.source.git import GitError, GitStore, git_environment

FILE_LIMIT = 32 << 20
"""Bytes: the largest file that is read."""


class MappingTree:
    """A tree held in memory.

    Args:
        files: bytes by path; ``None`` where there is no file although ``under`` has one.
        under: a tree that these files replace, extend or hide files of.
    """

    def __init__(self, files: Mapping[str, bytes | None], under: Tree | None = None) -> None:
        self._files = dict(files)
        self._under = under

    @cached_property
    def fingerprint(self) -> str | None:
        """Names the contents; ``None`` where the tree below has no such name."""
        below = "" if self._under is None else getattr(self._under, "fingerprint", None)
        if below is None:
            return None
        digest = hashlib.sha256(below.encode())
        for path, data in sorted(self._files.items()):
            content = "none" if data is None else hashlib.sha256(data).hexdigest()
            digest.update(f"\0{path}\0{content}".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def read(self, path: str) -> bytes:
        if path not in self._files and self._under is not None:
            return self._under.read(path)
        data = self._files[path]
        if data is None:
            raise KeyError(path)
        return data

    def __contains__(self, path: str) -> bool:
        if path in self._files or self._under is None:
            return self._files.get(path) is not None
        return path in self._under

    def paths(self, prefix: str = "") -> list[str]:
        below = () if self._under is None else self._under.paths(prefix)
        every = {path for path in self._files if path.startswith(prefix)} | set(below)
        return sorted(path for path in every if path in self)

    def grep(self, text: bytes, prefix: str = "") -> list[str]:
        here = [path for path, data in self._files.items() if data is not None and text in data]
        below = [] if self._under is None else self._under.grep(text, prefix)
        return sorted(
            {path for path in here if path.startswith(prefix)}
            | {path for path in below if path not in self._files}
        )


class DirectoryTree:
    """A checkout, or any directory that holds ``python/sglang``. Links out of it are not followed."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve(strict=True)
        self._paths: list[str] | None = None

    def _file(self, path: str) -> Path | None:
        pure = PurePosixPath(path)
        if not path or pure.is_absolute() or ".." in pure.parts or "\0" in path:
            return None
        file = (self._root / pure).resolve()
        return file if file.is_relative_to(self._root) and file.is_file() else None

    def read(self, path: str) -> bytes:
        file = self._file(path)
        if file is None:
            raise KeyError(path)
        with file.open("rb") as stream:
            data = stream.read(FILE_LIMIT + 1)
        return _within_limit(path, data)

    def __contains__(self, path: str) -> bool:
        return self._file(path) is not None

    def paths(self, prefix: str = "") -> list[str]:
        if self._paths is None:
            self._paths = sorted(self._walk())
        return _with_prefix(self._paths, prefix)

    def _walk(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self._root):
            folders[:] = [name for name in folders if name != ".git"]
            for name in files:
                yield (Path(folder) / name).relative_to(self._root).as_posix()

    def grep(self, text: bytes, prefix: str = "") -> list[str]:
        return [path for path in self.paths(prefix) if path in self and text in self.read(path)]


class GitTree:
    """A commit, tag or tree of a git repository, read through one ``git cat-file --batch``.

    Args:
        repository: the repository's directory, bare or not.
        name: a commit, tag or tree, by name or object id.

    Raises:
        InvalidInput: the repository has no such tree.
    """

    def __init__(self, repository: Path, name: str) -> None:
        inner = repository / ".git"
        self._store = GitStore(inner if inner.exists() else repository)
        found = self._store.resolve(name, "tree")
        if found is None:
            raise InvalidInput("the repository has no such tree", where=f"{repository}: {name}")
        self.tree_id = found
        self._batch: subprocess.Popen[bytes] | None = None
        self._cache: dict[str, bytes] = {}
        self._lock = threading.Lock()  # a patched tree reads from its pristine one while that is asked, too

    @property
    def fingerprint(self) -> str | None:
        """Names the contents."""
        return f"git {self.tree_id}"

    @cached_property
    def _blobs(self) -> dict[str, str]:
        """Blob ids by path, sorted by path. Links and submodules are left out."""
        entries = self._store.entries(self.tree_id)
        return {path: e.blob for path, e in sorted(entries.items()) if e.mode in ("100644", "100755")}

    @cached_property
    def _paths(self) -> list[str]:
        return list(self._blobs)

    def read(self, path: str) -> bytes:
        blob = self._blobs[path]
        with self._lock:
            if blob not in self._cache:
                self._cache[blob] = _within_limit(path, self._fetch(blob))
            return self._cache[blob]

    def _fetch(self, blob: str) -> bytes:
        if self._batch is None:
            self._batch = subprocess.Popen(
                ["git", f"--git-dir={self._store.path}", "cat-file", "--batch"],
                env=git_environment(),
                cwd=self._store.path,  # ours may be gone
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            weakref.finalize(self, self._batch.communicate)
        stdin, stdout = cast("IO[bytes]", self._batch.stdin), cast("IO[bytes]", self._batch.stdout)
        stdin.write(f"{blob}\n".encode())
        stdin.flush()
        header = stdout.readline().split()
        if len(header) != 3:
            raise Unavailable(
                "git cannot read a file of the tree",
                where=f"{self._store.path}: blob {blob}",
                found=b" ".join(header).decode(errors="replace") or "git ended",
                hint="a partial clone fetches files when they are read: check the network, or use the wheel",
            )
        data = stdout.read(int(header[2]))
        stdout.read(1)
        return data

    def __contains__(self, path: str) -> bool:
        return path in self._blobs

    def paths(self, prefix: str = "") -> list[str]:
        return _with_prefix(self._paths, prefix)

    def grep(self, text: bytes, prefix: str = "") -> list[str]:
        below = ["--", prefix.rpartition("/")[0]] if "/" in prefix else []
        options = ("grep", "-l", "-z", "-I", "--fixed-strings", "-e", os.fsdecode(text))
        try:
            found = self._store.git(*options, self.tree_id, *below)
        except GitError as error:
            if error.code == 1 and not error.stderr:  # nothing matches
                return []
            raise Unavailable(
                "git cannot search the tree", where=f"{self._store.path}: {self.tree_id}", found=error.stderr
            ) from error
        names = (os.fsdecode(name).partition(":")[2] for name in found.split(b"\0") if name)
        return sorted(name for name in names if name.startswith(prefix) and name in self)


def _with_prefix(ordered: list[str], prefix: str) -> list[str]:
    start = bisect_left(ordered, prefix)
    stop = start
    while stop < len(ordered) and ordered[stop].startswith(prefix):
        stop += 1
    return ordered[start:stop]


def _within_limit(path: str, data: bytes) -> bytes:
    if len(data) > FILE_LIMIT:
        raise InvalidInput("a source file is too large", where=path, expected=f"at most {FILE_LIMIT} bytes")
    return data
