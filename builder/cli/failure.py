"""What ends a command without being one of overlay's own errors, told as one: nobody is shown a traceback."""

from __future__ import annotations

import errno
import os
import re
import signal
from pathlib import Path
from types import FrameType
from typing import NoReturn

from builder.errors import OverlayError, Unavailable

TRACEBACK = "OVERLAY_TRACEBACK"
_PACKAGE = Path(__file__).resolve().parent.parent
_CREDENTIALS = re.compile(r"://[^/\s]+@")
_SAYS_FULL = re.compile("No space left on device|Disk quota exceeded")  # git runs with LC_ALL=C
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNWRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_PLACES = "OVERLAY_CACHE names the cache, TMPDIR the place for temporary files, --lock the lock"
_EMPTY_CACHE = "if it stays: overlay cache prune --unused 0 (what is in the cache can be made again)"


class Stopped(BaseException):
    """Somebody ended the command by a signal. Not an :class:`Exception`: nothing goes on after it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class ReaderGone(BaseException):
    """Whoever read our output has seen enough. What was not done by then is not called done."""

    exit_code = 128 + signal.SIGPIPE


class Bug(OverlayError):
    """A mistake in overlay itself (exit 1)."""

    kind = "bug"


def stop_on_signals() -> None:
    """Let SIGTERM and SIGHUP unwind like Ctrl-C does, so that what was begun is cleaned up.

    A signal that is ignored (by ``nohup``) stays so.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(number)


def told(error: Exception) -> OverlayError:
    """Any exception as an error that says what and where, and what to do.

    Args:
        error: what nobody caught.

    Returns:
        Itself when it is one of overlay's; :class:`Unavailable` for a disk, git or memory that fails, and
        :class:`Bug` for the rest.
    """
    from builder.source.git import GitError

    if isinstance(error, OverlayError):
        return error
    if isinstance(error, GitError):
        return _of_git(error)
    if isinstance(error, OSError):
        return _of_system(error)
    if isinstance(error, MemoryError):
        return Unavailable("there is not enough memory", where=_place(error))
    if type(error).__module__ == "sqlite3":
        return Unavailable(
            "an index in the cache cannot be used",
            where=_place(error),
            found=str(error),
            hint=f"free some space; {_EMPTY_CACHE}",
        )
    return Bug(
        "overlay made a mistake",
        where=_place(error),
        found=_shown(f"{type(error).__name__}: {error}"),
        hint=f"please report it, with what the same command says under {TRACEBACK}=1",
    )


def _of_git(error: Exception) -> Unavailable:
    command, code, said = (getattr(error, name) for name in ("command", "code", "stderr"))
    directory = getattr(error, "directory", None)
    if _SAYS_FULL.search(said):
        return Unavailable(
            "the disk is full",
            where=None if directory is None else str(directory),
            found=_shown(said),
            hint=f"free some space, or choose another place: {_PLACES}",
        )
    verb = next((word for word in command if not word.startswith("-")), command[0])
    return Unavailable(
        f"git {verb} did not do its part",
        where=None if directory is None else str(directory),
        expected="exit 0",
        found=f"exit {code}",
        details=_shown(said) or None,
        hint=f"is the disk full, or the cache damaged? {_EMPTY_CACHE}",
    )


def _of_system(error: OSError) -> Unavailable:
    names = [
        os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))
    ]
    said = error.strerror or str(error) or type(error).__name__
    if error.errno in _FULL:
        return Unavailable(
            "the disk is full",
            where=" → ".join(names) or _place(error),
            found=said,
            hint=f"free some space, or choose another place: {_PLACES}",
        )
    return Unavailable(
        "a file or directory cannot be written"
        if error.errno in _UNWRITABLE
        else "a file or directory cannot be used",
        where=" → ".join(names) or _place(error),
        found=said,
        hint=f"{_PLACES}; {_EMPTY_CACHE}",
    )


def _place(error: BaseException) -> str:
    """The innermost line of overlay's own that the error came through."""
    from traceback import extract_tb

    frames = extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(_PACKAGE)]
    if not frames:
        return "overlay"
    last = (own or frames)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}, {last.name}"


def _shown(text: str) -> str:
    """Without credentials in URLs, and not longer than a screen."""
    return "\n".join(_CREDENTIALS.sub("://***@", text)[-2000:].splitlines()[-12:])
