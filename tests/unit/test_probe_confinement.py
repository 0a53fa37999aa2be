"""What the kernel holds of a probe: each system call that is not allowed is refused, whoever runs it, and
on the weakest machine that is supported too (docs/probes.md)."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from builder.probe import seccomp
from builder.probe.confinement import FULL, SECCOMP
from tests.conftest import ROOT

HIGHEST = 480
# Linux lets uretprobe and uprobe through every filter: it makes them itself, and ends whoever else does.
KERNELS_OWN = {335, 336} if platform.machine() == "x86_64" else set()
CALLS = """
import ctypes, errno, json, os, sys
from builder.probe import confinement
from builder.probe.confinement import confine, empty_directory, isolate
confinement._refuse = lambda event, arguments: None  # the kernel alone
numbers, user = json.loads(sys.argv[1]), int(sys.argv[2])
if user:
    os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
libc = ctypes.CDLL(None, use_errno=True)
isolate()
held = confine(1 << 31, 60, empty_directory())
found = {}
for number in numbers:
    ctypes.set_errno(0)
    result = libc.syscall(number, 0, 0, 4, 0, 0, 0)
    found[number] = ctypes.get_errno() if result == -1 else 0
os.write(1, json.dumps([held, found]).encode())
"""


def run(script: str, *arguments: str, before: Any = None) -> Any:
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, *arguments],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
        preexec_fn=before,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("user", [0, 12345])
def test_every_call_outside_the_list_is_refused(user: int) -> None:
    """Also of executable memory: both calls that map it are asked for with PROT_EXEC, the third argument."""
    if user and os.geteuid() != 0:
        user = 0  # an ordinary user runs the tests: there is no other to become
    _, _, allowed = seccomp.ALLOWED[platform.machine()]
    numbers = [n for n in range(HIGHEST) if n not in allowed.values() and n not in KERNELS_OWN]
    numbers += [0x40000000 | number for number in (0, 1, 2)]
    held, found = run(CALLS, json.dumps(numbers), str(user))
    assert held[-1] == SECCOMP
    assert {int(number): code for number, code in found.items()} == dict.fromkeys(numbers, errno.EPERM)


# What reached out of a probe once, or works on what is outside: no audit hook sees it.
ESCAPES = {
    "load readline by its file, and read a secret as its history": (
        "import _imp, importlib.machinery as m\n"
        "r = _imp.create_dynamic(m.ModuleSpec('readline', None, origin='{readline}'))\n"
        "r.read_history_file('{secret}')"
    ),
    "libc's open": "assert libc.open(b'{secret}', 0) >= 0",
    "libc's socket": "assert libc.socket(2, 1, 0) >= 0",
    "libc's system": "assert libc.system(b'true') == 0",
    "open": "open('{secret}').read()",
    "connect": "import _socket; _socket.socket().connect(('127.0.0.1', {port}))",
    "make a pipe": "import posix; posix.mkfifo('{place}/new')",
    "make a device": "import posix; posix.mknod('{place}/new')",
    "open shared memory": "import _posixshmem as s; s.shm_open('/{shared}', 0o102, 0o600)",
    "signal through a descriptor": (
        "import _signal, posix; _signal.pidfd_send_signal(posix.pidfd_open(posix.getpid()), 0)"
    ),
    "signal": "import posix; posix.kill(posix.getpid(), 0)",
    "take the processor": "import posix; posix.setpriority(0, 0, 19)",
    "choose processors": "import posix; posix.sched_setaffinity(0, [min(posix.sched_getaffinity(0))])",
    "ignore the alarm": "import _signal; _signal.signal(_signal.SIGALRM, _signal.SIG_IGN)",
    "fork": "import posix; posix.fork() or posix._exit(0)",
    "trace": "assert libc.ptrace(0, 0, 0, 0) == 0",
}
TRY = """
import _posixshmem, ctypes, json, os, posix, sys, _socket, _signal, importlib.machinery
from builder.probe import confinement
from builder.probe.confinement import confine, empty_directory
confinement._refuse = lambda event, arguments: None  # the kernel alone
codes, user, is_held = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "held"
libc = ctypes.CDLL(None, use_errno=True)
could = []
for name, code in codes.items():
    empty = empty_directory()
    child = os.fork()
    if child == 0:
        if user:
            os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
        status = 1
        try:
            if is_held:
                confine(1 << 31, 60, empty)
            exec(code)
            status = 0
        finally:
            os._exit(status)
    os.close(empty)
    if os.waitpid(child, 0)[1] == 0:
        could.append(name)
print(json.dumps(could))
"""


@pytest.mark.parametrize("user", [0, 12345])
def test_each_escape_works_outside_and_is_refused_inside(user: int) -> None:
    """Without an audit hook, namespaces, and all that a container without privileges has not."""
    import readline

    if user and os.geteuid() != 0:
        user = 0
    with tempfile.TemporaryDirectory() as place, socket.create_server(("127.0.0.1", 0)) as server:
        secret, shared = Path(place) / "secret", f"overlay-{Path(place).name}"
        secret.write_text("_HiStOrY_V2_\nword\n")
        secret.chmod(0o600)
        extension = Path(shutil.copy(readline.__file__, place))
        if user:
            Path(place).chmod(0o777)
            os.chown(secret, user, user)
        words = {
            "readline": extension,
            "secret": secret,
            "place": place,
            "shared": shared,
            "port": server.getsockname()[1],
        }
        codes = {name: code.format(**words) for name, code in ESCAPES.items()}
        held = without("unshare", "chroot", "landlock")
        assert run(TRY, json.dumps(codes), str(user), "held", before=held) == []
        assert not (Path(place) / "new").exists()
        could = set()
        for name, code in codes.items():
            could |= set(run(TRY, json.dumps({name: code}), str(user), "free"))
            (Path(place) / "new").unlink(missing_ok=True)
        Path("/dev/shm", shared).unlink(missing_ok=True)
    assert could == set(ESCAPES)


LIMITS = """
import json
from builder.probe.run import sandbox_limits
print(json.dumps(sandbox_limits()))
"""
REQUIRED = """
import json, os
from builder.errors import ProbeFailed
from builder.probe.run import REQUIRE_SANDBOX, run_probe
from builder.probe.trees import MappingTree
from pathlib import Path
import sys
os.environ[REQUIRE_SANDBOX] = "1"
try:
    print(json.dumps(run_probe(Path(sys.argv[1]), MappingTree({})).state))
except ProbeFailed as error:
    print(json.dumps([error.exit_code, error.what]))
"""


def without(*refused: str) -> Any:
    """For a child: a kernel that has no such calls, as a container's own filter leaves it."""
    numbers = {
        "x86_64": {"unshare": 272, "chroot": 161, "landlock": 444},
        "aarch64": {"unshare": 97, "chroot": 51, "landlock": 444},
    }[platform.machine()]
    prctl = {"x86_64": 157, "aarch64": 167}[platform.machine()]

    def filter_them() -> None:
        import ctypes

        make = seccomp._instruction
        code = [make(0x20, 0)]
        for name in refused:
            if name == SECCOMP:  # prctl(PR_SET_SECCOMP), by its first argument
                code += [make(0x15, prctl, no=4), make(0x20, 16), make(0x15, 22, no=1)]
                code += [make(0x06, 0x00050000 | errno.EPERM), make(0x20, 0)]
            else:
                code += [make(0x15, numbers[name], no=1), make(0x06, 0x00050000 | errno.EPERM)]
        code.append(make(0x06, 0x7FFF0000))
        held = ctypes.create_string_buffer(b"".join(code), 8 * len(code))
        described = struct.pack("@HP", len(code), ctypes.addressof(held))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(38, 1, 0, 0, 0) == 0
        assert libc.prctl(22, 2, ctypes.c_char_p(described), 0, 0) == 0

    return filter_them


def test_this_machine_gives_the_filter() -> None:
    found = run(LIMITS)
    assert set(found) <= set(FULL)
    assert SECCOMP in found


def test_a_container_without_privileges_still_filters() -> None:
    """The weakest machine that is supported: no namespaces, no chroot, no Landlock."""
    found = run(LIMITS, before=without("unshare", "chroot", "landlock"))
    assert not {"namespaces", "empty root", "landlock"} & set(found)
    assert SECCOMP in found


def test_less_is_refused_where_more_is_required(tmp_path: Path) -> None:
    probe = tmp_path / "x.py"
    probe.write_text("from builder.probe.harness import *\ndef probe(tree): return fixed('x')\n")
    assert run(REQUIRED, str(probe)) == "fixed"
    code, what = run(REQUIRED, str(probe), before=without(SECCOMP))
    assert code == 7
    assert "cannot keep a probe from reaching out" in what
    assert SECCOMP not in run(LIMITS, before=without(SECCOMP))


def test_the_option_runs_no_probe_on_a_machine_that_cannot_hold_it(tmp_path: Path) -> None:
    (tmp_path / "tree" / "python" / "sglang").mkdir(parents=True)
    words = [sys.executable, "-B", "-m", "builder", "probe", str(tmp_path / "tree"), "--fresh"]
    environment = os.environ | {"OVERLAY_CACHE": str(tmp_path / "cache"), "OVERLAY_ROOT": str(ROOT)}

    def exit_code(*more: str) -> int:
        lacks = without(SECCOMP)
        command = [*words, *more]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, preexec_fn=lacks, check=False
        ).returncode

    assert (exit_code(), exit_code("--require-sandbox")) == (0, 7)
