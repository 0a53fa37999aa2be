"""Rules for what stands between files: series and patches, patches and probes, overlays and series."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from builder.author.lint.finding import RULES, Finding
from builder.author.lint.text import lint_patch
from builder.author.series_directory import series_names
from builder.errors import InvalidInput
from builder.patch.message import read_head
from builder.patch.repair import diff_start, split
from builder.patch.series import chosen_series, read_series_file
from builder.patch.series_file import read_series_lines
from builder.probe.lists import lists_of, read_lists
from builder.project.project import Root
from builder.project.spec import Spec, read_spec


def lint_root(root: Root, series: Sequence[str]) -> list[Finding]:
    """Every rule that needs no release, for these series and for what all of them share."""
    found = [finding for name in series for finding in _lint_series(root, name)]
    return [*found, *_overlays(root, series), *_probes(root)]


def excused(
    root: Root, series: str, findings: Sequence[Finding], judged: Collection[str] = RULES
) -> tuple[list[Finding], list[Finding]]:
    """Findings that count, and those that the series file excuses with a reason.

    An excuse for something that was not found, or for no rule, is a finding itself.

    Args:
        root, series: where the excuses are.
        findings: what was found.
        judged: the rules that were looked at.
    """
    directory = root.patches / series
    try:
        suppressions = read_series_lines(directory).suppressions()
    except InvalidInput:
        return list(findings), []
    counted, allowed, used = [], [], set()
    for finding in findings:
        patch = Path(finding.file).stem
        match = next((a for a in suppressions if a.rule == finding.rule and a.patch in (None, patch)), None)
        if match is None or Path(finding.file).parent.name != series:
            counted.append(finding)
        else:
            allowed.append(finding)
            used.add(match)
    file = _shown(root, directory / "series")
    for suppression in suppressions:
        if suppression not in used and (suppression.rule in judged or suppression.rule not in RULES):
            known = suppression.rule in RULES
            what = "what is excused was not found" if known else "what is excused is not a rule"
            counted.append(Finding("allowance", file, suppression.line, what, found=suppression.rule))
    return counted, allowed


def _lint_series(root: Root, name: str) -> Iterator[Finding]:
    directory = root.patches / name
    listed: list[str] = []
    try:
        listed = read_series_file(directory)
    except InvalidInput as error:
        yield Finding(
            "series-file", _shown(root, directory / "series"), None, error.what, found=error.found or ""
        )
    depends: dict[str, list[str]] = {}
    yield from _unreadable_by_quilt(root, directory)
    for patch in listed:
        path = directory / f"{patch}.patch"
        if not path.is_file():
            yield Finding(
                "series-file", _shown(root, directory / "series"), None, "patch has no file", found=patch
            )
            continue
        data = path.read_bytes()
        depends[patch] = _depends_of(data)
        yield from lint_patch(patch, _shown(root, path), data)
    yield from _depends(root, directory, listed, depends)
    for path in sorted(directory.glob("*.patch")):
        if listed and path.stem not in listed:
            yield Finding("unused-patch", _shown(root, path), None, "patch is not in the series")


def _unreadable_by_quilt(root: Root, directory: Path) -> Iterator[Finding]:
    """Names without ``.patch``: we know what is meant, quilt does not."""
    path = directory / "series"
    text = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if words and not words[0].endswith(".patch"):
            repair = f"overlay patch export {directory.name}"
            what = "quilt needs the file's name"
            yield Finding(
                "series-file", _shown(root, path), number, what, f"{words[0]}.patch", words[0], repair
            )


def _depends_of(data: bytes) -> list[str]:
    lines = split(data)
    head = read_head(b"".join(lines[: diff_start(lines)]).replace(b"\r\n", b"\n"))
    values = [value for key, value in head.trailers() if key == "Overlay-Depends"]
    return [name for value in values for name in value.replace(",", " ").split()]


def _depends(
    root: Root, directory: Path, listed: Sequence[str], depends: dict[str, list[str]]
) -> Iterator[Finding]:
    for patch, needed in depends.items():
        file = _shown(root, directory / f"{patch}.patch")
        for other in needed:
            if other not in listed:
                yield Finding("depends", file, None, "patch needs one that is not in the series", found=other)
            elif patch in _reached(other, depends):
                yield Finding("depends", file, None, "patches need each other in a circle", found=other)
            elif listed.index(other) > listed.index(patch):
                yield Finding("depends", file, None, "patch needs one that comes after it", found=other)


def _reached(start: str, depends: dict[str, list[str]]) -> set[str]:
    """Every patch that ``start`` needs, itself included, however far away."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        patch = ahead.pop()
        if patch not in seen:
            seen.add(patch)
            ahead += depends.get(patch, [])
    return seen


def _overlays(root: Root, series: Sequence[str]) -> Iterator[Finding]:
    used: set[str] = set()
    for name in root.names():
        path = root.spec_path(name)
        try:
            spec = read_spec(path)
            listed = read_series_file(root.patches / spec.patches.series)
        except InvalidInput as error:
            yield Finding(
                "overlay", _shown(root, path), None, error.what, error.expected or "", error.found or ""
            )
            continue
        used.add(spec.patches.series)
        if spec.patches.series in series:
            yield from _hardware(root, spec)
        if spec.summary.startswith("TODO"):
            what = "the skeleton's TODO is still there"
            yield Finding("placeholder", _shown(root, path), None, what, "what the overlay is for")
        for patch in (*spec.patches.only, *spec.patches.leave_out):
            if patch not in listed:
                yield Finding(
                    "overlay", _shown(root, path), None, "spec names a patch that is not there", found=patch
                )
    for name in series:
        if name not in used:
            yield Finding(
                "unused-patch",
                _shown(root, root.patches / name / "series"),
                None,
                "no overlay uses this series",
            )


def _hardware(root: Root, spec: Spec) -> Iterator[Finding]:
    """Patches of an overlay that were not written for all of its hardware."""
    try:
        patches = chosen_series(root.patches, spec.patches).patches
    except InvalidInput:
        return  # other rules say what is wrong with it
    for patch in patches:
        file = root.patches / spec.patches.series / f"{patch.name}.patch"
        if patch.hardware and (others := sorted(set(spec.hardware) - set(patch.hardware))):
            what = f"patch was not written for {' '.join(others)}, which overlay {spec.name} is for"
            found = " ".join(patch.hardware)
            yield Finding("hardware", _shown(root, file), None, what, " ".join(spec.hardware), found)


def _probes(root: Root) -> Iterator[Finding]:
    places = [root.patches / name for name in series_names(root)]
    places += (root.patches / "retired").glob("*")  # their probes still say when they are needed again
    patches = {path.stem for place in places for path in place.glob("*.patch")}
    for path in sorted(root.probes.glob("*.py")):
        if path.stem not in patches and not path.stem.startswith("_"):
            yield Finding("unused-probe", _shown(root, path), None, "there is no patch of this name")
    for path in sorted(root.probes.glob("*.yaml")):
        name = path.name.removesuffix(".yaml").rpartition(".")[0]
        probe = root.probes / f"{name}.py"
        if path not in lists_of(probe):
            what = "not a list that belongs to a probe"
            yield Finding(
                "probe-lists", _shown(root, path), None, what, "NAME.mutants.yaml, NAME.variants.yaml"
            )
        elif not probe.is_file():
            yield Finding("unused-probe", _shown(root, path), None, "there is no probe of this name")
    for path in sorted(root.probes.glob("*.py")):
        try:
            read_lists(path)
        except InvalidInput as error:
            where = str(error.where).removeprefix(f"{root.path}/")
            file, _, place = where.partition(": ")
            what = f"{error.what}{': ' if place else ''}{place}"
            yield Finding(
                "probe-lists", file, None, what, error.expected or error.hint or "", error.found or ""
            )


def _shown(root: Root, path: Path) -> str:
    return str(path.relative_to(root.path))
