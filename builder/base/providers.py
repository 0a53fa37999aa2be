"""What Python's finders would take for a package in one entry of its search path (``importlib``'s order)."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from builder.oci.rootfs import Found, RootFS

Read = Callable[[Found], bytes | None]  # the bytes of a file; None where they cannot be had
MAX_ARCHIVE = 64 << 20  # bytes of an archive on the path that is looked into
_MAX_MEMBERS = 100_000
EXTENSION = re.compile(r"(\.cpython-[^.]+|\.abi3)?\.so\Z")


@dataclass(frozen=True)
class Provider:
    """One thing that ``import PACKAGE`` may take.

    Args:
        path: what it is: a package's directory, a module's file, or an archive with a path in it.
        package: the real directory of a package with an ``__init__.py``, from ``/``; None where it is none.
        reason: how Python gets there.
        loader: what is loaded for a package in the place of its ``__init__.py``.
        is_namespace: whether it is a directory without ``__init__``, for where nothing else is.
    """

    path: str
    package: str | None
    reason: str
    loader: str | None = None
    is_namespace: bool = False


def cannot_read(found: Found) -> bytes | None:
    """A :data:`Read` for where only indexes are at hand."""
    return None


def providers_at(rootfs: RootFS, entry: str, package: str, reason: str, read: Read) -> Iterator[Provider]:
    """What one entry of the path has for a package, the first one first.

    Args:
        rootfs: the image's files.
        entry: of the path: a directory, or an archive.
        package: a top-level package.
        reason: why the entry is on the path.
        read: gives an archive's bytes.
    """
    found = rootfs.lookup(entry)
    if found is None or not found.is_directory:
        yield from _in_archive(rootfs, entry, package, reason, read)
        return
    names = rootfs.listdir(entry)
    path = f"{entry.rstrip('/')}/{package}"
    there = rootfs.lookup(path) if package in names else None
    is_directory = there is not None and there.is_directory
    loader = _first(rootfs, path, "__init__") if is_directory else None
    if there is not None and loader is not None:
        own = f"/{there.path}"
        source = rootfs.lookup(f"{path}/__init__.py")
        is_source = source is not None and source.is_file
        yield Provider(
            path, own if is_source else None, reason, None if loader == "__init__.py" else f"{own}/{loader}"
        )
    module = _first(rootfs, entry, package)
    if module is not None:
        yield Provider(f"{entry.rstrip('/')}/{module}", None, reason)
    if is_directory and loader is None:
        yield Provider(path, None, f"{reason}, a directory without __init__.py", is_namespace=True)


def _first(rootfs: RootFS, directory: str, stem: str) -> str | None:
    """The file that is loaded for a module: an extension module, else source, else bytecode."""
    names = [name for name in rootfs.listdir(directory) if name.startswith(stem)]
    extensions = [name for name in names if EXTENSION.fullmatch(name[len(stem) :])]
    for name in [*extensions, f"{stem}.py", f"{stem}.pyc"]:
        found = rootfs.lookup(f"{directory.rstrip('/')}/{name}") if name in names else None
        if found is not None and found.is_file:
            return name
    return None


def _in_archive(rootfs: RootFS, entry: str, package: str, reason: str, read: Read) -> Iterator[Provider]:
    """What ``zipimport`` would take of an archive, or of a directory in one."""
    archive, inner = entry, ""
    found = rootfs.lookup(archive)
    while found is None and "/" in archive.lstrip("/"):
        archive, _, name = archive.rpartition("/")
        inner = f"{name}/{inner}"
        found = rootfs.lookup(archive)
    if found is None or not found.is_file:
        return
    data = read(found) if found.size <= MAX_ARCHIVE else None
    if data is None:
        yield Provider(archive, None, f"{reason}, an archive that cannot be looked into")
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as opened:
            names = set(opened.namelist()[:_MAX_MEMBERS])
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # Python takes nothing from it either
    wanted = [f"{package}/__init__", package]
    for name in (f"{inner}{stem}{ending}" for stem in wanted for ending in (".pyc", ".py")):
        if name in names:
            yield Provider(f"{archive}/{name}", None, f"{reason}, an archive")
            return
