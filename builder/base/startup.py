"""How a container of an image starts: which Python its entry point is, and what comes first on its path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.oci.settings import Settings

if TYPE_CHECKING:  # a build on a locked base reads no layer
    from builder.base.providers import Read
    from builder.oci.rootfs import Found, RootFS

_PYTHON = re.compile(r"python(3(\.\d+)?)?t?\Z")
_WRAPPERS = ("tini", "dumb-init", "catatonit")  # they start the rest of their words
_VALUES = "QWXcm"  # options of Python that take a value
_DECIDING = ("PATH", "HOME", "CUDA_VERSION")


@dataclass(frozen=True)
class Program:
    """An entry point that is Python.

    Args:
        interpreter: its path.
        environment: what it sees of the environment.
        first: the directory that it puts before its search path; None for none.
    """

    interpreter: str
    environment: Mapping[str, str]
    first: str | None


def deciding(start: Settings) -> dict[str, str]:
    """The variables that decide which Python runs, and where it looks."""
    return {
        name: value
        for name, value in sorted(start.environment.items())
        if name in _DECIDING or name.startswith("PYTHON")
    }


def entry_program(rootfs: RootFS, start: Settings) -> Program | None:
    """The entry point's own Python; None where it is something else (a shell, a script of the image's)."""
    words = list(start.started)
    environment = dict(start.environment)
    while words:
        name = words[0].rpartition("/")[2]
        if name == "env":
            words = _after_env(words[1:], environment)
        elif name in _WRAPPERS:
            words = words[1:]
            while words and words[0].startswith("-"):
                words = words[1:]
        else:
            break
    path = _resolved(rootfs, words[0], environment, start.start_directory) if words else None
    if path is None:
        return None
    if _PYTHON.match(path.rpartition("/")[2]):
        return _python(rootfs, path, words[1:], environment, start.start_directory)
    beside = f"{path.rpartition('/')[0]}/python3"
    above = path.rpartition("/")[0].rpartition("/")[0]
    if rootfs.lookup(f"{above}/pyvenv.cfg") is not None and _is_program(rootfs.lookup(beside)):
        return Program(beside, environment, None)  # a script of a virtual environment names its own Python
    return None


def home_of(rootfs: RootFS, start: Settings, read: Read) -> str:
    """The home directory that an engine gives a container's user."""
    if home := start.environment.get("HOME"):
        return home
    user = start.user.partition(":")[0]
    if user in ("", "0", "root"):
        return "/root"
    found = rootfs.lookup("/etc/passwd")
    data = read(found) if found is not None and found.is_file and found.size <= 1 << 20 else None
    for line in (data or b"").decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and user in (fields[0], fields[2]):
            return fields[5] or "/"
    return "/" if user.isdigit() else f"/home/{user}"


def _after_env(words: list[str], environment: dict[str, str]) -> list[str]:
    while words and (words[0].startswith("-") or "=" in words[0]):
        if "=" in words[0] and not words[0].startswith("-"):
            name, _, value = words[0].partition("=")
            environment[name] = value
        elif words[0] in ("-i", "-"):
            environment.clear()
        words = words[1:]
    return words


def _resolved(rootfs: RootFS, word: str, environment: Mapping[str, str], working_dir: str) -> str | None:
    if "/" in word:
        path = word if word.startswith("/") else f"{working_dir.rstrip('/')}/{word}"
        return path if _is_program(rootfs.lookup(path)) else None
    for directory in environment.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":"):
        path = f"{directory.rstrip('/')}/{word}"
        if directory.startswith("/") and _is_program(rootfs.lookup(path)):
            return path
    return None


def _is_program(found: Found | None) -> bool:
    return found is not None and found.is_file and bool(found.mode & 0o111)


def _python(
    rootfs: RootFS, path: str, words: list[str], environment: dict[str, str], working_dir: str
) -> Program:
    flags, first = "", working_dir
    while words:
        word = words.pop(0)
        if not word.startswith("-") or word == "-":
            if word != "-":
                script = word if word.startswith("/") else f"{working_dir.rstrip('/')}/{word}"
                first = "/" + (rootfs.real_path(script) or script.lstrip("/")).rpartition("/")[0]
            break
        if word.startswith("--"):
            continue
        flags += word[1:]
        valued = next((place for place, flag in enumerate(word[1:], 1) if flag in _VALUES), None)
        if valued is not None and word[valued] in "cm":
            break
        if valued == len(word) - 1 and words:
            words.pop(0)
    if set(flags) & set("EI"):
        environment = {name: value for name, value in environment.items() if not name.startswith("PYTHON")}
    if set(flags) & set("sI"):
        environment["PYTHONNOUSERSITE"] = "1"
    is_safe = bool(set(flags) & set("PI")) or bool(environment.get("PYTHONSAFEPATH"))
    return Program(path, environment, None if is_safe else first)
