"""Drift: what the lock says an overlay was built from, held against what is here now.

A build writes its inputs to the lock as a whole, so that each thing that changed since can be named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import __version__
from builder.base.image import Base
from builder.errors import InvalidInput, NotReproducible
from builder.oci.append import timestamp
from builder.oci.model import Format, format_input
from builder.patch.series import Series
from builder.project.lock import INPUTS, Lock
from builder.project.spec import Spec
from builder.record.manifest import MANIFEST_SCHEMA

_UNSAID = {"format": "base"}  # what is meant where an input is not written


@dataclass(frozen=True)
class Drift:
    """One input that is not what it was.

    Args:
        kind: ``spec``, ``series``, ``patch``, ``version``, ``template``, ``base``, ``schema``, ``tool``,
            ``format`` or ``time``.
        where: the key, patch or platform.
        locked, found: what the lock says, and what is here.
    """

    kind: str
    where: str
    locked: str
    found: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: locked {self.locked}, now {self.found}"


def build_inputs(
    spec: Spec, series: Series, template: Path, created: int, format: Format = "base"
) -> dict[str, Any]:
    """Everything that decides an image but its base: the lock's section ``inputs``.

    Args:
        spec: the overlay.
        series: its patches.
        template: ``Dockerfile.in``.
        created: the time of everything new, in seconds since 1970.
        format: which media types are asked for.
    """
    return {
        "created": timestamp(created),
        "patches": [{"name": patch.name, "sha256": patch.sha256} for patch in series.patches],
        "schema": MANIFEST_SCHEMA,
        "spec": spec.model_dump(mode="json", by_alias=True),
        "template": hashlib.sha256(template.read_bytes()).hexdigest(),
        "tool": __version__,
        **format_input(format),
    }


def find_drift(lock: Lock, inputs: Mapping[str, Any], bases: Sequence[Base]) -> list[Drift]:
    """Each input that is not what the lock was written with.

    Args:
        lock: of the overlay.
        inputs: from :func:`build_inputs`.
        bases: what would be built on, one for each platform.

    Raises:
        InvalidInput: the lock records no build.
    """
    locked = lock.sections.get(INPUTS)
    if not isinstance(locked, dict) or not lock.images:
        raise InvalidInput(
            "the lock records no build",
            expected=f"sections {INPUTS} and images",
            hint="build once without --locked, review the lock, and commit it",
        )
    return [
        *_simple_drift(locked, inputs),
        *_spec_drift(locked.get("spec"), inputs["spec"]),
        *_patch_drift(locked, inputs),
        *_base_drift(lock, bases),
    ]


def damaged_patches(lock: Lock, directory: Path) -> list[Drift]:
    """Patch files that are not the locked ones, by their bytes alone: they need not be readable as patches.

    Args:
        lock: of the overlay.
        directory: of the series.
    """
    locked = lock.sections.get(INPUTS)
    patches = _patches(locked) if isinstance(locked, dict) else {}
    # A lock is anybody's: a name that leads elsewhere is not a file of this directory.
    paths = {name: directory / f"{name}.patch" for name in patches}
    found = {name: _sha256(path) for name, path in paths.items() if path.parent == directory}
    return [
        Drift("patch", name, patches[name], sha256)
        for name, sha256 in found.items()
        if sha256 not in (None, patches[name])
    ]


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def unversioned_changes(lock: Lock, inputs: Mapping[str, Any]) -> list[str]:
    """Patches that changed, came or went since the lock was written, while the overlay's version did not."""
    locked = lock.sections.get(INPUTS)
    if not isinstance(locked, dict) or _version(locked) != _version(inputs):
        return []
    return [drift.where for drift in _patch_drift(locked, inputs) if drift.kind != "version"]


def drift_error(drifts: Sequence[Drift], where: str) -> NotReproducible:
    """The error for a locked build whose inputs drifted; it names each."""
    first, *rest = drifts
    return NotReproducible(
        f"{len(drifts)} inputs are not what the lock was written with"
        if rest
        else f"an input is not what the lock was written with: {first.kind}",
        where=f"{where}: {first.kind}: {first.where}",
        expected=first.locked,
        found=first.found,
        details="\n".join(map(str, rest)) or None,
        hint="build without --locked to take the change, and review the lock",
        facts={"drift": [vars(drift) for drift in drifts]},
    )


def _simple_drift(locked: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[Drift]:
    named = {
        "schema": ("schema", "the tool's manifest schema"),
        "tool": ("tool", "the tool's version"),
        "template": ("template", "Dockerfile.in"),
        "created": ("time", "SOURCE_DATE_EPOCH, or the spec's date"),
        "format": ("format", "--format"),
    }
    for key, (kind, where) in named.items():
        before, now = (values.get(key, _UNSAID.get(key)) for values in (locked, inputs))
        if before != now:
            yield Drift(kind, where, str(before), str(now))


def _spec_drift(locked: Any, spec: Any) -> Iterator[Drift]:
    before, now = dict(_leaves(locked, "")), dict(_leaves(spec, ""))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            yield Drift("spec", key, _said(before, key), _said(now, key))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The values of a nested mapping by dotted key; lists count as values."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _said(values: Mapping[str, Any], key: str) -> str:
    return str(values[key]) if key in values else "not there"


def _patch_drift(locked: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[Drift]:
    before, now = _patches(locked), _patches(inputs)
    drifts = [
        Drift("patch", name, before.get(name, "not in the series"), now.get(name, "not in the series"))
        for name in [*now, *(name for name in before if name not in now)]
        if before.get(name) != now.get(name)
    ]
    both = [name for name in before if name in now]
    if both != [name for name in now if name in before]:
        drifts.append(Drift("series", "order of the patches", " ".join(before), " ".join(now)))
    yield from drifts
    if drifts and _version(locked) == _version(inputs):
        yield Drift(
            "version",
            "the patches changed and the overlay's version did not",
            f"version {_version(locked)} with the patches of the lock",
            f"version {_version(inputs)} with others",
        )


def _patches(inputs: Mapping[str, Any]) -> dict[str, str]:
    entries = inputs.get("patches")
    listed = entries if isinstance(entries, list) else ()  # a lock is anybody's
    pairs = [(e.get("name"), e.get("sha256")) for e in listed if isinstance(e, dict)]
    return {str(name): str(sha256) for name, sha256 in pairs}


def _version(inputs: Mapping[str, Any]) -> Any:
    spec = inputs.get("spec")
    return spec.get("version") if isinstance(spec, Mapping) else None


def _base_drift(lock: Lock, bases: Sequence[Base]) -> Iterator[Drift]:
    for base in bases:
        image = lock.images.get(str(base.platform))
        found = base.manifest.digest
        if image is None:
            yield Drift("base", str(base.platform), "no image for this platform", found)
        elif image.get("base") != found:
            yield Drift("base", str(base.platform), str(image.get("base")), found)
