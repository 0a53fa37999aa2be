"""Source trees that probes can be asked about: in memory, in a directory, in git."""

from __future__ import annotations

import os
import subprocess
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, cast

from builder.errors import InvalidInput
from builder.probe.harness import Tree

FILE_LIMIT = 32 << 20
"""Bytes: the largest file that is read."""


class MappingTree:
    """A tree held in memory.

    Args:
        files: bytes by path.
        under: a tree below it, of which these files replace or extend the files; ``None`` for nothing.
    """

    def __init__(self, files: Mapping[str, bytes], under: Tree | None = None) -> None:
        self._files = dict(files)
        self._under = under

    def read(self, path: str) -> bytes:
        if path in self._files or self._under is None:
            return self._files[path]
        return self._under.read(path)

    def __contains__(self, path: str) -> bool:
        return path in self._files or (self._under is not None and path in self._under)

    def paths(self, prefix: str = "") -> list[str]:
        below = [] if self._under is None else self._under.paths(prefix)
        return sorted({path for path in self._files if path.startswith(prefix)} | set(below))

    def grep(self, text: bytes, prefix: str = "") -> list[str]:
        here = {path for path, data in self._files.items() if path.startswith(prefix) and text in data}
        below = [] if self._under is None else self._under.grep(text, prefix)
        return sorted(here | {path for path in below if path not in self._files})


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
        self._repository = repository
        self._lock = threading.Lock()
        self._batch: subprocess.Popen[bytes] | None = None
        self._cache: dict[str, bytes | None] = {}
        self._paths: list[str] | None = None
        found = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{tree}}")
        self.tree_id = found.stdout.decode().strip()
        if found.returncode or not self.tree_id:
            raise InvalidInput("the repository has no such tree", where=f"{repository}: {name}")

    def _command(self, *arguments: str) -> list[str]:
        return ["git", "--no-replace-objects", f"--git-dir={self._git_dir()}", *arguments]

    def _git_dir(self) -> Path:
        inner = self._repository / ".git"
        return inner if inner.is_dir() else self._repository

    def _git(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = self._command(*arguments)
        return subprocess.run(command, env=_git_environment(), capture_output=True, check=False)

    def read(self, path: str) -> bytes:
        with self._lock:
            if path not in self._cache:
                self._cache[path] = self._fetch(path)
            data = self._cache[path]
        if data is None:
            raise KeyError(path)
        return data

    def _fetch(self, path: str) -> bytes | None:
        if not path or "\n" in path:
            return None
        if self._batch is None:
            self._batch = subprocess.Popen(
                self._command("cat-file", "--batch"),
                env=_git_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        stdin, stdout = cast("IO[bytes]", self._batch.stdin), cast("IO[bytes]", self._batch.stdout)
        stdin.write(f"{self.tree_id}:{path}\n".encode())
        stdin.flush()
        header = stdout.readline().split()
        if len(header) != 3 or not header[2].isdigit():  # "missing", "ambiguous", or a name with spaces
            return None
        kind, size = header[1], int(header[2])
        data = stdout.read(size)
        stdout.read(1)
        return _within_limit(path, data) if kind == b"blob" else None

    def __contains__(self, path: str) -> bool:
        try:
            self.read(path)
        except KeyError:
            return False
        return True

    def paths(self, prefix: str = "") -> list[str]:
        if self._paths is None:
            listing = self._git("ls-tree", "-r", "-z", "--name-only", "--full-tree", self.tree_id)
            self._paths = sorted(os.fsdecode(name) for name in listing.stdout.split(b"\0") if name)
        return _with_prefix(self._paths, prefix)

    def grep(self, text: bytes, prefix: str = "") -> list[str]:
        where = [f":(literal){prefix.rstrip('/')}"] if prefix else []
        options = ("grep", "-l", "-z", "-I", "--fixed-strings", "-e", os.fsdecode(text))
        found = self._git(*options, self.tree_id, "--", *where)
        names = (os.fsdecode(name).partition(":")[2] for name in found.stdout.split(b"\0") if name)
        return sorted(name for name in names if name.startswith(prefix))

    def close(self) -> None:
        """End the ``git cat-file`` process."""
        if self._batch is not None:
            self._batch.communicate()
            self._batch = None

    def __enter__(self) -> GitTree:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _git_environment() -> dict[str, str]:
    """Git without the user's and the system's configuration, and without prompts."""
    keep = {key: os.environ[key] for key in ("PATH", "TMPDIR") if key in os.environ}
    return keep | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
        "HOME": os.devnull,
    }


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
