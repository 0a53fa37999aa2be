"""The process in which probes run: it executes upstream's code, so it can reach nothing but its pipe.

It is started once (:func:`main`) and forks for each probe. The fork gives up what the kernel lets it give up
(:mod:`builder.probe.confinement`). Every frame that it sends begins with a word that it was told: what the
source writes on the pipe by itself is seen, and not taken for an answer. Standard library only, like a probe.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import builder.probe.devices  # noqa: F401 - probes import it, and nothing can be loaded later
from builder.probe.confinement import SECCOMP, confine, empty_directory, isolate
from builder.probe.harness import Answer, ask, unknown
from builder.probe.messages import SUPPORT, Channel

_LONGEST = 10_000  # characters of evidence that are sent
# What upstream's modules import from the standard library: nothing can be loaded once the limits are set.
_PRELOADED = (
    "abc argparse asyncio base64 bisect collections collections.abc concurrent.futures contextlib "
    "contextvars copy copyreg dataclasses datetime decimal difflib enum fractions functools gc glob "
    "hashlib heapq inspect io ipaddress itertools logging logging.handlers math multiprocessing numbers "
    "operator pathlib pickle platform queue random re secrets select shlex shutil signal socket "
    "statistics string struct subprocess tempfile textwrap threading time traceback types typing "
    "unittest.mock urllib.parse uuid warnings weakref zlib encodings.idna encodings.latin_1 "
    "multiprocessing.shared_memory"
)


class _PipedTree:
    """The tree, read through the pipe: only what is asked for is sent."""

    def __init__(self, ask: Callable[[Mapping[str, str]], bytes]) -> None:
        self._asked = ask
        self._read: dict[str, bytes | None] = {}

    def _ask(self, **request: str) -> bytes:
        return self._asked(request)

    def read(self, path: str) -> bytes:
        if path not in self._read:
            found = self._ask(do="read", path=path)
            self._read[path] = found[1:] if found[:1] == b"+" else None
        data = self._read[path]
        if data is None:
            raise KeyError(path)
        return data

    def __contains__(self, path: str) -> bool:
        return self._read.get(path) is not None or self._ask(do="contains", path=path) == b"+"

    def paths(self, prefix: str = "") -> Iterable[str]:
        return [str(path) for path in json.loads(self._ask(do="paths", prefix=prefix))]

    def grep(self, text: bytes, prefix: str = "") -> list[str]:
        found = self._ask(do="grep", text=text.decode("latin-1"), prefix=prefix)
        return [str(path) for path in json.loads(found)]


def main() -> None:
    """Serve jobs from standard input until it closes; each job runs in a fork of its own."""
    channel = Channel(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)
    sys.path[:] = [path for path in sys.path if path != os.environ.get("OVERLAY_PROBE_PATH")]
    for name in _PRELOADED.split():
        with contextlib.suppress(ImportError):  # a Python without it: upstream's import fails there as well
            importlib.import_module(name)
    held = ["namespaces"] if isolate() else []
    while True:
        job = json.loads(channel.receive())
        source = channel.receive()
        empty = empty_directory()
        child = os.fork()
        if child == 0:
            _run_job(channel, job, source, held, empty)
        if empty is not None:
            os.close(empty)
        _, status = os.waitpid(child, 0)
        ended = {"do": "ended", "status": os.waitstatus_to_exitcode(status)}
        channel.send(job["word"].encode() + json.dumps(ended).encode())


def _run_job(
    channel: Channel, job: Mapping[str, Any], source: bytes, held: Sequence[str], empty: int | None
) -> None:
    """The fork: run the probe, send its answer, end."""
    word = str(job["word"]).encode()
    code = 1

    def send(facts: Mapping[str, object]) -> None:
        channel.send(word + json.dumps(facts).encode())

    def ask_tree(request: Mapping[str, str]) -> bytes:
        send(request)
        return channel.receive()

    def confined() -> bool:
        """Set the limits; whether they are what is asked for."""
        limits = [*held, *confine(int(job["memory"]), float(job["timeout"]), empty)]
        if job["required"] and SECCOMP not in limits:
            send({"do": "weak", "limits": limits})
            return False
        if job["name"] == "":  # only asked what this machine gives
            send({"do": "limits", "limits": limits})
            return False
        return True

    try:
        answer = _answer(str(job["name"]), source, confined, _PipedTree(ask_tree))
        if answer:
            evidence, site = str(answer.evidence)[:_LONGEST], str(answer.site)[:_LONGEST]
            facts = {"state": answer.state, "evidence": evidence, "site": site, "was_ended": answer.was_ended}
            send({"do": "answer", **facts, "pins": list(answer.pins)})
        code = 0
    finally:
        os._exit(code)


def _answer(name: str, source: bytes, confined: Callable[[], bool], tree: _PipedTree) -> Answer | None:
    """What the probe says; None where the limits are not as they must be, and nothing was run."""
    try:
        sources = json.loads(source)
        text = ast.parse(_encoded(sources["probe"]), f"{name}.py")
        support = {
            f"{SUPPORT}.{module}": ast.parse(_encoded(data), f"{SUPPORT}/{module}.py")
            for module, data in sources["support"].items()
        }
        for parsed in (text, *support.values()):
            _preload(parsed)
        code = compile(text, f"{name}.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, ImportError) as error:
        return unknown(f"the probe does not load: {error}")
    module = types.ModuleType("probe")
    sys.modules["probe"] = module
    if not confined():
        return None
    _offer(support)
    try:
        exec(code, vars(module))  # noqa: S102 - the probe; nothing can be reached any more
        probe = vars(module)["probe"]
    except BaseException as error:
        return unknown(f"the probe does not load: {type(error).__name__}: {error}")
    return ask(probe, tree)


def _encoded(source: str) -> bytes:
    return source.encode("utf-8", "surrogateescape")


class _Support(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the modules that came with the probe."""

    def __init__(self, sources: Mapping[str, ast.Module]) -> None:
        self._sources = sources

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._sources:
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def exec_module(self, module: types.ModuleType) -> None:
        parsed = self._sources[module.__name__]
        exec(compile(parsed, module.__name__, "exec", dont_inherit=True), vars(module))  # noqa: S102


def _offer(support: Mapping[str, ast.Module]) -> None:
    package = types.ModuleType(SUPPORT)
    package.__path__ = []
    sys.modules[SUPPORT] = package
    sys.meta_path.append(_Support(support))


def _preload(probe: ast.Module) -> None:
    """Import what the probe imports from the standard library, submodules included."""
    for node in ast.walk(probe):
        wanted: dict[str, list[str]] = {}
        if isinstance(node, ast.Import):
            wanted = {alias.name: [] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted = {node.module: [alias.name for alias in node.names]}
        for name, parts in wanted.items():
            if name.partition(".")[0] in sys.stdlib_module_names or name.startswith("builder.probe."):
                __import__(name, fromlist=parts)
