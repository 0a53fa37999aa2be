"""Code that Python runs by itself when it starts: import lines of ``.pth`` files, customization modules.

What it does cannot be decided on paper. What Debian, Ubuntu and setuptools ship is known by its content;
everything else is named, so that a person can look.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.base.providers import cannot_read, providers_at
from builder.oci.rootfs import Found, RootFS

_MODULES = ("sitecustomize", "usercustomize")
_KNOWN_FILES = frozenset(
    {
        # An empty file; Debian's and Ubuntu's hook for apport; Debian's of a Python without apport.
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "43d81125d92376b1a69d53a71126a041cc9a18d8080e92dea0a2ae23be138b1e",
        "9e2e46a13d67d4db30774e3aa917b9ebac42c120dfc3e508c796cfa2f60b7c61",
    }
)
_KNOWN_LINES = (
    # setuptools, distutils-precedence.pth (since 50)
    re.compile(
        r"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os\.environ\.get\(var, '(local|stdlib)'\)"
        r" == 'local'; enabled and __import__\('_distutils_hack'\)(\.add_shim\(\);|\.add_shim\(\));? ?"
    ),
    # setuptools, NAME-nspkg.pth: a namespace that is not a package of ours
    re.compile(
        r"import sys, types, os;(has_mfs = sys\.version_info > \(3, 5\);)?p = os\.path\.join\("
        r"sys\._getframe\(1\)\.f_locals\['sitedir'\], \*\('(?P<name>\w+)',(?: ?'\w+',?)*\)\);"
        r"importlib = (has_mfs and )?__import__\('importlib\.util'\);"
        r"(has_mfs and )?__import__\('importlib\.machinery'\);"
        r"m = (has_mfs and )?sys\.modules\.setdefault\('[\w.]+', "
        r"importlib\.util\.module_from_spec\(importlib\.machinery\.PathFinder\.find_spec\('[\w.]+', "
        r"\[os\.path\.dirname\(p\)\]\)\)\);"
        r"m = m or sys\.modules\.setdefault\('[\w.]+', types\.ModuleType\('[\w.]+'\)\);"
        r"mp = \(m or \[\]\) and m\.__dict__\.setdefault\('__path__',\[\]\);"
        r"\(p not in mp\) and mp\.append\(p\)"
        r"(;m and setattr\(sys\.modules\['[\w.]+'\], '\w+', m\))?"
    ),
)
_OF_ITS_OWN = ("MAPPING", "NAMESPACES", "PATH_PLACEHOLDER")  # what differs from one finder to another
_KNOWN_FINDERS = frozenset(  # setuptools' own, by the first version that was looked at
    {
        "e2eeeff3f634f5d6bf0e4a2a92d08e7dc1606252b74df29f73c4fefa0a696a46",  # since 64.0.3
        "2995f4ceef0589c859a04469b24e97db915a149e5ed898de39379c9a60381abc",  # since 65.5.1
        "ed72c5d8574d78510dce3297027a40ce4ef0c4057377f6fc6c524849a03d0ac6",  # since 68.2.2
        "af9fc9c1f9714c35b689265bd6b0a05ca448698ec91eae0c6afd4513e4be380d",  # since 70.3.0
        "cb42aaf1837244e09591210e22990da974c618b5eb0fc249a42f84d8003d78f9",  # since 72.2.0
    }
)


@dataclass(frozen=True)
class StartupCode:
    """Code that runs before anything is imported.

    Args:
        path: the file that holds or names it.
        layer: the layer that has it, counted from 0.
        what: what it is.
    """

    path: str
    layer: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what} runs when Python starts, and is not known: look into it"


def is_known_line(line: str) -> bool:
    """Whether an import line of a ``.pth`` file is one that setuptools writes."""
    found = next((match for pattern in _KNOWN_LINES if (match := pattern.fullmatch(line.rstrip("\r")))), None)
    return found is not None and found.groupdict().get("name") != "sglang"


def is_known_finder(source: bytes) -> bool:
    """Whether an editable finder is setuptools' own, but for what it maps."""
    return finder_digest(source) in _KNOWN_FINDERS


def finder_digest(source: bytes) -> str | None:
    """SHA-256 of a finder's code without what it maps; None where it cannot be read."""
    try:
        tree = ast.parse(source)  # as text below: each Python writes a tree in its own way
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines = source.splitlines()
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or len(targets) != 1:
            continue
        is_own = isinstance(targets[0], ast.Name) and targets[0].id in _OF_ITS_OWN
        if is_own and statement.value is not None and _is_literal(statement.value):
            last = statement.end_lineno or statement.lineno
            if statement.col_offset or lines[last - 1][statement.end_col_offset :].strip():
                return None  # something else stands on these lines
            lines[statement.lineno - 1 : last] = [b""] * (last - statement.lineno + 1)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def unread_rest(found: Found) -> StartupCode | None:
    """A ``.pth`` file of which only the beginning, or nothing, was kept."""
    if found.size <= len(found.data or b""):
        return None
    return StartupCode(f"/{found.path}", found.layer, f"a file of {found.size} bytes, too large to be read,")


def customizations(rootfs: RootFS, entries: Sequence[str], reasons: Mapping[str, str]) -> list[StartupCode]:
    """``sitecustomize`` and ``usercustomize``, the first of each on the path, where they are not known."""
    found = []
    for module in _MODULES:
        there = (
            provider
            for entry in entries
            for provider in providers_at(rootfs, entry, module, reasons[entry], cannot_read)
            if not provider.is_namespace and not _is_blind(provider.reason)
        )
        provider = next(there, None)
        if provider is None:
            continue
        path = provider.loader or (f"{provider.package}/__init__.py" if provider.package else provider.path)
        file = rootfs.lookup(path)
        if file is not None and not (path.endswith(".py") and file.sha256 in _KNOWN_FILES):
            found.append(StartupCode(path, file.layer, f"the module {module}"))
    return found


def _is_blind(reason: str) -> bool:
    return reason.endswith("cannot be looked into")
