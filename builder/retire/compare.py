"""Two overlays, or two images by their applied-patch manifests: which versions, patches and files differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.oci.append import labels_of
from builder.oci.model import ByteProgress
from builder.patch.apply import apply_series
from builder.project.project import Root
from builder.record.manifest import Manifest, read_manifest
from builder.retire.selection import read_subject
from builder.source.upstream import Progress


@dataclass(frozen=True)
class Side:
    """One of the two.

    Args:
        name: as the user named it.
        facts: versions and digests, by what they are of.
        patches: SHA-256 of each patch file, by name, in the series' order.
        files: git blob id of each patched file afterwards, by path; None for one that is deleted.
    """

    name: str
    facts: Mapping[str, str]
    patches: Mapping[str, str]
    files: Mapping[str, str | None]


@dataclass(frozen=True)
class Difference:
    """What differs between two sides; the left one is the older."""

    left: Side
    right: Side
    facts: tuple[tuple[str, str, str], ...]
    patches: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, Any]:
        """The same facts for programs."""
        return {
            "left": self.left.name,
            "right": self.right.name,
            "facts": {key: {"left": was, "right": now} for key, was, now in self.facts},
            "patches": dict(self.patches),
            "files": dict(self.files),
        }

    def as_markdown(self) -> str:
        """The same facts for a pull request."""
        from builder.retire.markdown import escaped

        lines = [f"| | {escaped(self.left.name)} | {escaped(self.right.name)} |", "|---|---|---|"]
        lines += [f"| {key} | {escaped(was)} | {escaped(now)} |" for key, was, now in self.facts]
        for title, rows in (("Patches", self.patches), ("Files", self.files)):
            lines += ["", f"{title}:", ""] + [f"- {escaped(name)}: {what}" for name, what in rows]
        return "\n".join(lines) + "\n"


def read_side(
    name: str,
    project: Root,
    cache: Path,
    progress: Progress,
    *,
    transfer: ByteProgress,
    warn: Callable[[str], None],
) -> Side:
    """What a user names: an overlay, an image that overlay made, or the file of its manifest.

    Args:
        name: the overlay's name, a reference or ``oci:DIR``, or a path that ends in ``.json``.
        project: where overlays are.
        cache: where sources are kept.
        progress: told what takes time.
        transfer: makes a byte counter for a layer that is read.
        warn: told what a person should know although the work goes on.

    Raises:
        InvalidInput: there is no such overlay.
        ImageMismatch: the file is not a manifest.
        PatchConflict: the overlay's series does not apply to its pin.
    """
    if name.endswith(".json") and Path(name).is_file():
        return manifest_side(name, read_manifest(Path(name).read_bytes(), where=name))
    if name not in project.names() and any(mark in name for mark in "/:@"):
        return _image_side(name, transfer, warn)
    subject, spec = read_subject(name, project, cache, progress=progress)
    series = subject.series
    applied = apply_series(series, subject.pin.files(series.paths), subject.pin.main.store, drop=subject.drop)
    wheel = spec.upstream.wheel
    facts = {
        "version": spec.version,
        "release": spec.upstream.release,
        "commit": spec.upstream.commit or "unknown",
        "wheel": f"{wheel.requirement} {wheel.sha256}" if wheel else "none",
        "base": f"{spec.base.image}@{spec.base.index}" if spec.base.index else spec.base.image,
        "patch set": series.digest,
        "environment": _table(spec.environment),
        "arguments": _table(spec.arguments),
    }
    files = {path: source.blob if source else None for path, source in applied.after.items()}
    return Side(name, facts, {patch.name: patch.sha256 for patch in series.patches}, files)


def _image_side(name: str, transfer: ByteProgress, warn: Callable[[str], None]) -> Side:
    """An image by its manifest; of an index, the first platform's: patches and sources are the same for
    all."""
    from builder.oci.reference import parse_location
    from builder.oci.registry.client import Network
    from builder.oci.registry.location import identifier_of, open_source
    from builder.verify.layered import open_images
    from builder.verify.read_record import find_manifest, read_record

    location = parse_location(name)
    with Network(warn=warn) as network:
        image = open_images(location, open_source(location, network), identifier_of(location))[0]
        record = read_record(labels_of(image.config), f"{location.name}@{image.manifest.digest}")
        return manifest_side(name, find_manifest(image, record, transfer))


def manifest_side(name: str, manifest: Manifest) -> Side:
    """An image, by the manifest in it."""
    facts = {
        "version": manifest.overlay.version,
        "release": manifest.upstream.release,
        "commit": manifest.upstream.commit or "unknown",
        "base": f"{manifest.base.ref}@{manifest.base.digest}",
        "patch set": manifest.patchset,
    }
    files: dict[str, str | None] = {}
    for patch in manifest.patches:
        for record in patch.files:
            files[record.path] = record.post.blob if record.post else None
    return Side(name, facts, {patch.name: patch.sha256 for patch in manifest.patches}, files)


def compare(left: Side, right: Side) -> Difference:
    """What differs."""
    keys = [key for key in left.facts if key in right.facts]
    facts = [(key, left.facts[key], right.facts[key]) for key in keys if left.facts[key] != right.facts[key]]
    patches = _changes(left.patches, right.patches, "changed")
    common = [name for name in left.patches if name in right.patches]
    if not patches and common != [name for name in right.patches if name in left.patches]:
        patches = [("(series)", "in another order")]
    return Difference(
        left, right, tuple(facts), tuple(patches), tuple(_changes(left.files, right.files, "differs"))
    )


def _changes(
    left: Mapping[str, str | None] | Mapping[str, str],
    right: Mapping[str, str | None] | Mapping[str, str],
    differs: str,
) -> list[tuple[str, str]]:
    rows = []
    for name in [*left, *(name for name in right if name not in left)]:
        if name not in right:
            rows.append((name, "only in the first"))
        elif name not in left:
            rows.append((name, "only in the second"))
        elif left[name] != right[name]:
            rows.append((name, differs))
    return rows


def _table(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items()) or "none"
