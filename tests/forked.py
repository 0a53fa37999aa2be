"""``overlay`` as a process of its own that need not import anything: a fork of one that did.

Starting Python and importing what a command needs takes longer than most commands of the tests. A server of
each test process imports the whole package once and runs nothing; every run is a fork of it, with arguments,
environment, directory and streams of its own, and ends as any process does. What a fork cannot have of its
own (what the interpreter and the loader read when they start) is had from a real start.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

READ_AT_START = ("LD_", "PYTHON", "LC_", "LANG", "MALLOC_", "FAKETIME", "GLIBC_", "TZ")
MESSAGE = 1 << 20
# Of other projects, and imported by functions. Not GitPython: it looks for git when it is imported.
LOADED_WHEN_NEEDED = (
    "certifi cryptography.hazmat.primitives.serialization cyclonedx.model.bom cyclonedx.output.json docker "
    "email.utils filelock isal.igzip_lib isal.isal_zlib jinja2.sandbox packageurl platformdirs "
    "pydantic.dataclasses requests rich.console rich.progress rich.syntax shutil unidiff.patch "
    "urllib.request yaml zstandard"
)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether nothing in ``environment`` differs that a process reads when it starts."""
    names = {name for name in (*environment, *os.environ) if name.startswith(READ_AT_START)}
    return all(environment.get(name) == os.environ.get(name) for name in names)


def run(
    program: str, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout: float
) -> tuple[int, bytes, bytes]:
    """The exit code (negative for a signal) and what was printed.

    Args:
        program: what stands in ``sys.argv[0]``.
        arguments: of ``overlay``.
        cwd: where it runs.
        environment: all of it.
        timeout: seconds after which it is killed, and :class:`subprocess.TimeoutExpired` raised.
    """
    request = {"words": [program, *arguments], "cwd": str(cwd), "environment": dict(environment)}
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE)
        connection.connect(server_address())
        socket.send_fds(connection, [json.dumps(request).encode()], [out.fileno(), err.fileno()])
        pid = int(connection.recv(MESSAGE))
        connection.settimeout(timeout)
        try:
            status = int(connection.recv(MESSAGE))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired([program, *arguments], timeout) from None
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), err.read()


@functools.cache
def server_address() -> str:
    """The socket of this process's server, which ends when this process does."""
    directory = tempfile.mkdtemp(prefix="overlay-forks-")
    address = f"{directory}/socket"
    command = [sys.executable, "-m", "tests.forked", address]
    root = Path(__file__).resolve().parent.parent
    server = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin
    assert server.stdout
    atexit.register(_stop, server, directory)
    assert server.stdout.readline() == b"ready\n", "the server of overlay's forks did not start"
    return address


def _stop(server: subprocess.Popen[bytes], directory: str) -> None:
    assert server.stdin
    server.stdin.close()
    server.wait()
    Path(directory, "socket").unlink(missing_ok=True)
    Path(directory).rmdir()


# --- the server's side --------------------------------------------------------------------------------------


def serve(address: str) -> None:
    """Fork for every request, until standard input ends."""
    import select

    import_everything()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        os.write(1, b"ready\n")
        while True:
            ready, _, _ = select.select([listener, 0], [], [], 1.0)
            _reap()
            if 0 in ready:
                return
            if listener in ready:
                connection = listener.accept()[0]
                if os.fork() == 0:
                    listener.close()
                    _watch(connection)
                connection.close()


def import_everything() -> None:
    import gc

    import builder

    for module in pkgutil.walk_packages(builder.__path__, "builder."):
        if not module.name.endswith("__main__") and ".data" not in module.name:
            importlib.import_module(module.name)
    for name in LOADED_WHEN_NEEDED.split():
        if importlib.util.find_spec(name.partition(".")[0]):  # not every machine has isal
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _watch(connection: socket.socket) -> None:
    """Run one request in a child, and tell its process ID and what became of it."""
    data, streams, _, _ = socket.recv_fds(connection, MESSAGE, 2)
    request = json.loads(data)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _command(request, streams)
    connection.send(str(pid).encode())
    connection.send(str(os.waitpid(pid, 0)[1]).encode())
    os._exit(0)


def _command(request: Mapping[str, object], streams: Sequence[int]) -> None:
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    for target, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, target)
        os.close(stream)
    environment, words, directory = request["environment"], request["words"], request["cwd"]
    assert isinstance(environment, dict)
    assert isinstance(words, list)
    assert isinstance(directory, str)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = words
    from builder.cli import main

    code = 1
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
