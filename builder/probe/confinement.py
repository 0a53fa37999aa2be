"""What a process gives up before it runs code of a source tree: each limit as far as the kernel grants it.

:func:`isolate` is for the process that starts the others, once; :func:`confine` for each of them, before the
first foreign line. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys

from builder.probe.seccomp import filter_calls
from builder.temporary import temporary_directory

NOBODY = 65534
SECCOMP = "seccomp"
FULL = ("namespaces", "empty root", "landlock", "other user", "limits", SECCOMP)
"""Every limit there is; the last one alone holds against all that is known (docs/probes.md)."""

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT, _LANDLOCK_VERSION = 444, 446, 1
# What Landlock can handle, by the version that brought it: files, then network, then scopes.
_FILES = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}
_ALL_FILES = 0xFFFF


def isolate() -> bool:
    """Leave the machine's namespaces of users, mounts, processes, messages and network, if that is allowed.

    The caller goes on as the first process of its own; the one that waits for it outside ends with it.

    Returns:
        Whether it did.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    spaces = _NEWNS | _NEWIPC | _NEWPID | _NEWNET
    # Root needs no namespace of users, and keeps the right to become another user without one.
    wanted = [spaces, spaces | _NEWUSER] if os.geteuid() == 0 else [spaces | _NEWUSER]
    if not any(libc.unshare(flags) == 0 for flags in wanted):
        return False
    child = os.fork()
    if child:
        os.closerange(0, 64)  # its pipes are the child's alone: who holds the other end sees it end
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return True


def empty_directory() -> int | None:
    """A descriptor of a directory that has no name any more: nothing is in it, and nothing can be put there.

    None where no directory can be made.
    """
    try:
        with temporary_directory("probe") as path:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def confine(memory: int, seconds: float, empty: int | None) -> list[str]:
    """Give up everything but the descriptors that are open, for good.

    Args:
        memory: bytes of address space.
        seconds: of processor time; the same of wall-clock time, after which the kernel ends the process.
        empty: from :func:`empty_directory`; closed.

    Returns:
        Which of :data:`FULL` are in force, but for the namespaces, which :func:`isolate` tells of.
    """
    held = []
    libc = ctypes.CDLL(None, use_errno=True)
    os.environ.clear()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)
    if empty is not None:
        with contextlib.suppress(OSError):
            os.fchdir(empty)
            os.chroot(".")
            held.append("empty root")
        os.close(empty)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if _landlock(libc):
        held.append("landlock")
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # a container's root may have no other user; the rest still holds
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
    if os.geteuid() != 0:
        held.append("other user")
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: int(seconds) + 1,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 0,
    }
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))
    held.append("limits")
    if filter_calls():
        held.append(SECCOMP)
    sys.addaudithook(_refuse)
    return held


def _landlock(libc: ctypes.CDLL) -> bool:
    """Give up every file, port and signal beyond this process (landlock(7)); what is open stays."""
    version = libc.syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION)
    if version < 1:
        return False
    handled = [_FILES.get(version, _ALL_FILES)]
    handled += [0x3] if version >= 4 else []  # binding and connecting TCP
    handled += [0x3] if version >= 6 else []  # abstract sockets, signals
    rules = struct.pack(f"={len(handled)}Q", *handled)
    ruleset = libc.syscall(_LANDLOCK_CREATE, rules, len(rules), 0)
    if ruleset < 0:
        return False
    done = libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return bool(done == 0)


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
    """The audit hook: it says in Python's words what the kernel would refuse. It holds nothing by itself."""
    if event.startswith(_REFUSED) and event not in _ALLOWED_OS:
        raise PermissionError(f"a probe may not do this: {event}")
