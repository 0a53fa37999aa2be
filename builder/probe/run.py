"""Run probes in a process that can reach nothing but the tree it is asked about."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast, get_args

import builder
from builder.errors import InvalidInput, ProbeFailed
from builder.printable import counted
from builder.probe.confinement import SECCOMP
from builder.probe.harness import Answer, State, Tree, ended, unknown
from builder.probe.messages import SUPPORT, Channel, ChannelClosedError, ChannelTimeoutError, NoFrameError
from builder.probe.trees import MappingTree

TIMEOUT = 30.0
"""Seconds that one probe may take."""

MEMORY = 1 << 30
"""Bytes of address space that one probe may use."""

REQUIRE_SANDBOX = "OVERLAY_REQUIRE_SANDBOX"
"""Set in the environment: no probe runs where the kernel does not hold it (``--require-sandbox``)."""

_REQUEST_LIMIT = 1 << 20
_SUPPORT_IMPORT = re.compile(rf"^\s*from {SUPPORT}\.(\w+) import ", re.MULTILINE)
_EVIDENCE_LIMIT = 1000
_START = "from builder.probe.sandbox import main; main()"


class Prober:
    """A process that runs one probe after the other, each in a fork of its own. Use as a context.

    An answer never says more than the probe found: a probe that crashes, runs out of time or memory, or
    sends something else than an answer is ``unknown``, with the reason.

    Args:
        timeout: seconds that one probe may take, of wall-clock time.
        memory: bytes of address space that one probe may use.
    """

    def __init__(self, *, timeout: float = TIMEOUT, memory: int = MEMORY) -> None:
        self._timeout = timeout
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None

    def __enter__(self) -> Prober:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def ask(self, probe_file: Path, tree: Tree) -> Answer:
        """What the probe says about the tree.

        Args:
            probe_file: ``patches/probes/NAME.py``.
            tree: read by us and sent piece by piece; errors in reading it are raised here.

        Raises:
            InvalidInput: there is no such probe.
            ProbeFailed: the source wrote on the probe's own channel, or this machine cannot hold a probe as
                it must (:data:`REQUIRE_SANDBOX`).
        """
        return self._run(probe_file.stem, read_probe(probe_file), tree)

    def _run(self, name: str, source: bytes, tree: Tree) -> Answer:
        channel = self._channel()
        deadline = time.monotonic() + self._timeout
        word = secrets.token_hex(16)
        job = {"name": name, "timeout": self._timeout, "memory": self._memory, "word": word}
        job["required"] = bool(os.environ.get(REQUIRE_SANDBOX))
        try:
            channel.send(json.dumps(job).encode(), deadline=deadline)
            channel.send(source, deadline=deadline)
            return _converse(channel, tree, deadline, word.encode())
        except NoFrameError as error:
            self._end()
            raise ProbeFailed(
                "the source wrote on the probe's own channel: nothing that it says is believed",
                where=name,
                expected="an answer of the probe, once it returned",
                found=str(error),
                hint="look at the source before anything else: no release of SGLang does this",
            ) from None
        except ChannelTimeoutError:
            self._end()
            return ended(f"took longer than {self._timeout:g} s")
        except (ChannelClosedError, ValueError, LookupError, TypeError) as error:
            said = self._end() or str(error)
            return ended(f"had a process that did not keep to its protocol: {said}")
        except BaseException:
            self._end()
            raise

    def _channel(self) -> Channel:
        if self._process is None:
            path = str(Path(builder.__file__).parent.parent)
            # -I and -S: neither the user's environment nor site-packages has a say in it.
            # Complaints of its start alone: what probes print goes nowhere. Closed by _end().
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
            start = f"import sys; sys.path.append({path!r}); {_START}"
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", start],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                cwd="/",
                env={"OVERLAY_PROBE_PATH": path, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )
        incoming, outgoing = self._process.stdout, self._process.stdin
        if incoming is None or outgoing is None:
            raise ChannelClosedError("the probe's process has no pipes")
        return Channel(incoming.fileno(), outgoing.fileno())

    def _end(self) -> str:
        """End the process and whatever it started; the last line that it complained with."""
        process, self._process = self._process, None
        complaints, self._complaints = self._complaints, None
        if process is None or complaints is None:
            return ""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        with complaints:
            complaints.seek(0)
            lines = complaints.read(_REQUEST_LIMIT).decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")


def sandbox_limits() -> tuple[str, ...]:
    """Which limits this machine's kernel sets for a probe, of :data:`builder.probe.confinement.FULL`."""
    with Prober() as prober:
        return tuple(prober._run("", b'{"probe": "", "support": {}}', MappingTree({})).evidence.split(", "))


def read_probe(probe_file: Path) -> bytes:
    """A probe with the modules of ``support/`` beside it that it imports, as the probe's process reads them.

    Returns:
        JSON: the source of the ``probe``, and ``support`` by module name.

    Raises:
        InvalidInput: there is no such probe, or a module that it imports is not there.
    """
    probe = _read_source(probe_file)
    support: dict[str, str] = {}
    wanted = _support_imports(probe)
    while wanted:
        name = wanted.pop()
        if name not in support:
            support[name] = _read_source(probe_file.parent / SUPPORT / f"{name}.py")
            wanted += _support_imports(support[name])
    return json.dumps({"probe": probe, "support": dict(sorted(support.items()))}).encode()


def _read_source(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise InvalidInput("the probe cannot be read", where=str(path), found=str(error)) from error


def _support_imports(source: str) -> list[str]:
    """The modules of ``support/`` that a source imports by ``from support.NAME import …``."""
    return _SUPPORT_IMPORT.findall(source)


def run_probe(probe_file: Path, tree: Tree, *, timeout: float = TIMEOUT, memory: int = MEMORY) -> Answer:
    """Run one probe on one tree; for more than one, use a :class:`Prober`.

    Args:
        probe_file: ``patches/probes/NAME.py``.
        tree: the source tree.
        timeout: seconds of wall-clock time.
        memory: bytes of address space.

    Raises:
        InvalidInput: there is no such probe.
    """
    with Prober(timeout=timeout, memory=memory) as prober:
        return prober.ask(probe_file, tree)


def _converse(channel: Channel, tree: Tree, deadline: float, word: bytes) -> Answer:
    """Answer the probe's questions about the tree until it ends; its answer."""
    answer: Answer | None = None
    while True:
        request = _request(channel.receive(deadline=deadline, limit=_REQUEST_LIMIT), word)
        if request["do"] == "ended":
            status = int(request["status"])
            if status == 0 and answer is not None:
                return answer
            return ended(f"{_how_it_ended(status)} without an answer")
        if answer is not None:
            raise NoFrameError(f"{request['do']!r} after the answer")
        if request["do"] == "weak":
            raise _too_weak(request["limits"])
        if request["do"] == "limits":
            answer = unknown(", ".join(request["limits"]))
        elif request["do"] == "answer":
            answer = _checked(request)
        else:
            channel.send(_reply(request, tree), deadline=deadline)


def _request(frame: bytes, word: bytes) -> Any:
    """What a frame of the harness says; one without its word is somebody else's."""
    if not frame.startswith(word):
        raise NoFrameError(f"{counted(len(frame), 'byte')} that the harness did not write")
    return json.loads(frame[len(word) :])


def _too_weak(limits: Sequence[str]) -> ProbeFailed:
    return ProbeFailed(
        "this machine cannot keep a probe from reaching out of its process",
        expected=f"{SECCOMP}: a filter of system calls",
        found=", ".join(limits) or "nothing",
        hint="run it where the kernel filters system calls (see overlay doctor), or do not require it",
    )


def _reply(request: Mapping[str, str], tree: Tree) -> bytes:
    do = request["do"]
    if do == "read":
        try:
            return b"+" + tree.read(request["path"])
        except KeyError:
            return b"-"
    if do == "contains":
        return b"+" if request["path"] in tree else b"-"
    if do == "paths":
        return json.dumps(list(tree.paths(request["prefix"]))).encode()
    if do == "grep":
        return json.dumps(tree.grep(request["text"].encode("latin-1"), request["prefix"])).encode()
    raise ValueError(f"an unknown request {do!r}")


def _checked(facts: Mapping[str, object]) -> Answer:
    """The answer, if it is one: a known state, one printable line, names."""
    state, evidence, pins = facts["state"], facts["evidence"], facts["pins"]
    if state not in get_args(State) or not isinstance(evidence, str) or not isinstance(pins, list):
        raise ValueError(f"no answer: {str(facts)[:200]}")
    site = _line(str(facts["site"])) if state == "absent" else ""
    named = tuple(str(pin) for pin in pins)
    return Answer(cast("State", state), _line(evidence), named, site, facts["was_ended"] is True)


def _line(text: str) -> str:
    """Text as one printable line of bounded length."""
    return "".join(c if c.isprintable() else " " for c in text)[:_EVIDENCE_LIMIT]


def _how_it_ended(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
