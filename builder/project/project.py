"""Where overlay's own files are: the checkout around you, the installed package, or what --root names."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.errors import InvalidInput

_PACKAGED = Path(__file__).parent.parent / "data"


@dataclass(frozen=True)
class Root:
    """A directory with ``overlays/``, ``patches/`` and ``Dockerfile.in``.

    Args:
        path: the directory.
        state: where locks are written; ``overlays/`` of a checkout, the user's state directory otherwise.
    """

    path: Path
    state: Path

    @property
    def key(self) -> str:
        """Tells this root's work from that of others, in a name."""
        import hashlib

        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]

    @property
    def overlays(self) -> Path:
        return self.path / "overlays"

    @property
    def patches(self) -> Path:
        return self.path / "patches"

    @property
    def probes(self) -> Path:
        return self.patches / "probes"

    @property
    def template(self) -> Path:
        return self.path / "Dockerfile.in"

    def names(self) -> list[str]:
        """The names of all overlays, sorted."""
        return sorted(path.stem for path in self.overlays.glob("*.yaml"))

    def spec_path(self, name: str) -> Path:
        """The spec's file of an overlay.

        Raises:
            InvalidInput: there is none of this name, with the nearest one.
        """
        path = self.overlays / f"{name}.yaml"
        if "/" in name or not path.is_file():
            names = self.names()
            from difflib import get_close_matches

            near = get_close_matches(name, names, n=1)
            raise InvalidInput(
                "there is no overlay of this name",
                where=str(self.overlays),
                found=name,
                hint=f"did you mean {near[0]}?" if near else f"there are: {', '.join(names) or 'none'}",
            )
        return path

    def check_writable(self) -> None:
        """Raise :class:`InvalidInput` unless patches and specs can be changed here; sweep what kills left."""
        if self.state != self.overlays:
            raise InvalidInput(
                "the patch sets here cannot be changed",
                where=str(self.path),
                expected="a checkout that you may write to",
                hint=f"work in a copy: cp -r {shlex.quote(str(self.path))} my-overlays && cd my-overlays",
            )
        from builder.project.whole_file import sweep_parts

        for directory in (self.overlays, self.patches, *self.patches.glob("*/")):
            sweep_parts(directory)

    @contextmanager
    def exclusive(self, waiting: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """Be the only command that changes something here: what is read meanwhile stays as it is.

        Raises:
            Unavailable: another command did not end.
        """
        from builder.locking import exclusive

        place = self.path if self.state == self.overlays else self.state
        place.mkdir(parents=True, exist_ok=True)
        with exclusive(place, waiting=waiting):
            yield

    def lock_path(self, name: str) -> Path:
        """Where an overlay's lock is written."""
        return self.state / f"{name}.lock"

    def locks(self, name: str) -> list[Path]:
        """Where an overlay's lock is read from: the written one first, then the one that was shipped."""
        return list(dict.fromkeys([self.lock_path(name), self.overlays / f"{name}.lock"]))


def find_root(explicit: Path | None = None, *, start: Path | None = None) -> Root:
    """The root to work in: ``explicit``, else the checkout around ``start``, else the installed package's.

    Args:
        explicit: what ``--root`` (or ``OVERLAY_ROOT``) names.
        start: a directory to look upwards from; the current one by default.

    Raises:
        InvalidInput: ``explicit`` has no ``overlays`` directory.
    """
    if explicit is not None:
        if not (explicit / "overlays").is_dir():
            raise InvalidInput(
                "not an overlay root",
                where=str(explicit),
                expected="a directory with overlays/, patches/ and Dockerfile.in",
                hint="point --root at a checkout, or leave it out to use the installed patch sets",
            )
        return _writable(explicit.resolve())
    here = (start or _current_directory()).resolve()
    for directory in (here, *here.parents):
        if (directory / "Dockerfile.in").is_file() and (directory / "overlays").is_dir():
            return _writable(directory)
    if (_PACKAGED / "overlays").is_dir():
        return _writable(_PACKAGED)
    # An editable install run from elsewhere: its own checkout holds the data.
    return _writable(Path(__file__).resolve().parents[2])


def _current_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise InvalidInput(
            "the current directory is not there any more",
            hint="change to one that is, or name the overlays' with --root DIR",
        ) from error


def _writable(path: Path) -> Root:
    if path == _PACKAGED or not os.access(path / "overlays", os.W_OK):
        return Root(path, state_path() / "overlays")
    if any((path / name).exists() for name in (".overlay-transaction", ".overlay-transaction.new")):
        from builder.project.transaction import finish

        finish(path)  # a command that was killed had decided to change several files
    return Root(path, path / "overlays")


def documents_path() -> Path:
    """The directory of the documents: the installed package's, else the checkout's that this runs from."""
    packaged = _PACKAGED / "docs"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "docs"


def state_path() -> Path:
    """The user's state directory: what is there is somebody's work, and outlives the cache."""
    from platformdirs import user_state_path

    return user_state_path("sglang-overlay")


def cache_path() -> Path:
    """The user's cache: ``OVERLAY_CACHE``, else ``sglang-overlay`` in the platform's cache directory."""
    if named := os.environ.get("OVERLAY_CACHE"):
        return Path(named).absolute()
    from platformdirs import user_cache_path

    return user_cache_path("sglang-overlay")
