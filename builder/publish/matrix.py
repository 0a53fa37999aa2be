"""What must be built now: overlays whose inputs are not those of what a registry holds.

Every image says in a label and annotation what it was made from (:func:`builder.build.plan.inputs_digest`),
and an index says it of each of its images. So one request for a tag answers for all platforms under it; only
images in Docker's older media types, which have no annotations, take more requests, for their configs.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base.image import base_locations
from builder.build.plan import INPUTS_LABEL, inputs_digest, tag_values
from builder.errors import ImageMismatch, InvalidInput, UsageError
from builder.oci.append import base_config
from builder.oci.document import json_object
from builder.oci.index import index_images
from builder.oci.model import Format, ImageSource, Platform, RawManifest
from builder.oci.reference import LayoutReference, Reference
from builder.patch.series import Series, chosen_series
from builder.project.lock import Lock, read_lock
from builder.project.pin import Pin, pin_command, pinned
from builder.project.project import Root
from builder.project.spec import Spec, read_spec
from builder.publish.push import tag_of
from builder.temporary import temporary_directory

if TYPE_CHECKING:
    from builder.oci.registry.client import Repository

MAX_ARCHIVE_BYTES = 256 << 20
GIT_TIMEOUT = 60.0

Opener = Callable[[Reference | LayoutReference], ImageSource]


@dataclass(frozen=True)
class Row:
    """One overlay that can be built as it stands.

    Args:
        spec, series: the overlay and its patches.
        tag: what its image is called.
        locations: its base with a digest, or each platform's.
        inputs: what each platform's image is made from.
    """

    spec: Spec
    series: Series
    tag: str
    locations: Sequence[Reference | LayoutReference]
    inputs: Mapping[Platform, str]

    @property
    def base(self) -> str:
        """Names what it is built on."""
        return " ".join(map(str, self.locations))

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def platforms(self) -> list[Platform]:
        return list(self.inputs)


@dataclass(frozen=True)
class Skipped:
    """An overlay that cannot be built as it stands, and why."""

    name: str
    reason: str


def read_row(
    root: Root,
    name: str,
    platforms: Sequence[Platform],
    template: str,
    opened: Opener | None,
    format: Format = "base",
) -> Row | Skipped:
    """An overlay with what its images would be made from.

    An overlay whose spec pins no base waits for an image of its user's own: it is skipped.

    Args:
        root: where overlays are.
        name: which.
        platforms: which; none means those of the spec.
        template: of the tag.
        opened: reads a base's index, where the spec leaves a platform's digest open. None asks nobody: what
            is open is then named by the index, which tells changes apart too, but is not what images say.
        format: which media types images get.

    Raises:
        InvalidInput: the spec or series is not valid.
        ImageMismatch, Unavailable: the base cannot be read.
    """
    spec = read_spec(root.spec_path(name))
    lock = read_lock(root.locks(name))
    text = pinned(None, spec.base, lock)
    if text is None and spec.base.index is None and not any(spec.base.platforms.values()):
        return Skipped(
            name, f"the spec pins no base (base.index): {pin_command(spec)}, or build it with --base"
        )
    locations = base_locations(text, spec, ())
    series = chosen_series(root.patches, spec.patches)
    inputs = {
        platform: inputs_digest(spec, series.digest, digest, root.template, format)
        for platform, digest in _base_digests(spec, locations[0], lock, opened).items()
        if platform in platforms or not platforms
    }
    if not inputs:
        wanted = f"not for {', '.join(map(str, platforms))}"
        return Skipped(name, wanted if platforms else "the spec names no platforms (base.platforms)")
    return Row(spec, series, tag_of(template, tag_values(spec, series.digest)), locations, inputs)


def _base_digests(
    spec: Spec, location: Reference | LayoutReference, lock: Lock, opened: Opener | None
) -> dict[Platform, str]:
    """The base of each of the spec's platforms: as spec or lock have it, else as the registry says."""
    said = {Platform.parse(name): digest for name, digest in spec.base.platforms.items()}
    if said and all(said.values()):
        return {platform: digest for platform, digest in said.items() if digest}
    there = _locked(location, lock)
    if there is None and opened is None:
        return {platform: digest or f"{location.digest} {platform}" for platform, digest in said.items()}
    if there is None and opened is not None:
        there = _asked(spec, location, list(said), opened(location))
    found = there or {}
    missing = [str(platform) for platform in said if platform not in found]
    if missing:
        raise ImageMismatch(
            "the image index has no image for the platform",
            where=f"{spec.name}: {location}",
            expected=", ".join(missing),
            found=", ".join(map(str, found)),
        )
    return {platform: said.get(platform) or found[platform] for platform in said or found}


def _locked(location: Reference | LayoutReference, lock: Lock) -> dict[Platform, str] | None:
    """The base's platforms as ``overlay pin`` found them."""
    for reference, value in lock.pins.items():
        pin = Pin.from_json(reference, value)
        if pin.digest == location.digest:
            return {platform: image.digest for platform, image in pin.images.items()}
    return None


def _asked(
    spec: Spec, location: Reference | LayoutReference, said: Sequence[Platform], source: ImageSource
) -> dict[Platform, str]:
    manifest = source.get_manifest(location.digest or "")
    if manifest.is_index:
        return {child.platform: child.digest for child in index_images(manifest, source) if child.platform}
    if len(said) != 1:
        raise UsageError(
            "the base is one platform's image, and the spec does not say which platform",
            where=f"{spec.name}: base.platforms",
        )
    return {said[0]: manifest.digest}


# --- what a registry holds ----------------------------------------------------------------------------------


def missing_platforms(row: Row, repository: Repository) -> list[Platform]:
    """The platforms of which ``repository`` holds no image made from these inputs under the overlay's tag."""
    held = held_inputs(repository, row.tag)
    return [platform for platform, inputs in row.inputs.items() if inputs not in held]


def held_inputs(repository: Repository, tag: str) -> frozenset[str]:
    """What the images under a tag were made from; nothing where there is no such tag.

    Raises:
        ImageMismatch: what is there cannot be read.
        Unavailable: the registry did not answer.
    """
    manifest = repository.find_manifest(tag)
    if manifest is None:
        return frozenset()
    if not manifest.is_index:
        return _of_image(repository, manifest)
    found: frozenset[str] = frozenset()
    for child in index_images(manifest, repository):
        if inputs := child.annotations.get(INPUTS_LABEL):
            found |= {inputs}
        else:
            found |= _of_image(repository, repository.get_manifest(child.digest))
    return found


def _of_image(repository: Repository, manifest: RawManifest) -> frozenset[str]:
    from builder.oci.append import labels_of

    annotations = json_object(manifest.data, f"{repository.name}@{manifest.digest}").get("annotations")
    if isinstance(annotations, dict) and INPUTS_LABEL in annotations:
        inputs = annotations[INPUTS_LABEL]
    else:
        inputs = labels_of(repository.read_blob(base_config(manifest))).get(INPUTS_LABEL)
    return frozenset({inputs} if isinstance(inputs, str) else ())


# --- what a change touches ----------------------------------------------------------------------------------


def unchanged_since(root: Root, revision: str, rows: Sequence[Row], format: Format = "base") -> list[str]:
    """The names of overlays that are built from the same inputs as at a revision of the root's repository.

    Args:
        root: the root as it is now.
        revision: of the git repository that it lies in.
        rows: what would be built now, as :func:`read_row` gives it when it asks nobody.
        format: which media types images get, then as now.

    Raises:
        InvalidInput: the root is in no git repository, or it has no such revision.
    """
    with root_at(root, revision) as before:
        return [row.name for row in rows if _is_same(before, row, format)]


def _is_same(before: Root, row: Row, format: Format) -> bool:
    try:
        was = read_row(before, row.name, row.platforms, "{name}", None, format)
    except (InvalidInput, UsageError):
        return False  # it was not there, or not valid: what is now is new
    return isinstance(was, Row) and was.inputs == row.inputs


@contextmanager
def root_at(root: Root, revision: str) -> Iterator[Root]:
    """The root's specs, series and template as they were at a revision, in a directory that goes again."""
    if revision.startswith("-"):
        raise UsageError("not a revision", where="--changed-since", found=revision)
    names = ["overlays", "patches", "Dockerfile.in"]
    archive = _git(root, "archive", "--format=tar", revision, "--", *names)
    with temporary_directory("before") as directory:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(directory, filter="data")
        path = Path(directory)
        yield Root(path, path / "overlays")


def _git(root: Root, *arguments: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=root.path,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=GIT_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidInput("git does not run here", where=str(root.path), found=str(error)) from error
    if done.returncode or len(done.stdout) > MAX_ARCHIVE_BYTES:
        raise InvalidInput(
            "the specs and patches of that revision cannot be read",
            where=str(root.path),
            found=done.stderr.decode(errors="replace").strip()[:500],
            hint="name a commit that is there: in CI, fetch with the whole history (fetch-depth: 0)",
        )
    return done.stdout
