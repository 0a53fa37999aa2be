"""The process in which probes run: it executes upstream's code, so it can reach nothing but its pipe.

It is started once (:func:`main`) and forks for each probe. The fork gives up what the kernel lets it give
up: every further file descriptor (so no file, socket or pipe can be opened), writes, child processes,
memory and processor time beyond its share, and root's identity. What needs no descriptor (removing,
renaming, signalling, loading C code) is refused by an audit hook. Standard library only, like a probe.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import builder.probe.devices  # noqa: F401 - probes import it, and the walls keep it out once they are up
from builder.probe.harness import Answer, ask, unknown
from builder.probe.messages import Channel

NOBODY = 65534

# What upstream's modules import from the standard library: nothing can be loaded once the walls are up.
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

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._read: dict[str, bytes | None] = {}

    def _ask(self, **request: str) -> bytes:
        self._channel.send(json.dumps(request).encode())
        return self._channel.receive()

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
    while True:
        job = json.loads(channel.receive())
        source = channel.receive()
        child = os.fork()
        if child == 0:
            _run_job(channel, job, source)
        _, status = os.waitpid(child, 0)
        channel.send(json.dumps({"do": "ended", "status": os.waitstatus_to_exitcode(status)}).encode())


def _run_job(channel: Channel, job: Mapping[str, Any], source: bytes) -> None:
    """The fork: run the probe, send its answer, end."""
    code = 1
    try:
        answer = _answer(channel, job, source)
        facts = {"state": answer.state, "evidence": answer.evidence, "pins": list(answer.pins)}
        facts["site"] = answer.site
        channel.send(json.dumps({"do": "answer"} | facts).encode())
        code = 0
    finally:
        os._exit(code)


def _answer(channel: Channel, job: Mapping[str, Any], source: bytes) -> Answer:
    name = str(job["name"])
    try:
        text = ast.parse(source, f"{name}.py")
        _preload(text)
        code = compile(text, f"{name}.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, ImportError) as error:
        return unknown(f"the probe does not load: {error}")
    module = types.ModuleType("probe")
    sys.modules["probe"] = module
    _raise_walls(int(job["memory"]), float(job["timeout"]))
    try:
        exec(code, vars(module))  # noqa: S102 - the probe; the walls are up
        probe = vars(module)["probe"]
    except BaseException as error:
        return unknown(f"the probe does not load: {type(error).__name__}: {error}")
    return ask(probe, _PipedTree(channel))


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


def _raise_walls(memory: int, seconds: float) -> None:
    """Give up everything but the pipe, for good.

    Args:
        memory: bytes of address space.
        seconds: of processor time; the same of wall-clock time, after which the kernel ends the process.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # a container's root may have no other user; the rest still holds
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
    in_use = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    descriptors = 1 + max(number for number in in_use if _is_open(number))
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: int(seconds) + 1,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: descriptors,
    }
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))
    sys.addaudithook(_refuse)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


_ALLOWED_OS = frozenset({"os.putenv", "os.unsetenv"})
_REFUSED = (
    *(
        "open",
        "os.",
        "socket.",
        "subprocess.",
        "shutil.",
        "tempfile.",
        "ctypes.",
        "fcntl.",
        "pty.",
        "signal.",
    ),
    *("ftplib.", "glob.", "http.", "imaplib.", "nntplib.", "poplib.", "smtplib.", "sqlite3.", "telnetlib."),
    *("urllib.", "webbrowser.", "resource.", "syslog.", "pathlib."),
)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    """The audit hook: a probe computes, and does nothing else."""
    if event.startswith(_REFUSED) and event not in _ALLOWED_OS:
        raise PermissionError(f"a probe may not do this: {event}")
