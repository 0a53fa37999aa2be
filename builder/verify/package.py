"""Everything below a package's directory is the base's, but for what the manifest names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from builder.oci.rootfs import Files, Found
from builder.oci.tarwalk import Kind
from builder.printable import counted
from builder.verify.deviation import Deviation

_CACHE = "__pycache__"


@dataclass
class PackageFindings:
    """What differs below the packages' directories.

    Args:
        deviations: what is not the base's.
        bytecode: files in ``__pycache__`` that the base has not, or has otherwise.
        unsure: large files of a container whose bytes are not known on both sides; their sizes are equal.
        compared: how many files were looked at.
    """

    deviations: list[Deviation] = field(default_factory=list)
    bytecode: list[Found] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    compared: int = 0


def compare_package(
    files: Files,
    base: Files,
    directories: Collection[str],
    handled: Collection[str],
    origin: Callable[[Found], str],
) -> PackageFindings:
    """Hold directories against those of the base.

    Args:
        files: of the image or container.
        base: of the base alone.
        directories: of packages, from ``/``.
        handled: files that the manifest says something of, which are looked at elsewhere; from ``/``.
        origin: says where a file comes from.
    """
    walk = _Walk(files, base, handled, origin)
    for directory in directories:
        walk.compare(directory)
    return walk.findings


class _Walk:
    def __init__(
        self, files: Files, base: Files, handled: Collection[str], origin: Callable[[Found], str]
    ) -> None:
        self.findings = PackageFindings()
        self._files, self._base, self._origin = files, base, origin
        self._handled = frozenset(handled)
        self._above = frozenset(above for path in handled for above in _parents(path))
        self._seen: set[str] = set()

    def compare(self, directory: str) -> None:
        waiting = [directory]
        while waiting:
            path = waiting.pop()
            if path in self._seen or path in self._handled:
                continue
            self._seen.add(path)
            ours, theirs = self._files.at(path), self._base.at(path)
            if self._is_entered(path, ours, theirs):
                names = {*self._files.listdir(path)} if ours and ours.is_directory else set[str]()
                names |= {*self._base.listdir(path)} if theirs and theirs.is_directory else set()
                waiting += [f"{path}/{name}" for name in sorted(names, reverse=True)]
            elif ours is not None or theirs is not None:
                self._compare_leaf(path, ours, theirs)

    def _is_entered(self, path: str, ours: Found | None, theirs: Found | None) -> bool:
        """Whether a directory is looked into; one that only one side has is one finding."""
        is_directory = [found is not None and found.is_directory for found in (ours, theirs)]
        one_sided = None in (ours, theirs) and any(is_directory)
        return all(is_directory) or (one_sided and (path in self._above or path.endswith(f"/{_CACHE}")))

    def _compare_leaf(self, path: str, ours: Found | None, theirs: Found | None) -> None:
        self.findings.compared += 1
        if path.rpartition("/")[0].endswith(f"/{_CACHE}") and path.endswith(".pyc"):
            if ours is not None and (theirs is None or _is_same(ours, theirs) is not True):
                self.findings.bytecode.append(ours)
            return  # without it, Python compiles the source
        self.findings.deviations += self._deviation(path, ours, theirs)

    def _deviation(self, path: str, ours: Found | None, theirs: Found | None) -> Iterator[Deviation]:
        if ours is None:
            what = "a directory" if theirs is not None and theirs.is_directory else "a file"
            yield Deviation("package", path, f"{what} of the base is gone")
        elif theirs is None:
            count = self._count(path) if ours.is_directory else 0
            if ours.is_directory and not count:
                return
            what = f"a directory with {counted(count, 'file')}" if ours.is_directory else "a file"
            yield Deviation(
                "package", path, f"{what} that neither base nor overlay has ({self._origin(ours)})"
            )
        elif (is_same := _is_same(ours, theirs)) is False:
            what = f"not the base's file ({self._origin(ours)})"
            yield Deviation("package", path, what, _facts(theirs), _facts(ours))
        elif ours.kind is not Kind.SYMLINK and ours.mode != theirs.mode:
            yield Deviation(
                "mode", path, "another mode than the base's", f"{theirs.mode:04o}", f"{ours.mode:04o}"
            )
        elif is_same is None and ours.stored_layer >= 0:
            what = f"lies over the base's file, and is too large to be compared ({self._origin(ours)})"
            yield Deviation("package", path, what)
        elif is_same is None:
            self.findings.unsure.append(path)

    def _count(self, directory: str) -> int:
        """The files below a directory, without bytecode that has no source there."""
        count, waiting = 0, [directory]
        while waiting:
            path = waiting.pop()
            found = self._files.at(path)
            if found is not None and found.is_directory:
                waiting += [f"{path}/{name}" for name in self._files.listdir(path)]
            else:
                count += 1
        return count


def _is_same(ours: Found, theirs: Found) -> bool | None:
    """Whether two are the same but for mode, owner and time; None where only their sizes are known."""
    if (ours.kind, ours.link, ours.size) != (theirs.kind, theirs.link, theirs.size):
        return False
    if not ours.is_file:
        return True
    if ours.sha256 and theirs.sha256:
        return ours.sha256 == theirs.sha256
    is_stored_once = ours.stored_layer >= 0 and (ours.stored_layer, ours.stored) == (
        theirs.stored_layer,
        theirs.stored,
    )
    return True if is_stored_once else None


def _facts(found: Found) -> str:
    if found.kind is Kind.SYMLINK:
        return f"a symbolic link to {found.link}"
    if not found.is_file:
        return f"a {found.kind.value}"
    return f"sha256:{found.sha256}" if found.sha256 else counted(found.size, "byte")


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path
