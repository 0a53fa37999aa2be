"""A series: patches in quilt's layout, in the order in which they apply."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from builder.diff import MAX_DIFF_BYTES
from builder.errors import InvalidInput
from builder.patch import Patch, check_patch_name, parse_patch


@dataclass(frozen=True)
class Series:
    """Patches in order.

    Args:
        name: the directory's name below ``patches/``, such as ``v0.5.20``.
        patches: in the order in which they apply.
    """

    name: str
    patches: tuple[Patch, ...]

    @property
    def digest(self) -> str:
        """The patch-set digest, ``sha256:…``: of names and bytes of the patches, in order.

        It is the SHA-256 of one line ``<sha256 of the file>  <name>\\n`` for each patch.
        """
        return patchset_digest((patch.name, patch.sha256) for patch in self.patches)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(patch.name for patch in self.patches)

    @property
    def paths(self) -> list[str]:
        """Every path that a patch reads or writes, sorted."""
        return sorted({path for p in self.patches for f in p.files for path in (f.old_path, f.new_path)})


def patchset_digest(patches: Iterable[tuple[str, str]]) -> str:
    """The digest of patches, given as name and hex SHA-256 of each, in order (see :attr:`Series.digest`)."""
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in patches)
    return "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


def read_series(directory: Path, *, only: Sequence[str] = (), leave_out: Sequence[str] = ()) -> Series:
    """Read ``directory/series`` and the patches it names.

    Args:
        directory: ``patches/NAME``.
        only: names to take; none means all. The series' order decides, not this one's.
        leave_out: names not to take.

    Raises:
        InvalidInput: a file is missing, a name is wrong or twice, or a needed patch is not there.
    """
    listed = read_series_file(directory)
    _check_known([*only, *leave_out], listed, directory)
    taken = [name for name in listed if (not only or name in only) and name not in leave_out]
    patches = [parse_patch(name, _read_bounded(directory / f"{name}.patch", directory)) for name in taken]
    series = Series(directory.name, tuple(patches))
    check_depends(series)
    return series


def read_series_file(directory: Path) -> list[str]:
    """The patch names of ``directory/series``, in order; ``#`` starts a comment.

    Raises:
        InvalidInput: there is no such file, or a line of it is no patch name, or a name stands twice.
    """
    path = directory / "series"
    if not path.is_file():
        raise InvalidInput(
            "there is no such series",
            where=str(path),
            hint="a series is a directory below patches/ with a file named series",
        )
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidInput("series is not UTF-8 text", where=str(path), found=str(error)) from error
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        word, *options = line.split("#", 1)[0].split() or [""]
        if not word:
            continue
        where = f"{path}, line {number}"
        if options not in ([], ["-p1"]):
            raise InvalidInput(
                "series has an option that is not known",
                where=where,
                expected="a patch's name; its paths begin with a/ and b/ (-p1)",
                found=" ".join(options),
                hint="overlay patch import reads quilt series with other strip levels",
            )
        word = word.removesuffix(".patch")
        check_patch_name(word, where=where)
        if word in names:
            raise InvalidInput("patch stands twice in the series", where=where, found=word)
        names.append(word)
    return names


def check_depends(series: Series) -> None:
    """Every ``Overlay-Depends`` must name a patch that comes before.

    Raises:
        InvalidInput: naming the patch and the one it needs.
    """
    before: list[str] = []
    for patch in series.patches:
        for needed in patch.depends:
            if needed not in before:
                later = needed in series.names
                raise InvalidInput(
                    "patch needs another that " + ("comes after it" if later else "is not in the series"),
                    where=f"{series.name}/{patch.name}.patch",
                    expected=f"{needed} before {patch.name} (Overlay-Depends)",
                    found=", ".join(before) or "nothing before it",
                    hint=f"move {needed} up in patches/{series.name}/series"
                    if later
                    else f"add {needed} to the series, or take it into the overlay's patches.only",
                )
        before.append(patch.name)


def _check_known(names: Iterable[str], listed: Sequence[str], directory: Path) -> None:
    for name in names:
        if name not in listed:
            near = get_close_matches(name, listed, n=1)
            raise InvalidInput(
                "patch is not in the series",
                where=str(directory / "series"),
                found=name,
                hint=f"did you mean {near[0]}?" if near else f"the series has: {', '.join(listed)}",
            )


def _read_bounded(path: Path, directory: Path) -> bytes:
    """A patch file's bytes; it must be a regular file of the series' own directory."""
    if not path.is_file():
        raise InvalidInput(
            "the series names a patch that is not there",
            where=str(directory / "series"),
            expected=str(path),
            hint="add the file, or take the name out of the series",
        )
    if path.resolve().parent != directory.resolve():
        raise InvalidInput("patch file lies outside its series", where=str(path), found=str(path.resolve()))
    if (size := path.stat().st_size) > MAX_DIFF_BYTES:
        raise InvalidInput(
            "patch is too large",
            where=str(path),
            expected=f"at most {MAX_DIFF_BYTES} bytes",
            found=f"{size} bytes",
        )
    return path.read_bytes()
