"""Imports from within a tree: which module is meant, and whether it has the name. Nothing is imported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import PurePosixPath

from builder.probe.harness import Tree
from builder.soundness.attributes import Use
from builder.soundness.interface import Import, Interface
from builder.soundness.source import PythonFile

ROOTS = ("python/", "site-packages/")
"""Where packages of the tree begin: SGLang's, and those of other wheels."""


def root_of(path: str) -> str:
    """The directory from which a file's module has its name; with the slash, empty for the tree itself."""
    return next((root for root in ROOTS if path.startswith(root)), "")


def module_of(path: str) -> str:
    """The dotted name of the module that a file is."""
    name = path[len(root_of(path)) :].removesuffix(".py").removesuffix("/__init__")
    return name.replace("/", ".")


class Modules:
    """The modules of a tree.

    Args:
        tree: the tree.
        read: makes a Python file of its path and bytes.
    """

    def __init__(self, tree: Tree, read: Callable[[str, bytes], PythonFile]) -> None:
        self._tree = tree
        self._read = read

    def module(self, path: str, taken: Import) -> str | None:
        """The full name of the module that an import in ``path`` is from; None where it leads out of the
        tree."""
        if not taken.level:
            return taken.module
        package = path.rpartition("/")[0][len(root_of(path)) :].split("/")
        above = package[: len(package) - taken.level + 1]
        if taken.level > len(package):
            return None
        return ".".join([*above, *([taken.module] if taken.module else [])])

    def lacks(self, path: str, taken: Import) -> bool:
        """Whether an import in the file ``path`` certainly finds no module or no such name in it."""
        module = self.module(path, taken)
        root = self._home(module, path) if module else None
        if module is None or root is None:
            return False
        place = root + module.replace(".", "/")
        if not self._is_there(place):
            return not self._may_hide(root, module)
        if taken.name is None or taken.name == "*":
            return False
        return self._lacks_name(place, taken.name, set())

    def missing(self, path: str, use: Use) -> str | None:
        """The dotted name that a use of attributes certainly does not find; None where it may be there.

        Of several imports that may have bound the first name, none may have it.
        """
        found = [self._missing(path, taken, use.names) for taken in use.bound]
        return found[0] if all(found) else None

    def _missing(self, path: str, taken: Import, names: Sequence[str]) -> str | None:
        place = self._place(path, taken)
        for name in names:
            if place is None:
                return None
            if self._lacks_name(place, name, set()):
                return f"{module_of(place)}.{name}"
            place = self._submodule(place, name)
        return None

    def _place(self, path: str, taken: Import) -> str | None:
        """Where the module is that an import certainly binds."""
        module = self.module(path, taken)
        root = self._home(module, path) if module else None
        if module is None or root is None:
            return None
        place = root + module.replace(".", "/")
        if not self._is_there(place):
            return None
        return place if taken.name is None else self._submodule(place, taken.name)

    def _submodule(self, place: str, name: str) -> str | None:
        """Where the module ``name`` below a package is, if nothing else of that name can be meant."""
        below = f"{place}/{name}"
        path = self.file(place)
        if not self._is_there(below) or (path is not None and self._may_define(path, name)):
            return None
        return below

    def _may_define(self, path: str, name: str) -> bool:
        """Whether a package itself may bind a name, which is then not a module below it."""
        interface = self.interface(path)
        if interface is None or interface.is_open or name in interface.names:
            return True
        return self.stars_may_have(path, name, interface.stars)

    def file(self, place: str) -> str | None:
        """The file of the module at ``place``, a path without ending; None where there is none."""
        return next((path for path in (f"{place}/__init__.py", f"{place}.py") if path in self._tree), None)

    def source(self, path: str) -> PythonFile:
        """A file."""
        return self._read(path, self._tree.read(path))

    def interface(self, path: str) -> Interface | None:
        """The interface of a file."""
        return self.source(path).interface

    # --- inside -------------------------------------------------------------------------------------------

    def _home(self, module: str, path: str) -> str | None:
        """The root below which the tree has a module's package; None where it is not of the tree."""
        top = module.partition(".")[0]
        if root := next((root for root in ROOTS if self._is_there(root + top)), None):
            return root
        own = root_of(path)
        return own if self.file(own + top) else None

    def exists(self, path: str, taken: Import) -> bool:
        """Whether the tree has the module that an import in ``path`` is from."""
        module = self.module(path, taken)
        root = self._home(module, path) if module else None
        return module is not None and root is not None and self._is_there(root + module.replace(".", "/"))

    def _is_there(self, place: str) -> bool:
        return self.file(place) is not None or place in self._directories

    @cached_property
    def _directories(self) -> frozenset[str]:
        """Every directory that has a file in it, or below."""
        found: set[str] = set()
        for path in self._tree.paths():
            above = path.rpartition("/")[0]
            while above and above not in found:
                found.add(above)
                above = above.rpartition("/")[0]
        return frozenset(found)

    def _may_hide(self, root: str, module: str) -> bool:
        """Whether a package above makes modules when it runs, or the module is one that a build makes."""
        parts = module.split(".")
        above = (root + "/".join(parts[:depth]) for depth in range(1, len(parts)))
        return is_generated(parts[-1]) or any(self._is_open(place) for place in above)

    def _is_open(self, place: str) -> bool:
        path = self.file(place)
        interface = self.interface(path) if path else None
        return path is not None and (interface is None or interface.is_open)

    def _lacks_name(self, place: str, name: str, seen: set[str]) -> bool:
        """Whether the module at ``place`` certainly has no such name, neither as a module below it."""
        path = self.file(place)
        if path is None:  # a directory without __init__.py has but its modules
            return not self._has_module(place, name)
        if path in seen:
            return True
        seen.add(path)
        interface = self.interface(path)
        if interface is None or interface.is_open or name in interface.names or self._has_module(place, name):
            return False
        return all(self._star_lacks(path, star, name, seen) for star in interface.stars)

    def _star_lacks(self, path: str, star: Import, name: str, seen: set[str]) -> bool:
        module = self.module(path, star)
        root = self._home(module, path) if module else None
        if module is None or root is None:
            return False
        place = root + module.replace(".", "/")
        path_of_star = self.file(place)
        if path_of_star is None:
            return False
        interface = self.interface(path_of_star)
        if interface is not None and not interface.is_open and interface.withholds(name):
            return not self._has_module(place, name)
        return self._lacks_name(place, name, seen)

    def _has_module(self, place: str, name: str) -> bool:
        below = f"{place}/{name}"
        return is_generated(name) or self._is_there(below)

    def stars_may_have(self, path: str, name: str, stars: Collection[Import]) -> bool:
        """Whether a name of the file ``path`` may come from its star imports."""
        return not all(self._star_lacks(path, star, name, {path}) for star in stars)


def is_generated(name: str) -> bool:
    """Whether a module of this name is made when a package is built, and is in no source tree."""
    stem = PurePosixPath(name).name
    return stem in ("version", "_version", "_C") or stem.endswith(("_pb2", "_pb2_grpc", "_C"))
