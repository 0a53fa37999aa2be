"""What a series belongs to: its directory, the overlays that use it, and the upstream they pin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import InvalidInput
from builder.patch.patch import parse_patch
from builder.patch.series import Series, read_series
from builder.patch.series_file import SeriesFile, read_series_lines
from builder.project.project import Root
from builder.project.spec import Spec, read_spec
from builder.project.whole_file import write_whole
from builder.source.upstream import Progress, Upstream, resolve_upstream


@dataclass(frozen=True)
class SeriesDirectory:
    """A series where it lies.

    Args:
        root: the root it is of.
        name: the series' name.
        directory: ``patches/NAME``.
        specs: the overlays that use it; the first one's pin counts, and all pin the same release.
    """

    root: Root
    name: str
    directory: Path
    specs: tuple[Spec, ...]

    @property
    def spec(self) -> Spec:
        return self.specs[0]

    @property
    def drop(self) -> tuple[str, ...]:
        """Patterns of files that the release does not have."""
        return self.spec.patches.drop

    def series(self) -> Series:
        """The whole series, whatever an overlay takes of it."""
        return read_series(self.directory)

    def path(self, patch: str) -> Path:
        return self.directory / f"{patch}.patch"

    def write(self, patches: Sequence[tuple[str, bytes]]) -> list[str]:
        """Make the series exactly these patches: the files first, the list then, last what is gone.

        Returns:
            The patches that were in the series and are no more.

        Raises:
            InvalidInput: the series is of the installed package, or may not be written to; or a patch cannot
                be read. Then nothing is written.
        """
        self.root.check_writable()
        before = self.order()
        for name, data in patches:
            parse_patch(name, data)  # before any is written: a patch that cannot be read stops every command
        for name, data in patches:
            path = self.path(name)
            if not path.is_file() or path.read_bytes() != data:
                write_whole(path, data)
        names = [name for name, _ in patches]
        self.write_order(names)
        gone = [name for name in before if name not in names]
        for name in gone:
            self.path(name).unlink(missing_ok=True)
        return gone

    def order(self) -> list[str]:
        """The names in the list, in order."""
        return list(self._lines().names)

    def write_order(self, names: Sequence[str]) -> None:
        """Write the list; comments stay with the patch they stand before."""
        data = self._lines().with_names(names).data()
        path = self.directory / "series"
        if path.read_bytes() != data:
            write_whole(path, data)

    def _lines(self) -> SeriesFile:
        return read_series_lines(self.directory)


def find_series_directory(root: Root, name: str) -> SeriesDirectory:
    """The series of a name.

    Raises:
        InvalidInput: there is none, or no overlay says which release it is for, or several disagree.
    """
    directory = root.patches / name
    if not (directory / "series").is_file():
        raise _unknown(root, name)
    specs = [spec for spec in map(read_spec, _spec_paths(root)) if spec.patches.series == name]
    if not specs:
        raise InvalidInput(
            "no overlay uses this series, so nothing says which release it is for",
            where=str(directory),
            hint=f"write overlays/NAME.yaml with patches.series: {name}, or: overlay new NAME --from OTHER",
        )
    releases = sorted({spec.upstream.release for spec in specs})
    if len(releases) > 1:
        raise InvalidInput(
            "overlays pin one series to different releases",
            where=", ".join(spec.name for spec in specs),
            expected="one release a series",
            found=", ".join(releases),
        )
    return SeriesDirectory(root, name, directory, tuple(specs))


def series_names(root: Root) -> list[str]:
    """Every directory below ``patches/`` that has a series file."""
    return sorted(path.parent.name for path in root.patches.glob("*/series"))


def pinned_upstream(
    directory: SeriesDirectory,
    cache: Path,
    *,
    source: str = "auto",
    url: str | None = None,
    wheel: Path | None = None,
    progress: Progress = lambda _: None,
) -> Upstream:
    """The release that a series is for (arguments as of :func:`builder.source.upstream.resolve_upstream`)."""
    return resolve_upstream(
        directory.spec.upstream, cache, source=source, url=url, wheel_file=wheel, progress=progress
    )


def _spec_paths(root: Root) -> list[Path]:
    return [root.spec_path(name) for name in root.names()]


def _unknown(root: Root, name: str) -> InvalidInput:
    from difflib import get_close_matches

    names = series_names(root)
    near = get_close_matches(name, names, n=1)
    return InvalidInput(
        "there is no such series",
        where=str(root.patches),
        found=name,
        hint=f"did you mean {near[0]}?" if near else f"there are: {', '.join(names) or 'none'}",
    )
