"""Images in a directory: the OCI image-layout (image-spec 1.1), read and written.

A layout may come from anywhere. Nothing in it is followed out of it (no symbolic link is), every byte is
checked against its digest, and everything written is complete under its name or not there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from builder.errors import ImageMismatch, InvalidInput, Unavailable
from builder.locking import exclusive
from builder.oci.document import json_object, media_type_of
from builder.oci.model import (
    OCI_INDEX,
    Descriptor,
    ImageSource,
    Progress,
    RawManifest,
    canonical_json,
    is_digest,
    open_chunks,
    verified,
)
from builder.printable import counted
from builder.temporary import sweep_files

REF_NAME = "org.opencontainers.image.ref.name"
LAYOUT_VERSION = "1.0.0"
LARGEST_DOCUMENT = 4 << 20  # bytes of a manifest or of index.json
LOCK_TIMEOUT = 60.0  # seconds
PARTIAL = ".partial-"
_PARTIAL = re.compile(re.escape(PARTIAL))

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe that somebody put in a blob's place must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Layout:
    """An OCI layout with all its blobs: an ``ImageSource`` and an ``ImageSink``.

    Args:
        path: the directory; written to for the first time, it is made.
    """

    workers = 1  # a disk writes one thing after the other

    def __init__(self, path: Path) -> None:
        self.path = path
        self._prepared = False

    @property
    def name(self) -> str:
        return f"oci:{self.path}"

    # --- reading ------------------------------------------------------------------------------------------

    def get_manifest(self, identifier: str) -> RawManifest:
        """The manifest or index with this tag (``org.opencontainers.image.ref.name``) or digest.

        Raises:
            ImageMismatch: it is not there, or its bytes are not what its digest says.
            Unavailable: the directory cannot be read.
        """
        descriptor = self._find(identifier)
        data = self._read_document(descriptor)
        return RawManifest(media_type_of(data, descriptor.media_type, f"{self.name} {identifier}"), data)

    def only_image(self) -> Descriptor:
        """The image of a layout that holds one.

        Raises:
            ImageMismatch: there is none, or more than one; the tags there are in the hint.
        """
        found = {entry.digest: entry for entry in self.entries() if not _lists_referrers(entry)}
        if len(found) != 1:
            raise ImageMismatch(
                "it is not clear which image of the layout is meant"
                if found
                else "the layout holds no image",
                where=self.name,
                expected="one image, or a tag or digest",
                found=counted(len(found), "image"),
                hint=self._tags_hint(),
            )
        return next(iter(found.values()))

    def list_tags(self) -> list[str]:
        """The tags of the layout, sorted."""
        return sorted(
            {entry.annotations[REF_NAME] for entry in self.entries() if REF_NAME in entry.annotations}
        )

    def find_tag(self, tag: str) -> str | None:
        """The digest that a tag leads to; None where there is none."""
        if not (self.path / "index.json").exists():
            return None
        return next(
            (entry.digest for entry in self.entries() if entry.annotations.get(REF_NAME) == tag), None
        )

    def entries(self) -> list[Descriptor]:
        """The descriptors of ``index.json``, in its order."""
        marker = f"{self.name}/oci-layout"
        version = json_object(self._read_file(("oci-layout",), 1 << 16), marker).get("imageLayoutVersion")
        if version != LAYOUT_VERSION:
            raise ImageMismatch(
                "a layout of another version", where=marker, expected=LAYOUT_VERSION, found=repr(version)[:40]
            )
        index = json_object(self._read_file(("index.json",), LARGEST_DOCUMENT), f"{self.name}/index.json")
        manifests = index.get("manifests")
        if not isinstance(manifests, list):
            raise ImageMismatch("not an image index", where=f"{self.name}/index.json", expected="manifests")
        return [Descriptor.from_json(entry, f"{self.name}/index.json") for entry in manifests]

    def has_blob(self, digest: str) -> bool:
        """Whether a blob of this name is there."""
        try:
            with self._open_file(_blob_parts(digest, self.name)):
                return True
        except FileNotFoundError:
            return False

    def read_blob(self, descriptor: Descriptor, *, limit: int = 64 << 20) -> bytes:
        """A whole small blob (at most ``limit`` bytes), digest checked.

        Raises:
            ImageMismatch: it is not there, larger than ``limit``, or its bytes are wrong.
            Unavailable: the directory cannot be read.
        """
        if descriptor.size > limit:
            raise ImageMismatch(
                "a blob is larger than it may be",
                where=f"{self.name} {descriptor.digest}",
                expected=f"at most {limit} bytes",
                found=f"{descriptor.size} bytes",
            )
        with self.open_blob(descriptor) as chunks:
            return b"".join(chunks)

    @contextmanager
    def open_blob(self, descriptor: Descriptor) -> Iterator[Iterator[bytes]]:
        """A blob as a stream of chunks of 1 MiB, size and digest checked before the last is given.

        Raises:
            ImageMismatch: it is not there, or its bytes are wrong.
            Unavailable: the directory cannot be read.
        """
        try:
            opened = self._open_file(_blob_parts(descriptor.digest, self.name))
        except FileNotFoundError:
            raise ImageMismatch(
                "a blob is not there",
                where=self.name,
                expected=f"{descriptor.digest} ({counted(descriptor.size, 'byte')})",
                hint="a sparse layout leaves the base's layers where they were: "
                "write it with --complete to have them there too",
            ) from None
        with opened as stream:
            yield verified(open_chunks(stream), descriptor, self.name)

    # --- writing ------------------------------------------------------------------------------------------

    def put_blob(
        self,
        descriptor: Descriptor,
        data: bytes,
        *,
        is_new: bool = False,
        mount_from: ImageSource | None = None,
    ) -> None:
        """Store a blob held in memory, unless it is there already, whole.

        Raises:
            ImageMismatch: ``data`` is not what the descriptor says.
            Unavailable: the directory cannot be written.
        """
        checked = list(verified([data], descriptor, f"for {self.name}"))
        if not self._holds(descriptor):
            self._store(_blob_parts(descriptor.digest, self.name), checked)

    def copy_blob(
        self, source: ImageSource, descriptor: Descriptor, *, progress: Progress | None = None
    ) -> None:
        """Bring a blob from ``source``, unless it is there already, whole.

        Raises:
            ImageMismatch: the source does not have it, or its bytes are wrong.
            Unavailable: the directory cannot be written, or the source cannot be read.
        """
        if self._holds(descriptor):
            return
        with source.open_blob(descriptor) as chunks:
            self._store(_blob_parts(descriptor.digest, self.name), _counted(chunks, progress))

    def put_manifest(self, manifest: RawManifest, *, tag: str | None = None) -> Descriptor:
        """Store a manifest or index, and enter it into ``index.json`` when a tag is given.

        A tag that another image had moves to this one, as in a registry.

        Raises:
            ImageMismatch: a blob that it names is missing.
            Unavailable: the directory cannot be written.
        """
        self._check_parts(manifest)
        descriptor = manifest.descriptor
        self.put_blob(descriptor, manifest.data)
        if tag is not None:
            self._enter(replace(descriptor, annotations={REF_NAME: tag}))
        return descriptor

    # --- inside: what is there ----------------------------------------------------------------------------

    def _find(self, identifier: str) -> Descriptor:
        if is_digest(identifier):
            return self._by_digest(identifier)
        for entry in self.entries():
            if entry.annotations.get(REF_NAME) == identifier:
                return entry
        raise ImageMismatch(
            "there is no such tag", where=f"{self.name}:{identifier[:200]}", hint=self._tags_hint()
        )

    def _by_digest(self, digest: str) -> Descriptor:
        """By digest also what is only named inside an index: a child has its own bytes to vouch for it."""
        if not self.has_blob(digest):
            raise ImageMismatch(
                "there is no image with this digest", where=f"{self.name}@{digest}", hint=self._tags_hint()
            )
        listed = next((entry for entry in self.entries() if entry.digest == digest), None)
        return listed or Descriptor(
            "", digest, len(self._read_file(_blob_parts(digest, self.name), LARGEST_DOCUMENT))
        )

    def _tags_hint(self) -> str:
        tags = self.list_tags()
        return f"its tags are {', '.join(tags[:20])}" if tags else "it has no tags"

    def _holds(self, descriptor: Descriptor) -> bool:
        """Whether the blob is there and right; a wrong one, half written by another tool, is replaced."""
        try:
            with self.open_blob(descriptor) as chunks:
                for _ in chunks:
                    pass
        except ImageMismatch:
            return False
        return True

    def _check_parts(self, manifest: RawManifest) -> None:
        for descriptor in self._needed(manifest):
            if not self.has_blob(descriptor.digest):
                raise ImageMismatch(
                    "a manifest names a blob that is not in the layout",
                    where=f"{self.name}@{manifest.digest}",
                    expected=f"{descriptor.digest} ({descriptor.media_type}, {descriptor.size} bytes)",
                )

    def _needed(self, manifest: RawManifest) -> list[Descriptor]:
        """What must be there before ``manifest`` is: everything that it names."""
        return _parts(manifest, self.name, ("manifests", "config", "layers"))

    # --- inside: files ------------------------------------------------------------------------------------

    def _read_document(self, descriptor: Descriptor) -> bytes:
        return self.read_blob(descriptor, limit=LARGEST_DOCUMENT)

    def _read_file(self, parts: tuple[str, ...], limit: int) -> bytes:
        where = "/".join((self.name, *parts))
        try:
            with self._open_file(parts) as stream:
                data = stream.read(limit + 1)
        except FileNotFoundError:
            raise ImageMismatch(
                "this is not an OCI layout",
                where=self.name,
                expected=where,
                found="no such file",
                hint="a layout is a directory that --output oci:DIR wrote",
            ) from None
        if len(data) > limit:
            raise ImageMismatch("a file is too large", where=where, expected=f"at most {limit} bytes")
        return data

    def _open_file(self, parts: tuple[str, ...]) -> BinaryIO:
        """Open a regular file of the layout; raise FileNotFoundError where it is not there."""
        with self._errors(parts):
            file = self._opened(parts)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/".join(parts))
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise ImageMismatch("not a regular file", where="/".join((self.name, *parts)))
        return os.fdopen(file, "rb")

    def _opened(self, parts: tuple[str, ...]) -> int | None:
        try:
            with self._directory(parts[:-1]) as directory:
                return os.open(parts[-1], _FILE, dir_fd=directory)
        except FileNotFoundError:
            return None

    @contextmanager
    def _directory(self, parts: tuple[str, ...]) -> Iterator[int]:
        """A descriptor of a directory of the layout, reached through no symbolic link."""
        # The layout itself may be one: its name is the user's own.
        opened = [os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        try:
            for part in parts:
                opened.append(os.open(part, _DIRECTORY, dir_fd=opened[-1]))
            yield opened[-1]
        finally:
            for directory in opened:
                os.close(directory)

    @contextmanager
    def _errors(self, parts: tuple[str, ...]) -> Iterator[None]:
        """Turn what the system says into an error that names the file of the layout."""
        try:
            yield
        except OSError as error:
            where = "/".join((self.name, *parts))
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise ImageMismatch(
                    "a layout's file is, or lies behind, a symbolic link or no directory: it is not followed",
                    where=where,
                    hint="copy the layout with its links resolved (cp -rL) and use the copy",
                ) from None
            raise Unavailable(
                "a layout on disk cannot be used", where=where, found=error.strerror or str(error)
            ) from None

    def _store(self, parts: tuple[str, ...], chunks: Iterable[bytes]) -> None:
        """Write a file of the layout, which is made first if it is not there."""
        with self._errors(parts):
            self._prepare()
            self._write(parts, chunks)

    def _write(self, parts: tuple[str, ...], chunks: Iterable[bytes]) -> None:
        """Write a file whole: under a temporary name, to the disk, then to its own name."""
        with self._directory(()) as root, self._directory(parts[:-1]) as directory:
            partial, file = _held_file(root)
            try:
                with os.fdopen(file, "wb") as stream:
                    for chunk in chunks:
                        stream.write(chunk)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.rename(partial, parts[-1], src_dir_fd=root, dst_dir_fd=directory)
            except BaseException:
                os.unlink(partial, dir_fd=root)
                raise
            os.fsync(directory)

    def _prepare(self) -> None:
        """Make the directory a layout, if it is not one yet."""
        if self._prepared:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in self.path.iterdir() if not path.name.startswith(PARTIAL)}
        if names and not names & {"oci-layout", "blobs"}:
            raise InvalidInput(
                "the directory is neither empty nor an OCI layout",
                where=self.name,
                found=", ".join(sorted(names)[:5]),
                hint="name an empty or a new directory",
            )
        with self._locked():
            (self.path / "blobs").mkdir(exist_ok=True)
            with self._directory(("blobs",)) as blobs, contextlib.suppress(FileExistsError):
                os.mkdir("sha256", dir_fd=blobs)
            for name, content in (("oci-layout", _LAYOUT), ("index.json", _EMPTY_INDEX)):
                if not (self.path / name).exists():
                    self._write((name,), [canonical_json(content)])
        sweep_files(self.path, _PARTIAL)
        self._prepared = True

    def _enter(self, descriptor: Descriptor) -> None:
        """Put a tagged image into ``index.json``, in the place of the one that had the tag."""
        tag = descriptor.annotations[REF_NAME]
        with self._errors(("index.json",)):
            self._prepare()
            with self._locked():
                data = self._read_file(("index.json",), LARGEST_DOCUMENT)
                index = json_object(data, f"{self.name}/index.json")
                entries = index.get("manifests")
                kept = list(entries) if isinstance(entries, list) else []
                place = next((n for n, entry in enumerate(kept) if _tag_of(entry) == tag), len(kept))
                others = [entry for entry in kept if _tag_of(entry) != tag]
                others.insert(place, descriptor.as_json())
                if others != kept:
                    self._write(("index.json",), [canonical_json({**index, "manifests": others})])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Have the layout to oneself. The lock is on the directory: no file of it is left in the layout."""
        with self._directory(()) as root, exclusive(root, name=self.name, timeout=LOCK_TIMEOUT):
            yield


def _held_file(directory: int) -> tuple[str, int]:
    """A new file of a directory, its name and descriptor; held, so that nobody takes it for a leftover."""
    while True:
        name = f"{PARTIAL}{os.getpid()}-{os.urandom(8).hex()}"
        file = os.open(name, _NEW_FILE, 0o644, dir_fd=directory)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:
            return name, file
        os.close(file)  # it was swept before it was held


class SparseLayout(Layout):
    """An OCI layout that leaves the base's layers where they are: what is copied is only named.

    What is made new (the config, the added layer, manifests) is written as in any layout.
    """

    def copy_blob(
        self, source: ImageSource, descriptor: Descriptor, *, progress: Progress | None = None
    ) -> None:
        """Leave the blob where it is."""

    def _needed(self, manifest: RawManifest) -> list[Descriptor]:
        """What must be there before ``manifest`` is: a manifest's config, an index's manifests."""
        return _parts(manifest, self.name, ("manifests", "config"))


_LAYOUT = {"imageLayoutVersion": LAYOUT_VERSION}
_EMPTY_INDEX = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}


def _blob_parts(digest: str, where: str) -> tuple[str, str, str]:
    if not is_digest(digest):
        raise ImageMismatch("not a digest", where=where, expected="sha256:…", found=digest[:100])
    return "blobs", "sha256", digest.removeprefix("sha256:")


def _parts(manifest: RawManifest, where: str, keys: tuple[str, ...]) -> list[Descriptor]:
    document = json_object(manifest.data, where)
    found: list[Descriptor] = []
    for key in keys:
        value = document.get(key, [])
        listed = value if isinstance(value, list) else [value]
        found += [Descriptor.from_json(entry, f"{where}@{manifest.digest}") for entry in listed]
    return found


def _lists_referrers(entry: Descriptor) -> bool:
    """Whether an entry is the index of an image's referrers, by its fallback tag (distribution-spec 1.1)."""
    return is_digest(entry.annotations.get(REF_NAME, "").replace("-", ":", 1))


def _tag_of(entry: object) -> object:
    annotations = entry.get("annotations") if isinstance(entry, Mapping) else None
    return annotations.get(REF_NAME) if isinstance(annotations, Mapping) else None


def _counted(chunks: Iterable[bytes], progress: Progress | None) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        if progress is not None:
            progress(len(chunk))
