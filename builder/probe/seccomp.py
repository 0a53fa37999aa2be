"""A filter of system calls for a process that only computes: the kernel refuses what is not on the list.

seccomp(2) with a classic BPF program, installed through prctl(2): it takes no privilege, no package and no
namespace, and a container's own filter stays in force beside it. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Sequence

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_X32 = 0x40000000  # numbers from here on are another table of x86-64's
_PROT_EXEC = 4

# Offsets in struct seccomp_data, in bytes; the third argument's low half (both machines are little-endian).
_NUMBER, _ARCH, _PROTECTION = 0, 4, 32
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

ALLOWED = {
    # machine: (AUDIT_ARCH, calls whose protection must not be executable, other calls), by name and number
    "x86_64": (
        0xC000003E,
        {"mmap": 9, "mprotect": 10},
        {
            **{"read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "munmap": 11, "brk": 12},
            **{"rt_sigprocmask": 14, "rt_sigreturn": 15, "sched_yield": 24, "mremap": 25, "madvise": 28},
            **{"nanosleep": 35, "getpid": 39, "exit": 60, "uname": 63, "gettimeofday": 96, "getrusage": 98},
            **{"times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110},
            **{"gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204, "restart_syscall": 219},
            **{"clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231},
            **{"getrandom": 318, "rseq": 334},
        },
    ),
    "aarch64": (
        0xC00000B7,
        {"mmap": 222, "mprotect": 226},
        {
            **{"read": 63, "write": 64, "close": 57, "fstat": 80, "lseek": 62, "munmap": 215, "brk": 214},
            **{"rt_sigprocmask": 135, "rt_sigreturn": 139, "sched_yield": 124, "mremap": 216, "madvise": 233},
            **{"nanosleep": 101, "getpid": 172, "exit": 93, "uname": 160, "gettimeofday": 169},
            **{"getrusage": 165, "times": 153, "getuid": 174, "getgid": 176, "geteuid": 175, "getegid": 177},
            **{"getppid": 173, "gettid": 178, "futex": 98, "sched_getaffinity": 123, "restart_syscall": 128},
            **{"clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "exit_group": 94},
            **{"getrandom": 278, "rseq": 293},
        },
    ),
}


def filter_calls() -> bool:
    """Refuse this process every system call that is not in :data:`ALLOWED`, for good.

    A refused call fails with ``EPERM``. Memory cannot be made executable, so no code can be loaded.

    Returns:
        Whether the filter is in force: False where the kernel has none, or the machine is another.
    """
    known = ALLOWED.get(platform.machine())
    if known is None:
        return False
    code = b"".join(_program(*known))
    held = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(described), 0, 0) == 0)


def _program(arch: int, mapping: dict[str, int], calls: dict[str, int]) -> Sequence[bytes]:
    """The filter's instructions; a jump counts those that it leaves out."""
    code = [
        _instruction(_LOAD, _ARCH),
        _instruction(_EQUAL, arch, yes=1),
        _instruction(_RETURN, _KILL),  # another machine's calls have other numbers
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32, no=1),
        _instruction(_RETURN, _REFUSE),
    ]
    for number in calls.values():
        code += [_instruction(_EQUAL, number, no=1), _instruction(_RETURN, _ALLOW)]
    for number in mapping.values():
        code += [
            _instruction(_EQUAL, number, no=4),
            _instruction(_LOAD, _PROTECTION),
            _instruction(_ANY_BIT, _PROT_EXEC, no=1),
            _instruction(_RETURN, _REFUSE),
            _instruction(_RETURN, _ALLOW),
        ]
    return [*code, _instruction(_RETURN, _REFUSE)]


def _instruction(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
