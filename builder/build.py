"""The main job, step by step: spec → upstream → series → patched tree → layer → image → record."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.apply import AppliedSeries, apply_series
from builder.bake import INPUTS_LABEL, Plan, bake, make_plan, tag_of
from builder.base import (
    Base,
    ByteProgress,
    Facts,
    check_pre_images,
    lookup_facts,
    resolve_bases,
    wrong_files,
)
from builder.drift import SECTION as INPUTS
from builder.errors import InvalidInput
from builder.gitstore import GitStore
from builder.image.append import NewImage, new_index
from builder.image.layer import Layer
from builder.image.model import Descriptor, ImageSink, Platform, RawManifest
from builder.image.reference import LayoutReference, Reference
from builder.lock import Lock
from builder.manifest import MANIFEST_PATH
from builder.probe.matrix import probe_series
from builder.probe.sources import patched_tree, pristine_tree
from builder.root import Root
from builder.series import Series, read_series
from builder.spec import Spec
from builder.upstream import Upstream, resolve_upstream

if TYPE_CHECKING:
    from builder.image.registry import Network

DEFAULT_TAG = "{release}-{name}-{patchset}"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Sources:
    """Where the pinned sources come from (see :func:`builder.upstream.resolve_upstream`)."""

    kind: str = "auto"
    url: str | None = None
    wheel: Path | None = None


@dataclass(frozen=True)
class Patched:
    """A spec with its series applied and probed: everything that does not depend on a base.

    Args:
        spec, upstream, applied: the overlay, its pinned source, its series applied to it.
        probes: what the probes said, by patch: ``defect->fixed``, or ``none`` for a patch without a probe.
        template: ``Dockerfile.in``.
    """

    spec: Spec
    upstream: Upstream
    applied: AppliedSeries
    probes: Mapping[str, str]
    template: Path


@dataclass(frozen=True)
class Baked:
    """One platform's image, with the plan it was made by."""

    plan: Plan
    image: NewImage
    layer: Layer


@dataclass(frozen=True)
class Built:
    """What a build made.

    Args:
        images: one for each platform.
        index: the index over them, when there are several.
        digest: of the index, else of the only image.
    """

    images: tuple[Baked, ...]
    index: RawManifest | None

    @property
    def digest(self) -> str:
        return self.index.digest if self.index else self.images[0].image.manifest.digest


def patch_upstream(root: Root, spec: Spec, cache: Path, sources: Sources, *, say: Say) -> Patched:
    """Apply an overlay's series to its pinned source, and ask the probes.

    Args:
        root: where patches and probes are.
        spec: the overlay.
        cache: the user's cache.
        sources: where the pinned source comes from.
        say: told what takes time.

    Raises:
        InvalidInput, PatchConflict, ProbeFailed, Unavailable: as each step says.
    """
    series = series_of(root, spec)
    upstream = resolve_upstream(
        spec.upstream, cache, source=sources.kind, url=sources.url, wheel_file=sources.wheel, progress=say
    )
    store = GitStore.create(cache / "series.git")
    applied = apply_series(series, upstream.files(series.paths), store, drop=spec.patches.drop)
    pristine = pristine_tree(upstream)
    patched = patched_tree(pristine, applied)
    probes = probe_series(series.names, root.probes, pristine, patched, remembered=cache / "probes")
    return Patched(spec, upstream, applied, probes, root.template)


def series_of(root: Root, spec: Spec) -> Series:
    """The patches that a spec takes, in their order.

    Raises:
        InvalidInput: there is none, or as :func:`builder.series.read_series` says.
    """
    directory = root.patches / spec.patches.series
    series = read_series(directory, only=spec.patches.only, leave_out=spec.patches.leave_out)
    if not series.patches:
        raise InvalidInput(
            "the overlay takes no patch: there is nothing to build",
            where=f"overlays/{spec.name}.yaml: patches",
            expected="at least one patch of the series",
            found=f"patches/{series.name}/series, less what only and except leave out",
        )
    return series


def choose_bases(
    spec: Spec, location: Reference | LayoutReference, network: Network, platforms: Sequence[Platform]
) -> list[Base]:
    """The platform images of a base: a few small requests, before anything large is fetched.

    Args:
        spec: the overlay.
        location: the base, with a digest.
        network: the registries.
        platforms: what ``--platform`` asks for.

    Raises:
        ImageMismatch, UsageError, Unavailable: see :func:`builder.base.resolve_bases`.
    """
    from builder.image.location import open_source

    return resolve_bases(location, open_source(location, network), spec.base, platforms)


def plan_images(
    patched: Patched, bases: Sequence[Base], *, lock: Lock, cache: Path, progress: ByteProgress
) -> list[Plan]:
    """Check every pre-image in the bases, and plan what goes in.

    Args:
        patched: the patched source.
        bases: one for each platform.
        lock: facts of bases that were verified before.
        cache: where layer indexes are kept.
        progress: makes a byte counter for a layer that is read.

    Raises:
        ImageMismatch: a base is not what the series was made for.
    """
    return [_plan(patched, base, lock, cache, progress) for base in bases]


def _plan(patched: Patched, base: Base, lock: Lock, cache: Path, progress: ByteProgress) -> Plan:
    entry = lock.bases.get(base.manifest.digest)
    known = Facts.from_json(entry) if entry is not None else None
    before = patched.applied.before
    if known is not None and wrong_files(known, before):
        known = None  # a base is refused by what its own layers say, not by what a lock says of it
    facts = lookup_facts(
        base,
        list(before),
        known=known,
        cache=cache,
        roots=patched.spec.base.roots,
        beside=[MANIFEST_PATH],
        progress=progress,
    )
    check_pre_images(base, facts, before, cache=cache, progress=progress)
    return make_plan(
        patched.spec,
        patched.applied,
        base,
        facts,
        template=patched.template,
        probes=patched.probes,
        created=creation_time(patched.spec),
    )


def creation_time(spec: Spec) -> int:
    """``SOURCE_DATE_EPOCH``, else midnight UTC of the spec's date; seconds since 1970.

    Raises:
        InvalidInput: the variable is no number of seconds.
    """
    said = os.environ.get("SOURCE_DATE_EPOCH")
    if said is None:
        return int(datetime.datetime.combine(spec.date, datetime.time(), datetime.UTC).timestamp())
    if not said.isascii() or not said.isdigit() or len(said) > 11:
        raise InvalidInput(
            "SOURCE_DATE_EPOCH is no time",
            where="environment",
            expected="seconds since 1970",
            found=said[:40],
        )
    return int(said)


def bake_images(plans: Sequence[Plan]) -> Built:
    """Bake every plan with the embedded engine; several images get an index over them.

    The index says of each image what it was made from, so that one request tells what a registry holds.
    """
    images = tuple(Baked(plan, *bake(plan)) for plan in plans)
    if len(images) == 1:
        return Built(images, None)
    children: list[Descriptor] = [
        replace(baked.image.descriptor, annotations={INPUTS_LABEL: baked.plan.labels[INPUTS_LABEL]})
        for baked in images
    ]
    return Built(images, new_index(children, annotations=_shared_annotations(plans)))


def _shared_annotations(plans: Sequence[Plan]) -> dict[str, str]:
    """What is true of every platform's image."""
    first, *rest = [plan.labels for plan in plans]
    return {key: value for key, value in first.items() if all(labels.get(key) == value for labels in rest)}


def store_images(built: Built, sink: ImageSink, *, tag: str | None, progress: ByteProgress) -> None:
    """Write a build to a registry or layout: blobs, then manifests by digest, the tag last of all.

    Args:
        built: what was baked.
        sink: where to; the base's layers are mounted, streamed or left out, as the sink has it.
        tag: the name for the whole.
        progress: makes a byte counter for a layer that is streamed.
    """
    for baked in built.images:
        source = baked.plan.base.source
        for descriptor in baked.image.layers[:-1]:
            counter = progress(f"copying layer {descriptor.digest[7:19]}", descriptor.size)
            sink.copy_blob(source, descriptor, progress=counter)
        sink.put_blob(baked.layer.descriptor, baked.layer.data)
        sink.put_blob(baked.image.config_descriptor, baked.image.config)
    if built.index is None:
        sink.put_manifest(built.images[0].image.manifest, tag=tag)
        return
    for baked in built.images:
        sink.put_manifest(baked.image.manifest)
    sink.put_manifest(built.index, tag=tag)


def default_tag(template: str, patched: Patched) -> str:
    """The tag for an image that is pushed without one."""
    return tag_of(template, patched.spec, patched.applied.series.digest)


def locked(
    lock: Lock,
    plans: Sequence[Plan],
    built: Built | None,
    references: Sequence[str],
    inputs: Mapping[str, Any],
) -> Lock:
    """The lock with what this build verified and made.

    Args:
        lock: as it was read.
        plans: one for each platform; their facts are verified.
        built: what the embedded engine baked; None where a Docker Engine did, whose digests are its own.
        references: where it went.
        inputs: what it was built from (see :mod:`builder.drift`).
    """
    bases = dict(lock.bases) | {plan.base.manifest.digest: plan.facts.as_json() for plan in plans}
    images: dict[str, Mapping[str, Any]] = dict(lock.images)
    for baked in built.images if built else ():
        record = image_record(baked) | {"references": sorted(references)}
        images[str(baked.plan.base.platform)] = record
    sections = dict(lock.sections) | ({} if built is None else {INPUTS: inputs})
    return Lock(bases, lock.pins, images, sections)


def image_record(baked: Baked) -> dict[str, Any]:
    """The digests that the lock keeps of an image."""
    return {
        "base": baked.plan.base.manifest.digest,
        "config": baked.image.config_descriptor.digest,
        "digest": baked.image.manifest.digest,
        "inputs": baked.plan.labels[INPUTS_LABEL],
        "layer": baked.layer.descriptor.digest,
        "manifest": baked.plan.manifest.digest,
        "patchset": baked.plan.manifest.patchset,
    }
