"""What is in a layer: an index of its paths, made in one pass over the blob and kept by blob and diff ID.

A config can claim any diff IDs: only a blob that was read through is known to hold what they name. An index
is one SQLite file, ``KEY-SHA256.layer``, written to a temporary name and renamed: the key names blob and diff
ID, and the name holds the file's own hash, so that a cut, foreign or damaged file is seen when it is opened,
removed and made again. Two processes that index one layer write the same file; who is later replaces it.

Where a tar says two things about one path, what an unpacker would leave behind counts: the last entry wins, a
hard link is what its target was when the link was made, a file in the place of a directory removes what was
below, and an entry below a symbolic link of the same layer goes where the link points.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.errors import ImageMismatch
from builder.oci.inflate import inflate
from builder.oci.layer import OPAQUE_MARKER, WHITEOUT_PREFIX
from builder.oci.model import Descriptor
from builder.oci.pipeline import StreamHash, read_ahead
from builder.oci.tarwalk import Kind, Limits, Member, walk_tar
from builder.temporary import sweep_directories, temporary_directory

_HASHED = 4 << 20  # bytes; sources are far smaller, and larger files are not text to patch
_KEPT = 64 << 10
_SCHEMA = 2
_APPLICATION = 0x6F766C31  # "ovl1", SQLite's application_id
_WHITEOUT, _OPAQUE = WHITEOUT_PREFIX.encode(), OPAQUE_MARKER.encode()
_AUFS = b".wh..wh."
_MAX_LINKS = 40
_MAX_REPLACED = 1000
_TABLES = """
CREATE TABLE entry (
  parent BLOB NOT NULL, name BLOB NOT NULL, kind TEXT NOT NULL,
  mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL, size INTEGER NOT NULL,
  mtime INTEGER NOT NULL, link BLOB NOT NULL, sha1 TEXT, sha256 TEXT, data BLOB, stored BLOB NOT NULL,
  implied INTEGER NOT NULL,
  PRIMARY KEY (parent, name)) WITHOUT ROWID;
CREATE TABLE made_of (blob TEXT NOT NULL, diff_id TEXT NOT NULL);
CREATE TABLE hidden (parent BLOB NOT NULL, name BLOB NOT NULL, PRIMARY KEY (parent, name)) WITHOUT ROWID;
"""
_GET = (
    "SELECT kind, mode, uid, gid, size, mtime, link, sha1, sha256, data, stored, implied FROM entry "
    "WHERE parent = ? AND name = ?"
)
_FORGET = (
    "DELETE FROM entry WHERE parent = ? OR (parent > ? AND parent < ?)",
    "DELETE FROM hidden WHERE parent = ? OR (parent > ? AND parent < ?)",
)


@dataclass(frozen=True)
class Entry:
    """What a layer says about one path.

    ``mode``, ``uid``, ``gid``, ``size`` (bytes) and ``mtime`` (seconds) as in the tar; ``blob`` (git's object
    name) and ``sha256`` (hex) for files up to 4 MiB; ``data``, up to 64 KiB, for small files that say where
    Python imports from. ``stored`` is the path whose bytes in the tar are this file's: another one for a hard
    link. ``implied`` marks a directory that the tar has no entry for, only entries below it.
    """

    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    link: str
    blob: str | None
    sha256: str | None
    data: bytes | None = field(repr=False)
    stored: str
    implied: bool


class LayerIndex:
    """A finished index, open for reading. Paths have no leading slash; the root is ``""``."""

    def __init__(self, connection: sqlite3.Connection, diff_id: str) -> None:
        self._connection = connection
        self.diff_id = diff_id

    def get(self, path: str) -> Entry | None:
        """The layer's own entry at ``path``; links are not followed."""
        row = self._one(_GET, _split(_encoded(path)))
        return _entry(row) if row else None

    def children(self, path: str) -> list[str]:
        """Names that the layer has in the directory ``path``, sorted."""
        rows = self._all("SELECT name FROM entry WHERE parent = ? AND name != x''", (_encoded(path),))
        return sorted(_decoded(name) for (name,) in rows)

    def whiteouts(self, path: str) -> list[str]:
        """Names in the directory ``path`` that the layer removes of the layers below."""
        rows = self._all("SELECT name FROM hidden WHERE parent = ? AND name != x''", (_encoded(path),))
        return [_decoded(name) for (name,) in rows]

    def hides(self, path: str) -> bool:
        """Whether a whiteout removes ``path`` of the layers below."""
        return (
            self._one("SELECT 1 FROM hidden WHERE parent = ? AND name = ?", _split(_encoded(path)))
            is not None
        )

    def is_opaque(self, path: str) -> bool:
        """Whether all that the layers below have in the directory ``path`` is removed."""
        return (
            self._one("SELECT 1 FROM hidden WHERE parent = ? AND name = x''", (_encoded(path),)) is not None
        )

    def close(self) -> None:
        self._connection.close()

    def _one(self, query: str, values: tuple[bytes, ...]) -> tuple[object, ...] | None:
        row: tuple[object, ...] | None = self._connection.execute(query, values).fetchone()
        return row

    def _all(self, query: str, values: tuple[bytes, ...]) -> list[tuple[bytes, ...]]:
        return self._connection.execute(query, values).fetchall()


def cached_index(cache_dir: Path, descriptor: Descriptor, diff_id: str) -> LayerIndex | None:
    """The index of a blob that was read before; None where there is none that can be trusted."""
    sweep_directories(cache_dir)
    for path in sorted(cache_dir.glob(f"{_key(descriptor, diff_id)}-*.layer")):
        index = _opened(path, descriptor, diff_id)
        if index is not None:
            return index
        with suppress(FileNotFoundError):  # another process may have removed it too
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return None


def index_layer(
    chunks: Iterator[bytes],
    descriptor: Descriptor,
    *,
    cache_dir: Path,
    diff_id: str,
    limits: Limits | None = None,
) -> LayerIndex:
    """Read a layer once and keep what is in it.

    Args:
        chunks: the blob; read to its end, so that its reader checks the digest of all of it.
        descriptor: of the layer, as in the manifest.
        cache_dir: where indexes are kept.
        diff_id: digest of the uncompressed tar, as in the config.
        limits: what is refused as too large.

    Raises:
        ImageMismatch: the layer is damaged, unsafe to unpack, too large, or not what ``diff_id`` names.
    """
    limits = limits or Limits()
    cache_dir.mkdir(parents=True, exist_ok=True)
    with temporary_directory("index", cache_dir) as directory:
        name, where = directory / "index", f"layer {descriptor.digest}"
        with closing(sqlite3.connect(name)) as connection:
            _fill(connection, inflate(chunks, descriptor, limit=limits.unpacked), where, diff_id, limits)
            connection.execute("INSERT INTO made_of VALUES (?, ?)", (descriptor.digest, diff_id))
            connection.commit()
        path = cache_dir / f"{_key(descriptor, diff_id)}-{_file_hash(name)}.layer"
        name.replace(path)
    index = _opened(path, descriptor, diff_id)
    if index is None:
        raise ImageMismatch("a layer's index changed while it was written", where=str(path))
    return index


def read_files(
    chunks: Iterator[bytes],
    descriptor: Descriptor,
    wanted: Collection[str],
    *,
    limit: int = _HASHED,
    limits: Limits | None = None,
) -> dict[str, bytes]:
    """The bytes of some files of a layer, by a second pass over it.

    Args:
        chunks: the blob, read to its end.
        descriptor: of the layer.
        wanted: paths as :attr:`Entry.stored` gives them.
        limit: files with more bytes than that are left out.
        limits: what is refused as too large.

    Raises:
        ImageMismatch: as :func:`index_layer`, but for the diff ID.
    """
    limits = limits or Limits()
    names = {_encoded(path): path for path in wanted}
    found: dict[str, bytes] = {}

    def consume(member: Member) -> Callable[[bytes], object] | None:
        if member.path not in names or member.kind is not Kind.FILE or member.size > limit:
            return None
        pieces: list[bytes] = []

        def write(piece: bytes) -> None:
            pieces.append(piece)
            if not piece:
                found[names[member.path]] = b"".join(pieces)

        return write

    walk_tar(
        inflate(chunks, descriptor, limit=limits.unpacked),
        consume,
        where=f"layer {descriptor.digest}",
        limits=limits,
    )
    return found


def _key(descriptor: Descriptor, diff_id: str) -> str:
    """Names a blob and what it unpacks to; the same blob under another diff ID is another claim."""
    return hashlib.sha256(f"{descriptor.digest} {diff_id}".encode()).hexdigest()


def _opened(path: Path, descriptor: Descriptor, diff_id: str) -> LayerIndex | None:
    """The index in a file, if the file is whole, of this schema, and of this blob."""
    try:
        if _file_hash(path) != path.stem.rpartition("-")[2]:
            return None
        location = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        connection = sqlite3.connect(location, uri=True, check_same_thread=False)
    except (OSError, sqlite3.Error):
        return None
    try:
        marks = [
            connection.execute(f"PRAGMA {key}").fetchone()[0] for key in ("application_id", "user_version")
        ]
        made_of = connection.execute("SELECT blob, diff_id FROM made_of").fetchall()
    except sqlite3.Error:
        marks = []
    if marks != [_APPLICATION, _SCHEMA] or made_of != [(descriptor.digest, diff_id)]:
        connection.close()
        return None
    return LayerIndex(connection, diff_id)


def _file_hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fill(
    connection: sqlite3.Connection, pieces: Iterator[bytes], where: str, diff_id: str, limits: Limits
) -> None:
    connection.executescript(
        f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA application_id = {_APPLICATION};"
        f"PRAGMA user_version = {_SCHEMA}; {_TABLES}"
    )
    rows = _Rows(connection, where, limits)
    with read_ahead(pieces) as ahead, StreamHash(ahead) as hashed:
        walk_tar(hashed.pieces(), rows.consume, where=where, limits=limits)
    if hashed.digest != diff_id:
        raise ImageMismatch(
            "a layer is not the one that the image's config names",
            where=where,
            expected=f"diff ID {diff_id}",
            found=hashed.digest,
        )
    rows.finish()
    connection.commit()


class _Rows:
    """Rows of an index, from the entries of a tar in their order."""

    def __init__(self, connection: sqlite3.Connection, where: str, limits: Limits) -> None:
        self._connection = connection
        self._where = where
        self._limits = limits
        self._waiting: list[tuple[object, ...]] = []
        self._parents: set[bytes] = {b""}  # directories that hold something
        self._links: dict[bytes, bytes] = {}
        self._held = 0  # bytes of paths in the two above
        self._replaced = 0

    def consume(self, member: Member) -> Callable[[bytes], object] | None:
        path = self._place(member.path)
        parent, name = _split(path)
        if name.startswith(_WHITEOUT):
            self._hide(parent, name)
            return None
        self._make_room(path, member)
        if member.kind is Kind.HARDLINK:
            self._add_hardlink(path, member)
            return None
        if member.kind is not Kind.FILE or member.sparse or member.size > _HASHED:
            self._add(path, member)
            return None
        return self._hashing(path, member)

    def finish(self) -> None:
        """Write what waits, and an implied entry for each directory that has none."""
        self._flush()
        for path in sorted(self._parents):  # in one order, so that the same layer gives the same file
            row = self._connection.execute(
                "SELECT kind FROM entry WHERE parent = ? AND name = ?", _split(path)
            ).fetchone()
            if row is None:
                self._waiting.append(
                    (*_split(path), "directory", 0o755, 0, 0, 0, 0, b"", None, None, None, path, 1)
                )
            elif row[0] != Kind.DIRECTORY:
                raise self._refused("an entry below something that is not a directory", path)
        self._flush()

    def _hashing(self, path: bytes, member: Member) -> Callable[[bytes], object]:
        sha1 = hashlib.sha1(b"blob %d\0" % member.size, usedforsecurity=False)
        sha256 = hashlib.sha256()
        is_kept = _is_kept(path)
        kept = bytearray()

        def write(piece: bytes) -> None:
            if piece:
                sha1.update(piece)
                sha256.update(piece)
                if is_kept:
                    kept.extend(piece[: _KEPT - len(kept)])
            else:
                data = bytes(kept) if is_kept else None
                self._add(path, member, sha1.hexdigest(), sha256.hexdigest(), data)

        return write

    def _add(
        self,
        path: bytes,
        member: Member,
        sha1: str | None = None,
        sha256: str | None = None,
        data: bytes | None = None,
    ) -> None:
        owner = (member.mode, member.uid, member.gid, member.size, member.mtime)
        content = (sha1, sha256, data, member.path, 0)
        self._waiting.append((*_split(path), member.kind.value, *owner, member.link, *content))
        if len(self._waiting) >= 1000:
            self._flush()

    def _add_hardlink(self, path: bytes, member: Member) -> None:
        """A link to what this layer has is that, from now on; any other points into the layers below."""
        self._flush()
        target = self._place(member.link)
        row = self._connection.execute(
            "SELECT kind, size, link, sha1, sha256, data, stored FROM entry WHERE parent = ? AND name = ?",
            _split(target),
        ).fetchone()
        if row is None:
            self._add(path, replace(member, link=target))
            return
        kind, size, link, sha1, sha256, data, stored = row
        if kind == Kind.DIRECTORY:
            raise self._refused("a hard link to a directory", path)
        owner = (member.mode, member.uid, member.gid, size, member.mtime)
        self._waiting.append((*_split(path), kind, *owner, link, sha1, sha256, data, stored, 0))

    def _hide(self, parent: bytes, name: bytes) -> None:
        if name == _OPAQUE:
            hidden = b""
        elif name.startswith(_AUFS) or name == _WHITEOUT:
            return  # what AUFS kept for itself
        else:
            hidden = name[len(_WHITEOUT) :]
        self._connection.execute("INSERT OR IGNORE INTO hidden VALUES (?, ?)", (parent, hidden))

    def _place(self, path: bytes) -> bytes:
        """Where an unpacker puts ``path``: symbolic links that this layer made above it are followed."""
        for _ in range(_MAX_LINKS):
            parent = path.rpartition(b"/")[0]
            if parent in self._parents:
                return path
            link = next((ancestor for ancestor in _ancestors(path) if ancestor in self._links), None)
            if link is None:
                return path
            path = _joined(link.rpartition(b"/")[0], self._links[link], path[len(link) :])
        raise self._refused("too many symbolic links above an entry", path)

    def _make_room(self, path: bytes, member: Member) -> None:
        """Note the directories above ``path``, and remove what an entry there replaces."""
        if _split(path)[0] not in self._parents:
            new = [ancestor for ancestor in _ancestors(path) if ancestor not in self._parents]
            self._parents.update(new)
            self._hold(new)
        self._links.pop(path, None)
        if member.kind is Kind.SYMLINK:
            self._links[path] = member.link
            self._hold([path, member.link])
        if member.kind is Kind.DIRECTORY or path not in self._parents:
            return
        self._replaced += 1
        if not path or self._replaced > _MAX_REPLACED:
            raise self._refused("too many directories replaced by something else", path)
        self._flush()
        below = path + b"/"
        for statement in _FORGET:
            self._connection.execute(statement, (path, below, path + b"0"))  # "0" comes after "/"
        self._parents = {p for p in self._parents if p != path and not p.startswith(below)}
        self._links = {p: target for p, target in self._links.items() if not p.startswith(below)}

    def _hold(self, paths: Iterable[bytes]) -> None:
        self._held += sum(len(path) + 100 for path in paths)
        if self._held > self._limits.held:
            raise self._refused("more directories and links than can be held in memory", b"")

    def _flush(self) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", self._waiting
        )
        self._waiting.clear()

    def _refused(self, what: str, path: bytes) -> ImageMismatch:
        return ImageMismatch("a layer holds " + what, where=self._where, found=_decoded(path) or None)


def _is_kept(path: bytes) -> bool:
    """Whether a file tells where Python imports from, what a distribution is, or which CUDA there is."""
    parent, _, name = path.rpartition(b"/")
    return (
        name.endswith((b".pth", b".egg-link"))
        or name in (b"pyvenv.cfg", b"direct_url.json")
        or (name.startswith(b"__editable__") and name.endswith(b".py"))
        or (name == b"METADATA" and parent.endswith(b".dist-info"))
        or (name == b"version.json" and parent.rpartition(b"/")[2].startswith(b"cuda"))
        or (name == b"PKG-INFO" and parent.endswith(b".egg-info"))
    )


def _ancestors(path: bytes) -> list[bytes]:
    """The directories above ``path``, topmost first, without the root."""
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]


def _joined(directory: bytes, target: bytes, rest: bytes) -> bytes:
    """``target`` as seen from ``directory``, then ``rest``; ``..`` stops at the root."""
    parts: list[bytes] = []
    start = b"" if target.startswith(b"/") else directory
    for part in (start + b"/" + target + b"/" + rest).split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)


def _split(path: bytes) -> tuple[bytes, bytes]:
    parent, _, name = path.rpartition(b"/")
    return parent, name


def _encoded(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _decoded(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _entry(row: Sequence[Any]) -> Entry:
    kind, mode, uid, gid, size, mtime, link, sha1, sha256, data, stored, implied = row
    return Entry(
        Kind(kind),
        mode,
        uid,
        gid,
        size,
        mtime,
        _decoded(link),
        sha1,
        sha256,
        data,
        _decoded(stored),
        bool(implied),
    )
