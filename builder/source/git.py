"""git as an object store: a bare repository in the user's cache, driven without anybody's configuration.

Hot paths call git directly, since importing GitPython takes longer than all of git's own work in a
warm build; the authoring commands, which keep real work trees, use GitPython.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from builder.errors import InvalidInput, Unavailable
from builder.temporary import sweep_directories, temporary_directory

GIT_TIMEOUT = 600.0
_HEX40 = re.compile(r"[0-9a-f]{40}\Z")
_SAFE_PROTOCOLS = "file:git:http:https:ssh"

# Anything a user's or a system's configuration could change about an object id, a diff or a fetch.
_SETTINGS = {
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.excludesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "true",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.ext.allow": "never",
    "safe.directory": "*",
    "advice.detachedHead": "false",
    "init.defaultBranch": "main",
    "init.templateDir": "",
    "fetch.fsckObjects": "true",
    "credential.interactive": "never",
    "commit.gpgSign": "false",
}


def blob_id(data: bytes) -> str:
    """The git object id (40 hex digits, SHA-1) of a blob holding ``data``."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def tree_id(entries: Mapping[str, TreeEntry]) -> str:
    """The git object id (40 hex digits, SHA-1) of a tree that holds exactly these files.

    Args:
        entries: the files by path, ``/`` between directories.
    """
    below: dict[str, dict[str, TreeEntry]] = {}
    named: dict[bytes, tuple[str, str]] = {}
    for path, entry in entries.items():
        first, slash, rest = path.partition("/")
        if slash:
            below.setdefault(first, {})[rest] = entry
        else:
            named[os.fsencode(first)] = (entry.mode, entry.blob)
    # git sorts a directory as if its name ended in a slash
    named |= {os.fsencode(name) + b"/": ("40000", tree_id(files)) for name, files in below.items()}
    rows = [
        mode.encode() + b" " + name.removesuffix(b"/") + b"\0" + bytes.fromhex(oid)
        for name, (mode, oid) in sorted(named.items())
    ]
    data = b"".join(rows)
    return hashlib.sha1(b"tree %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def is_object_id(text: str) -> bool:
    """Whether ``text`` is a full SHA-1 object id in hex."""
    return _HEX40.match(text) is not None


def git_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment git runs in: no user or system configuration, no prompt, no helper of anybody's.

    Args:
        extra: variables set on top, such as ``GIT_INDEX_FILE``.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    kept |= {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "SSH_ASKPASS": "true",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        "GIT_ALLOW_PROTOCOL": _SAFE_PROTOCOLS,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_PAGER": "cat",
        "GIT_EDITOR": "false",
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_COUNT": str(len(_SETTINGS)),
    }
    for number, (key, value) in enumerate(_SETTINGS.items()):
        kept[f"GIT_CONFIG_KEY_{number}"] = key
        kept[f"GIT_CONFIG_VALUE_{number}"] = value
    return kept | dict(extra or {})


class GitError(Exception):
    """A git command failed; the caller knows what that means and raises its own error.

    Args:
        command: git's arguments, without ``git`` itself.
        code: its exit status.
        stderr: what it said.
        directory: where it ran.
    """

    def __init__(self, command: Sequence[str], code: int, stderr: str, directory: Path | None = None) -> None:
        super().__init__(f"git {command[0]} exited with {code}: {stderr.strip()}")
        self.command = tuple(command)
        self.code = code
        self.stderr = stderr.strip()
        self.directory = directory


@dataclass(frozen=True)
class TreeEntry:
    """One file of a git tree: its mode (``100644``, ``100755``, ``120000``) and blob id."""

    mode: str
    blob: str


def run_git(
    arguments: Sequence[str],
    *,
    cwd: Path,
    stdin: bytes | IO[bytes] = b"",
    env: Mapping[str, str] | None = None,
    timeout: float = GIT_TIMEOUT,
) -> bytes:
    """Run one git command and give its standard output as bytes.

    Args:
        arguments: git's arguments; values that come from outside stand behind ``--`` or were checked.
        cwd: the repository's directory (bare) or work tree.
        stdin: bytes, or an open file, to feed.
        env: variables on top of :func:`git_environment`.
        timeout: seconds.

    Raises:
        GitError: it exited with another status than 0.
        Unavailable: git is not installed, or did not finish in time.
    """
    feed: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=cwd,
            **feed,
            env=git_environment(env),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise Unavailable(
            "git is not installed", hint="install it, for example: apt-get install git"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            "git did not finish in time",
            where=f"git {arguments[0]}",
            expected=f"an end within {timeout:.0f} s",
            hint="check the network, or name a mirror with --upstream-url",
        ) from error
    if done.returncode:
        raise GitError(arguments, done.returncode, done.stderr.decode(errors="replace"), cwd)
    return bytes(done.stdout)


class GitStore:
    """A bare repository that holds upstream sources as git objects.

    Args:
        path: the repository's directory; :meth:`create` makes it. A relative one is meant from where the
            command runs, although git runs in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @classmethod
    def create(cls, path: Path) -> GitStore:
        """The store at ``path``, made when it is not there (complete, or not at all)."""
        sweep_directories(path.parent)
        if not _is_store(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary_directory("store", path.parent) as new:
                run_git(["init", "--quiet", "--bare", "--object-format=sha1", "--", "store"], cwd=new)
                _put_in_place(new / "store", path, new / "damaged")
        return cls(path)

    @classmethod
    def renew(cls, path: Path) -> GitStore:
        """An empty store in the place of a damaged one, whose contents are lost."""
        with temporary_directory("store", path.parent) as old:
            path.rename(old / "damaged")
        return cls.create(path)

    def is_damaged(self) -> bool:
        """Whether objects or references are cut, foreign or unreadable, or this is not a repository."""
        try:
            self.git("fsck", "--connectivity-only", "--no-dangling", "--no-progress")
        except GitError:
            return True
        return False

    def git(
        self, *arguments: str, stdin: bytes | IO[bytes] = b"", env: Mapping[str, str] | None = None
    ) -> bytes:
        """Run git in this store (see :func:`run_git`)."""
        return run_git(["--git-dir=" + str(self.path), *arguments], cwd=self.path, stdin=stdin, env=env)

    def resolve(self, name: str, kind: str = "commit") -> str | None:
        """The object id that ``name`` stands for, peeled to ``kind``; None when it is not here."""
        if name.startswith("-"):
            raise InvalidInput("not a name of a commit", where=name, hint="names do not start with '-'")
        try:
            found = self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{{kind}}}")
        except GitError:
            return None
        return found.decode().strip()

    def entries(self, tree: str, paths: Iterable[str] = ()) -> dict[str, TreeEntry]:
        """The files of a tree, whole or only those at ``paths`` (exact paths).

        Args:
            tree: object id of a commit or tree.
            paths: exact paths below the root; none means all of them.
        """
        wanted = list(paths)
        listing = self.git("ls-tree", "-r", "-z", "--full-tree", tree, "--", *wanted)
        found: dict[str, TreeEntry] = {}
        for row in listing.split(b"\0")[:-1]:
            head, _, name = row.partition(b"\t")
            mode, kind, oid = head.decode().split(" ")
            if kind == "blob":
                found[os.fsdecode(name)] = TreeEntry(mode, oid)
        return {path: found[path] for path in wanted if path in found} if wanted else found

    def blobs(self, ids: Iterable[str]) -> dict[str, bytes]:
        """The bytes of blobs, by object id, read through one git process.

        Raises:
            GitError: one is not in the store, or is not what its name says.
        """
        wanted = sorted(set(ids))
        if not wanted:
            return {}
        out = self.git("cat-file", "--batch", stdin="".join(f"{oid}\n" for oid in wanted).encode())
        found: dict[str, bytes] = {}
        position = 0
        for oid in wanted:
            end = out.index(b"\n", position)
            header = out[position:end].split(b" ")
            if len(header) != 3 or header[1] != b"blob":
                raise GitError(["cat-file", oid], 1, f"{oid} is not a blob of this store")
            size = int(header[2])
            found[oid] = out[end + 1 : end + 1 + size]
            if blob_id(found[oid]) != oid:  # git does not look when it reads
                raise GitError(
                    ["cat-file", oid], 1, f"{oid} is damaged: its bytes are another blob's", self.path
                )
            position = end + 1 + size + 1
        return found

    def read(self, tree: str, path: str) -> bytes | None:
        """The bytes of one file of a tree; None when the tree has no such file."""
        entry = self.entries(tree, [path]).get(path)
        return None if entry is None else self.blobs([entry.blob])[entry.blob]

    def write_blobs(self, contents: Sequence[bytes]) -> list[str]:
        """Store blobs and give their object ids, in order, through one git process."""
        if not contents:
            return []
        with temporary_directory("blobs") as directory:
            names = []
            for number, data in enumerate(contents):
                name = Path(directory) / str(number)
                name.write_bytes(data)
                names.append(str(name))
            out = self.git(
                "hash-object", "-w", "--no-filters", "--stdin-paths", stdin="\n".join(names).encode()
            )
        return out.decode().split()

    @contextmanager
    def index(self) -> Iterator[GitIndex]:
        """A temporary, empty index of this store; it is gone afterwards."""
        with temporary_directory("index") as directory:
            yield GitIndex(self, Path(directory) / "index")


def _is_store(path: Path) -> bool:
    try:
        return (path / "HEAD").read_bytes().startswith(b"ref: ")
    except OSError:
        return False


def _put_in_place(made: Path, path: Path, aside: Path) -> None:
    """Rename a new store to its place; what is there and is not a store any more goes aside."""
    try:
        made.rename(path)
    except OSError:
        if _is_store(path):
            return  # another process was faster: its repository is as good as ours
        path.rename(aside)
        made.rename(path)


class GitIndex:
    """A temporary index: where a series is applied, never a work tree (see :meth:`GitStore.index`)."""

    def __init__(self, store: GitStore, path: Path) -> None:
        self._store = store
        self._env = {"GIT_INDEX_FILE": str(path)}

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run git with this index."""
        return self._store.git(*arguments, stdin=stdin, env=self._env)

    def read_tree(self, tree: str) -> None:
        """Fill the index from a whole tree."""
        self.git("read-tree", tree)

    def put(self, entries: Mapping[str, TreeEntry]) -> None:
        """Add or replace entries by path."""
        rows = b"".join(
            f"{entry.mode} {entry.blob}\t".encode() + os.fsencode(path) + b"\0"
            for path, entry in entries.items()
        )
        self.git("update-index", "-z", "--index-info", stdin=rows)

    def apply(self, patch: bytes) -> None:
        """Apply a patch to the index alone, without fuzz or whitespace tolerance."""
        self.git("apply", "--cached", "--whitespace=nowarn", "-p1", "-", stdin=patch)

    def write_tree(self) -> str:
        """The tree object id of what the index holds; blobs that a partial clone left out are allowed."""
        return self.git("write-tree", "--missing-ok").decode().strip()

    def entries(self) -> dict[str, TreeEntry]:
        """What the index holds, by path."""
        found: dict[str, TreeEntry] = {}
        for row in self.git("ls-files", "-s", "-z").split(b"\0")[:-1]:
            head, _, name = row.partition(b"\t")
            mode, oid, _stage = head.decode().split(" ")
            found[os.fsdecode(name)] = TreeEntry(mode, oid)
        return found
