"""A series: patches in quilt's layout, in the order in which they apply."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import InvalidInput
from builder.patch.diff import MAX_DIFF_BYTES
from builder.patch.patch import Patch, check_patch_name, parse_patch

if TYPE_CHECKING:
    from builder.project.spec import PatchesSpec


@dataclass(frozen=True)
class SkippedPatch:
    """A patch of the series that is not applied, since rules drop all of its files.

    Args:
        patch: it.
        dropped: its files, each with the first rule that drops it.
    """

    patch: Patch
    dropped: tuple[tuple[str, str], ...]

    @property
    def reason(self) -> str:
        """Why it is skipped, in words."""
        rules = ", ".join(dict.fromkeys(rule for _, rule in self.dropped))
        return f"skipped: patches.drop leaves out all of its files ({rules})"


@dataclass(frozen=True)
class Series:
    """Patches in order.

    Args:
        name: the directory's name below ``patches/``, such as ``v0.5.20``.
        patches: in the order in which they apply.
        skipped: those that were left out of ``patches`` because rules drop all of their files.
    """

    name: str
    patches: tuple[Patch, ...]
    skipped: tuple[SkippedPatch, ...] = ()

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


def rule_for(path: str, drop: Sequence[str]) -> str | None:
    """The first of the patterns (fnmatch, whole path) that leaves a path out."""
    return next((rule for rule in drop if fnmatch.fnmatchcase(path, rule)), None)


def read_series(
    directory: Path, *, only: Sequence[str] = (), leave_out: Sequence[str] = (), drop: Sequence[str] = ()
) -> Series:
    """Read ``directory/series`` and the patches it names.

    Args:
        directory: ``patches/NAME``.
        only: names to take; none means all. The series' order decides, not this one's.
        leave_out: names not to take.
        drop: patterns of files that are left out; a patch of such files alone is skipped.

    Raises:
        InvalidInput: a file is missing, a name is wrong or twice, or a needed patch is not there.
    """
    listed = read_series_file(directory)
    _check_known([*only, *leave_out], listed, directory)
    taken = [name for name in listed if (not only or name in only) and name not in leave_out]
    patches = [parse_patch(name, _read_bounded(directory / f"{name}.patch", directory)) for name in taken]
    series = Series(directory.name, tuple(patches))
    check_depends(series)
    return _without_skipped(series, drop)


def chosen_series(patches: Path, choice: PatchesSpec) -> Series:
    """The patches that a spec chooses, less those of which its rules drop every file.

    Args:
        patches: the root's directory of series.
        choice: the spec's ``patches``.

    Raises:
        InvalidInput: as :func:`read_series` says.
    """
    return read_series(
        patches / choice.series, only=choice.only, leave_out=choice.leave_out, drop=choice.drop
    )


def _without_skipped(series: Series, drop: Sequence[str]) -> Series:
    taken: list[Patch] = []
    skipped: list[SkippedPatch] = []
    for patch in series.patches:
        rules = [(diff.path, rule_for(diff.path, drop)) for diff in patch.files]
        dropped = tuple((path, rule) for path, rule in rules if rule is not None)
        if len(dropped) == len(rules):
            skipped.append(SkippedPatch(patch, dropped))
        else:
            taken.append(patch)
    return Series(series.name, tuple(taken), tuple(skipped))


def check_reaches(patches: Iterable[Patch], roots: Iterable[str]) -> None:
    """Every patch must have a file below one of the roots: else nothing of it would be in an image.

    Args:
        patches: those that no rule skips.
        roots: of packages in the image, as paths of the upstream.

    Raises:
        InvalidInput: naming the first that has none.
    """
    places = tuple(f"{root}/" for root in roots)
    for patch in patches:
        named = [path for diff in patch.files for path in (diff.old_path, diff.new_path)]
        if not any(path.startswith(places) for path in named):
            paths = [diff.path for diff in patch.files]
            rules = list(dict.fromkeys(_rule_around(path, places) for path in paths))
            raise InvalidInput(
                "nothing of the patch would be applied: all of its files lie outside of what is in an image",
                where=f"{patch.name}.patch",
                expected=f"a path below {', '.join(places)}",
                found=", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else ""),
                hint=f"to build without it, add {', '.join(rules)} to patches.drop in the spec, or the "
                "patch to patches.except",
            )


def _rule_around(path: str, places: Sequence[str]) -> str:
    """A rule that drops a file and what is beside it, and nothing of what is in an image."""
    first, slash, _ = path.partition("/")
    is_above = any(place.startswith(f"{first}/") for place in places)
    return path if is_above or not slash else f"{first}/*"


def read_series_file(directory: Path) -> list[str]:
    """The patch names of ``directory/series``, in order; ``#`` starts a comment.

    Raises:
        InvalidInput: there is no such file, or a line of it is not a patch name, or a name stands twice.
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
