"""What a change breaks: files before and after are compared, and only what is new counts.

Every changed Python file is compiled. The names that nothing defines in it (pyflakes), and its imports from
within the tree that find nothing, are compared with those before the change: what was so before is
upstream's own. Where it cannot be decided (a module that makes names when it runs, an import that may fail),
nothing is said.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.probe.harness import Tree
from builder.probe.trees import MappingTree
from builder.project.cache import Store
from builder.project.program import source_digest
from builder.project.remembered import Remembered
from builder.soundness.data import LARGEST as LARGEST_DATA
from builder.soundness.data import is_data_file, repeated_keys, why_not_parsed
from builder.soundness.interface import Import
from builder.soundness.modules import Modules, module_of, root_of
from builder.soundness.source import LARGEST, PythonFile
from builder.source.files import SourceFile
from builder.source.git import blob_id

if TYPE_CHECKING:
    from builder.soundness.names import Undefined

Kind = Literal["does-not-compile", "undefined-name", "unresolved-import", "missing-attribute", "data-file"]
Versions = Mapping[str, SourceFile | None]

# `m.name = …`, `setattr(m, "name", …)`, `patch.object(m, "name", …)`; not `self.name = …`.
_SETS = rb"""(?<!\bself)(?<!\bcls)\.%s\s*(?::[^=\n]+)?=(?!=)|\b(?:setattr|object)\([^()\n]*,\s*["']%s["']"""

MOST_READERS = 500
"""Unchanged files that are parsed to see what they take from one module."""


@dataclass(frozen=True)
class Flaw:
    """One thing that a change breaks.

    Args:
        kind: which.
        path: the file.
        line: from 1; None where the file as a whole is meant.
        name: the name, or ``module.name``; of a file that does not compile or parse, its path.
        what: one sentence.
    """

    kind: Kind
    path: str
    line: int | None
    name: str
    what: str

    @property
    def place(self) -> str:
        """The file, and the line where there is one."""
        return f"{self.path}, line {self.line}" if self.line else self.path

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


@dataclass(frozen=True)
class Soundness:
    """What was found.

    Args:
        flaws: what the change breaks.
        notes: what could not be looked at, or was broken before.
    """

    flaws: tuple[Flaw, ...] = ()
    notes: tuple[str, ...] = ()


class Checker:
    """Compares files before and after a change; one for a run, since what is read is kept.

    Args:
        cache: the user's cache, where it is kept what was found to be sound; None for nowhere.
    """

    def __init__(self, cache: Path | None) -> None:
        self._known = Remembered(Store(cache / "soundness"), "sound") if cache else None
        self._files: dict[tuple[str, str], PythonFile] = {}

    def check(self, before: Versions, after: Versions, under: Tree) -> Soundness:
        """What a change breaks.

        Args:
            before, after: the changed files; None where there is none.
            under: the tree that the other files are in.
        """
        key = _key(before, after, under)
        if key and self._known is not None and key in self._known:
            return Soundness()
        found = _Comparison(self, before, after, under).result()
        if found == Soundness() and key and self._known is not None:
            self._known.add(key)
        return found

    def save(self) -> None:
        """Keep what was found to be sound for the next run."""
        if self._known is not None:
            self._known.save()

    def read(self, path: str, data: bytes) -> PythonFile:
        """A Python file; the same bytes are looked at once."""
        name = path.rpartition("/")[2]
        key = ("__init__.py" if name == "__init__.py" else "", blob_id(data))
        return self._files.setdefault(key, PythonFile(name, data))


@dataclass(frozen=True)
class _Comparison:
    """One change of a tree."""

    checker: Checker
    before: Versions
    after: Versions
    under: Tree

    def result(self) -> Soundness:
        flaws: list[Flaw] = []
        notes: list[str] = []
        for path in self._changed:
            source = self.after.get(path)
            for found in self._file(path, self.before.get(path), source) if source else ():
                if isinstance(found, Flaw):
                    flaws.append(found)
                else:
                    notes.append(found)
        flaws += [*self._undefined(), *self._unresolved(), *self._left_behind(), *self._missing()]
        notes += self._unread()
        ordered = sorted(dict.fromkeys(flaws), key=lambda flaw: (flaw.path, flaw.line or 0))
        return Soundness(tuple(ordered), tuple(notes))

    @cached_property
    def _changed(self) -> list[str]:
        """The files that differ; links are none."""
        paths = dict.fromkeys([*self.before, *self.after])
        return [path for path in paths if _differ(self.before.get(path), self.after.get(path))]

    @cached_property
    def _then(self) -> Modules:
        return self._modules(self.before)

    @cached_property
    def _now(self) -> Modules:
        return self._modules(self.after)

    def _modules(self, versions: Versions) -> Modules:
        files = {path: source.data if source else None for path, source in versions.items()}
        return Modules(MappingTree(files, under=self.under), self.checker.read)

    def _python(self, versions: Versions) -> Iterator[tuple[str, PythonFile]]:
        """The changed Python files, as far as they can be read."""
        for path in self._changed:
            source = versions.get(path)
            if source is not None and path.endswith(".py"):
                file = self.checker.read(path, source.data)
                if file.interface is not None:
                    yield path, file

    # --- whole files --------------------------------------------------------------------------------------

    def _file(self, path: str, was: SourceFile | None, source: SourceFile) -> Iterator[Flaw | str]:
        if not path.endswith((".py", ".pyi")):
            yield from _data_file(path, was, source)
            return
        if len(source.data) > LARGEST:
            yield _too_large(path, source, LARGEST)
            return
        file = self.checker.read(path, source.data)
        broken = file.broken
        if broken is None:
            if path.endswith(".py") and (file.undefined is None):
                yield f"{path}: nested too deeply for its names to be looked at"
            return
        where = f"{path}, line {broken.line}" if broken.line else path
        said = f"does not compile: {broken.message}"
        if was is not None and self.checker.read(path, was.data).broken is not None:
            yield f"{where}: {said}, as before the change"
        elif broken.is_newer:
            yield f"{where}: needs a newer Python than {_RUNNING}, and is not looked at ({broken.message})"
        else:
            text = f" ({broken.text})" if broken.text else ""
            yield Flaw("does-not-compile", path, broken.line, path, said + text)

    # --- names --------------------------------------------------------------------------------------------

    def _undefined(self) -> Iterator[Flaw]:
        """Names that nothing defines, and that were not so before, here or where the code has come from."""
        now = [
            (path, file, use)
            for path, file in self._python(self.after)
            for use in self._uses(path, file, self._now)
        ]
        if not now:
            return
        was = {
            (path, use.name)
            for path, file in self._python(self.before)
            for use in self._uses(path, file, self._then)
        }
        moved = {name for _, name in was - {(path, use.name) for path, _, use in now}}
        first: dict[tuple[str, str], tuple[PythonFile, Undefined]] = {}
        for path, file, use in now:
            if (path, use.name) not in was and use.name not in moved:
                first.setdefault((path, use.name), (file, use))
        for (path, name), (file, use) in first.items():
            text = "__all__ names it" if use.is_export else file.text_of(use.line)[:120]
            yield Flaw("undefined-name", path, use.line, name, f"{name} is not defined: {text}")

    def _uses(self, path: str, file: PythonFile, modules: Modules) -> Iterator[Undefined]:
        interface = file.interface
        if interface is None or interface.writes_globals:
            return
        for use in file.undefined or ():
            if use.is_export and interface.is_open:
                continue
            if not (use.through_star and modules.stars_may_have(path, use.name, interface.stars)):
                yield use

    # --- imports ------------------------------------------------------------------------------------------

    def _unresolved(self) -> Iterator[Flaw]:
        """Imports of changed files that find nothing, and did find something or were not there before."""
        old = {
            path: set(file.interface.imports) for path, file in self._python(self.before) if file.interface
        }
        for path, file in self._python(self.after):
            for taken in file.interface.imports if file.interface else ():
                is_old = taken in old.get(path, ())
                if taken.is_guarded or (is_old and not self._lost) or not self._now.lacks(path, taken):
                    continue
                if self._then.lacks(path, taken) and (is_old or self._comes_from_outside(path, taken)):
                    continue
                yield self._flaw(path, taken)

    def _flaw(self, path: str, taken: Import) -> Flaw:
        module = self._now.module(path, taken) or taken.module
        if taken.name in (None, "*"):
            return Flaw("unresolved-import", path, taken.line, module, f"there is no module {module}")
        what = f"{module} has no {taken.name}"
        if not self._now.exists(path, taken):
            what = f"there is no module {module} (for {taken.name})"
        return Flaw("unresolved-import", path, taken.line, f"{module}.{taken.name}", what)

    def _comes_from_outside(self, path: str, taken: Import) -> bool:
        """Whether a module is not in the tree, and files that are not changed take the same from it."""
        if self._then.exists(path, taken):
            return False
        module = self._now.module(path, taken) or ""
        wanted = (module, taken.name)
        names = None if taken.name in (None, "*") else frozenset({str(taken.name)})
        for other in self._readers(module, names, root_of(path))[:MOST_READERS]:
            interface = self._now.interface(other)
            for found in interface.imports if interface else ():
                if not found.is_guarded and (self._now.module(other, found), found.name) == wanted:
                    return True
        return False

    # --- attributes of modules ----------------------------------------------------------------------------

    def _missing(self) -> Iterator[Flaw]:
        """Attributes of modules of the tree that are not there, and were, or were not asked for before."""
        was = {(path, name) for path, name, _ in self._lacking(self._python(self.before), self._then)}
        moved = {name for _, name in was}
        readers = ((path, self._now.source(path)) for path in self._touching_lost)
        for path, name, line in self._lacking([*self._python(self.after), *readers], self._now):
            is_old = name in moved if self._is_changed(path) else self._lacked(path, name)
            if not is_old and not self._is_set_somewhere(name.rpartition(".")[2]):
                module, _, attribute = name.rpartition(".")
                yield Flaw("missing-attribute", path, line, name, f"{module} has no {attribute}")

    def _lacking(
        self, files: Iterable[tuple[str, PythonFile]], modules: Modules
    ) -> Iterator[tuple[str, str, int]]:
        """File, dotted name and line of each attribute that is not there, once a file."""
        for path, file in files:
            if file.interface is None or file.interface.writes_globals:
                continue
            first: dict[str, int] = {}
            for use in sorted(file.uses, key=lambda use: use.line):
                if name := modules.missing(path, use):
                    first.setdefault(name, use.line)
            yield from ((path, name, line) for name, line in first.items())

    def _is_changed(self, path: str) -> bool:
        return path in self.before or path in self.after

    def _lacked(self, path: str, name: str) -> bool:
        """Whether a file that is not changed found no such attribute before."""
        return any(
            name == lacking for _, lacking, _ in self._lacking([(path, self._then.source(path))], self._then)
        )

    @cached_property
    def _touching_lost(self) -> list[str]:
        """Files that are not changed and may take by a dot what changed files have no more."""
        found: dict[str, None] = {}
        for path, names in self._lost.items():
            for other in self._readers(module_of(path), names, root_of(path))[:MOST_READERS] if names else ():
                data = self.under.read(other)
                if any(b"." + name.encode() in data for name in names or ()):
                    found[other] = None
        return list(found)

    def _is_set_somewhere(self, attribute: str) -> bool:
        """Whether a file of the tree gives something that is not its own object an attribute of this name."""
        sets = re.compile(_SETS.replace(b"%s", re.escape(attribute.encode())))
        paths = self.under.grep(attribute.encode(), "python/")
        data = (
            self.under.read(path) for path in paths if path.endswith(".py") and not self._is_changed(path)
        )
        ours = (source.data for source in self.after.values() if source is not None)
        return any(sets.search(text) for text in (*ours, *data))

    @cached_property
    def _lost(self) -> dict[str, frozenset[str] | None]:
        """What changed files had and have no more: names; None where the file itself is gone."""
        now = {path: file.interface for path, file in self._python(self.after) if file.interface}
        lost: dict[str, frozenset[str] | None] = {}
        for path, file in self._python(self.before):
            if self.after.get(path) is None:
                lost[path] = None
            elif file.interface and path in now and (names := file.interface.names - now[path].names):
                lost[path] = names
        return lost

    def _left_behind(self) -> Iterator[Flaw]:
        """Imports of files that are not changed, of what changed files have no more."""
        for path, names in self._lost.items():
            module = module_of(path)
            for other in self._readers(module, names, root_of(path))[:MOST_READERS]:
                interface = self._now.interface(other)
                for taken in interface.imports if interface else ():
                    if self._concerns(other, taken, module, names) and self._breaks(other, taken):
                        yield self._flaw(other, taken)

    def _concerns(self, path: str, taken: Import, module: str, names: frozenset[str] | None) -> bool:
        found = self._now.module(path, taken)
        if names is None:
            return module in (found, f"{found}.{taken.name}")
        return found == module and taken.name in names

    def _breaks(self, path: str, taken: Import) -> bool:
        """Whether an import found something before the change, and finds nothing after it."""
        return not taken.is_guarded and self._now.lacks(path, taken) and not self._then.lacks(path, taken)

    def _unread(self) -> Iterator[str]:
        """What was not looked at, since too many files may take what went."""
        for path, names in self._lost.items():
            count = len(self._readers(module_of(path), names, root_of(path)))
            if count > MOST_READERS:
                yield (
                    f"{path}: {count} files may import what went from it, and {MOST_READERS} were looked at"
                )

    def _readers(self, module: str, names: frozenset[str] | None, root: str) -> list[str]:
        """Python files that are not changed and hold a module's name and one of some names (None: any)."""
        if (module, names) not in self._found:
            changed = {*self.before, *self.after}
            holding = self.under.grep(module.rpartition(".")[2].encode(), root)
            texts = None if names is None else [name.encode() for name in names]
            self._found[module, names] = [
                path
                for path in holding
                if path.endswith(".py") and path not in changed and self._has_one(path, texts)
            ]
        return self._found[module, names]

    def _has_one(self, path: str, texts: Sequence[bytes] | None) -> bool:
        if texts is None:
            return True
        data = self.under.read(path)
        return any(text in data for text in texts)

    @cached_property
    def _found(self) -> dict[tuple[str, frozenset[str] | None], list[str]]:
        return {}


def _differ(was: SourceFile | None, now: SourceFile | None) -> bool:
    """Whether a file is another; symbolic links are none."""
    is_link = "120000" in (was and was.mode, now and now.mode)
    return not is_link and (was and was.data) != (now and now.data)


def _too_large(path: str, source: SourceFile, largest: int) -> str:
    return f"{path}: {len(source.data)} bytes are too many to be looked at (at most {largest})"


def _data_file(path: str, was: SourceFile | None, source: SourceFile) -> Iterator[Flaw | str]:
    if is_data_file(path) and len(source.data) > LARGEST_DATA:
        yield _too_large(path, source, LARGEST_DATA)
    why = why_not_parsed(path, source.data)
    if why is None:
        repeated = repeated_keys(path, source.data) - (repeated_keys(path, was.data) if was else frozenset())
        if repeated:
            named = ", ".join(sorted(repeated)[:5])
            yield Flaw("data-file", path, None, path, f"has a key twice, of which only one counts: {named}")
        return
    if was is not None and why_not_parsed(path, was.data) is not None:
        yield f"{path}: does not parse, as before the change: {why}"
    else:
        yield Flaw("data-file", path, None, path, f"does not parse: {why}")


_RUNNING = f"{sys.version_info[0]}.{sys.version_info[1]}"


def _key(before: Versions, after: Versions, under: Tree) -> str | None:
    """Names all that decides what is found; None for a tree whose contents have no name."""
    below = getattr(under, "fingerprint", None)
    if below is None:
        return None
    from pyflakes import __version__ as pyflakes

    digest = hashlib.sha256(f"{source_digest('soundness')} {pyflakes} {below}".encode())
    for versions in (before, after):
        for path, source in sorted(versions.items()):
            fact = f"{path}\0{source.mode} {source.blob}" if source else f"{path}\0none"
            digest.update(f"{fact}\0".encode("utf-8", "surrogateescape"))
        digest.update(b"\0")
    return digest.hexdigest()
