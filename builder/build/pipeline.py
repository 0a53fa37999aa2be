"""The main job, step by step: spec → upstream → series → patched tree → layer → image → record."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock as Mutex
from typing import TYPE_CHECKING, Any, TypeVar

from builder.base.image import (
    Base,
    BaseFiles,
    base_locations,
    check_pre_images,
    look_up_base_files,
    resolve_bases,
    wrong_files,
)
from builder.build.drift import (
    build_inputs,
    damaged_patches,
    drift_error,
    find_drift,
    unversioned_changes,
)
from builder.build.plan import INPUTS_LABEL, Plan, bake, engine_name, expected_settings, make_plan, tag_values
from builder.build.request import Request, Sources
from builder.build.result import BuildResult, ImageResult, Report
from builder.errors import InvalidInput
from builder.oci.append import new_index
from builder.oci.layer import Layer
from builder.oci.model import ByteProgress, Descriptor, Format, NewImage, Platform, RawManifest
from builder.oci.reference import LayoutReference, Reference
from builder.patch.apply import AppliedSeries, PatchReport, apply_series
from builder.patch.requirements import requirements_of
from builder.patch.series import Series, check_reaches, chosen_series
from builder.printable import counted
from builder.probe.evaluate import probe_series
from builder.probe.named_trees import patched_tree, pristine_tree
from builder.project.lock import Lock
from builder.project.pin import pinned
from builder.project.project import Root
from builder.project.requirements import check_installed, unmet
from builder.project.spec import Spec, read_spec
from builder.record.manifest import MANIFEST_PATH
from builder.soundness.check import Checker
from builder.soundness.series import check_series
from builder.source.git import GitStore
from builder.source.upstream import Upstream, peeled, resolve_upstream

if TYPE_CHECKING:
    from builder.oci.registry.client import Network
    from builder.record.document import Document
    from builder.record.signature import SigningKey

Say = Callable[[str], None]
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Patched:
    """A spec with its series applied and probed: everything that does not depend on a base.

    Args:
        spec, upstream, applied: the overlay, its pinned source, its series applied to it.
        probes: what the probes said, by patch: ``defect->fixed``, or ``none`` for a patch without a probe.
        template: ``Dockerfile.in``.
        notes: patched files that could not be looked at, or were broken before.
        format: which media types its images get.
    """

    spec: Spec
    upstream: Upstream
    applied: AppliedSeries
    probes: Mapping[str, str]
    template: Path
    notes: tuple[str, ...] = ()
    format: Format = "base"


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
    """

    images: tuple[Baked, ...]
    index: RawManifest | None

    @property
    def digest(self) -> str:
        """Of the index, else of the only image."""
        return self.index.digest if self.index else self.images[0].image.manifest.digest


@dataclass(frozen=True)
class Planned:
    """Everything that decides the images of one overlay, before they are baked.

    Args:
        patched: its patched source.
        plans: one for each platform.
        inputs: what decides them, as the lock keeps it.
    """

    patched: Patched
    plans: tuple[Plan, ...]
    inputs: Mapping[str, Any]


class Shared:
    """What several builds of one run have in common: the first that needs a thing makes it, others wait."""

    def __init__(self) -> None:
        self._guard = Mutex()
        self._mutexes: dict[str, Mutex] = {}
        self._made: dict[str, Any] = {}

    def alone(self, what: str) -> AbstractContextManager[object]:
        """Work whose second doer finds it done: held for one thread at a time."""
        with self._guard:
            return self._mutexes.setdefault(what, Mutex())

    def once(self, what: str, make: Callable[[], _Made]) -> _Made:
        """What ``make`` gave the first who asked for ``what``; an error is kept for nobody."""
        with self.alone(what):
            if what not in self._made:
                self._made[what] = make()
            made: _Made = self._made[what]
            return made


def plan_overlay(
    request: Request,
    network: Network,
    shared: Shared,
    *,
    say: Say,
    warn: Say,
    progress: ByteProgress,
) -> Planned:
    """All steps before the bake.

    Args:
        request: what is to be built.
        network: the registries.
        shared: what is made once for several overlays.
        say: told what takes time.
        warn: hears what a person should know though the work goes on.
        progress: makes a byte counter for a layer that is read.

    Raises:
        NotReproducible: an input is not what the lock says, and it must be.
        InvalidInput, PatchConflict, ProbeFailed, ImageMismatch, Unavailable: as each step says.
    """
    root, lock, platforms = request.root, request.lock, request.platforms
    spec = read_spec(root.spec_path(request.name))
    locations = base_locations(pinned(request.base, spec.base, lock), spec, platforms)
    place = f"{' '.join(map(str, (*locations, *platforms)))} {spec.base.model_dump_json()}"
    bases = shared.once(f"bases {place}", lambda: choose_bases(spec, locations, network, platforms))
    # Before the series is applied: a patch that changed is drift, whether it still applies or not.
    series = _locked_series(root, spec, lock) if request.is_locked else series_of(root, spec)
    inputs = build_inputs(spec, series, root.template, creation_time(spec), request.format)
    if request.is_locked:
        if drifts := find_drift(lock, inputs, bases):
            raise drift_error(drifts, request.name)
    elif changed := unversioned_changes(lock, inputs):
        warn(f"{', '.join(changed)}: changed since the lock, and the overlay's version is still the same")
    source = f"{spec.upstream.model_dump_json()} {series.digest} {spec.patches.drop}"
    patched = shared.once(
        f"patched {source}",
        lambda: patch_upstream(root, spec, request.cache, request.sources, say=say, anew=request.anew),
    )
    own = spec.model_copy(update={"upstream": patched.spec.upstream})
    patched = replace(patched, spec=own, format=request.format)
    # Layers that nobody has read are read by the first that needs them.
    is_known = all(base.manifest.digest in lock.bases for base in bases)
    with nullcontext() if is_known else shared.alone(f"layers {place}"):
        plans = plan_images(patched, bases, lock=lock, cache=request.cache, progress=progress)
    return Planned(patched, tuple(plans), inputs)


def patch_upstream(
    root: Root, spec: Spec, cache: Path, sources: Sources, *, say: Say, anew: bool = False
) -> Patched:
    """Apply an overlay's series to its pinned source, see that it is still Python, and ask the probes.

    Args:
        root: where patches and probes are.
        spec: the overlay.
        cache: the user's cache.
        sources: where the pinned source comes from.
        say: told what takes time.
        anew: whether git, the probes and the checker are asked although what they said is kept.

    Raises:
        InvalidInput, PatchConflict, ProbeFailed, Unavailable: as each step says.
    """
    series = series_of(root, spec)
    upstream = resolve_upstream(
        spec.upstream, cache, source=sources.kind, url=sources.url, wheel_file=sources.wheel, progress=say
    )
    spec = spec.model_copy(update={"upstream": peeled(spec.upstream, upstream)})
    store = GitStore.create(cache / "series.git")
    applied = apply_series(
        series, upstream.files(series.paths), store, drop=spec.patches.drop, overlay=spec.name, anew=anew
    )
    pristine = pristine_tree(upstream)
    checker = Checker(None if anew else cache)
    notes = check_series(applied, pristine, checker)
    checker.save()
    patched = patched_tree(pristine, applied)
    see = f"overlay probe {spec.upstream.release} overlay:{spec.name}"
    remembered = None if anew else cache / "probes"
    probes = probe_series(series.names, root.probes, pristine, patched, remembered=remembered, see=see)
    return Patched(spec, upstream, applied, probes, root.template, notes)


def series_of(root: Root, spec: Spec) -> Series:
    """The patches that a spec takes, in their order.

    Raises:
        InvalidInput: there is none, or one that would change nothing in an image, or as
            :func:`builder.patch.series.read_series` says.
    """
    series = chosen_series(root.patches, spec.patches)
    if not series.patches:
        raise InvalidInput(
            "the overlay takes no patch: there is nothing to build",
            where=f"overlays/{spec.name}.yaml: patches",
            expected="at least one patch of the series",
            found=f"patches/{series.name}/series, less what only and except leave out"
            + "".join(f"; {one.patch.name} {one.reason}" for one in series.skipped),
        )
    check_reaches(series.patches, spec.base.roots)
    return series


def _locked_series(root: Root, spec: Spec, lock: Lock) -> Series:
    """The patches of a locked build: one that cannot be read is first of all not the one that was locked.

    Raises:
        NotReproducible: files differ from the lock, and the series cannot be read.
        InvalidInput: as :func:`series_of` says.
    """
    try:
        return series_of(root, spec)
    except InvalidInput as error:
        check_locked_patches(root, spec, lock, error)
        raise


def check_locked_patches(root: Root, spec: Spec, lock: Lock, error: InvalidInput) -> None:
    """Where an overlay cannot be read: are its patch files, by their bytes, those that were locked?

    Args:
        root, spec: the overlay.
        lock: its lock.
        error: why it cannot be read.

    Raises:
        NotReproducible: they are others; from ``error``.
    """
    if drifts := damaged_patches(lock, root.patches / spec.patches.series):
        raise drift_error(drifts, spec.name) from error


def choose_bases(
    spec: Spec,
    locations: Sequence[Reference | LayoutReference],
    network: Network,
    platforms: Sequence[Platform],
) -> list[Base]:
    """The platform images of a base: a few small requests, before anything large is fetched.

    Args:
        spec: the overlay.
        locations: the base with a digest, or each platform's (see :func:`builder.base.image.base_locations`).
        network: the registries.
        platforms: what ``--platform`` asks for.

    Raises:
        ImageMismatch, UsageError, Unavailable: see :func:`builder.base.image.resolve_bases`.
    """
    from builder.oci.registry.location import open_source

    if len(locations) == 1:
        return resolve_bases(locations[0], open_source(locations[0], network), spec.base, platforms)
    return [
        base
        for location in locations
        for base in resolve_bases(location, open_source(location, network), spec.base, [])
        if not platforms or base.platform in platforms
    ]


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
    known = BaseFiles.from_json(entry) if entry is not None else None
    before, series = patched.applied.before, patched.applied.series
    requirements = requirements_of(series.patches, patched.spec.requires)
    if known is not None and (wrong_files(known, before) or unmet(requirements, known.installed)):
        known = None  # a base is refused by what its own layers say, not by what a lock says of it
    settings = expected_settings(patched.spec, patched.applied, base, patched.template)
    facts = look_up_base_files(
        base,
        list(before),
        settings=settings,
        known=known,
        cache=cache,
        roots=patched.spec.base.roots,
        beside=[MANIFEST_PATH],
        demanded={one.name for one in requirements},
        progress=progress,
    )
    check_pre_images(base, facts, before, patched.applied.after, cache=cache, progress=progress)
    check_installed(requirements, facts.installed, where=base.reference)
    return make_plan(
        patched.spec,
        patched.applied,
        base,
        facts,
        template=patched.template,
        probes=patched.probes,
        requirements=requirements,
        settings=settings,
        created=creation_time(patched.spec),
        format=patched.format,
    )


def creation_time(spec: Spec) -> int:
    """``SOURCE_DATE_EPOCH``, else midnight UTC of the spec's date; seconds since 1970.

    Raises:
        InvalidInput: the variable is not a number of seconds.
    """
    said = os.environ.get("SOURCE_DATE_EPOCH")
    if said is None:
        return int(datetime.datetime.combine(spec.date, datetime.time(), datetime.UTC).timestamp())
    if not said.isascii() or not said.isdigit() or len(said) > 11:
        raise InvalidInput(
            "SOURCE_DATE_EPOCH is not a time",
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


def finish(planned: Planned, built: Built, *, documents: bool, key: SigningKey | None) -> BuildResult:
    """A build as what is delivered, printed and kept.

    Args:
        planned: what was planned.
        built: what was baked of it.
        documents: whether attestations are made.
        key: signs them; None leaves them unsigned.
    """
    patched = planned.patched
    images = tuple(
        ImageResult(
            baked.plan.base.location.with_digest(baked.plan.base.manifest.digest),
            baked.image,
            baked.layer.data,
            baked.plan.facts.as_json(),
            image_record(baked),
            documents_of(baked.plan, baked.image.manifest.digest, patched, key) if documents else (),
        )
        for baked in built.images
    )
    return BuildResult(
        report_of(planned, built),
        images,
        built.index,
        tag_values(patched.spec, patched.applied.series.digest),
        engine_name(patched.spec),
        planned.inputs,
    )


def report_of(planned: Planned, built: Built | None) -> Report:
    """What is said of a build; of one that a Docker Engine bakes, or none, what was planned."""
    patched = planned.patched
    notes = [*patched.notes, *hardware_notes(patched.applied.series, patched.spec.hardware)]
    images = []
    baked = {image.plan.base.manifest.digest: image for image in built.images} if built else {}
    for plan in planned.plans:
        facts: dict[str, Any] = {"platform": str(plan.base.platform), "base": plan.base.manifest.digest}
        if image := baked.get(plan.base.manifest.digest):
            layer = image.layer.descriptor
            facts["digest"] = image.image.manifest.digest
            facts["layer"] = {"digest": layer.digest, "size": layer.size}
        facts["dockerfile"] = plan.dockerfile
        facts["warnings"] = [*plan.facts.warnings, *plan.manifest.base.notes, *notes]
        facts["manifest"] = plan.manifest.model_dump(mode="json")
        images.append(facts)
    rows = [
        (report.patch.name, report.patch.status.word, patched.probes[report.patch.name], _applied(report))
        for report in patched.applied.reports
    ]
    rows += [
        (one.patch.name, one.patch.status.word, "-", one.reason) for one in patched.applied.series.skipped
    ]
    return Report(patched.spec.name, patched.spec.version, images, rows)


def hardware_notes(series: Series, hardware: Sequence[str]) -> list[str]:
    """The patches that were not written for all of an overlay's hardware, in words."""
    return [
        f"patch {patch.name} was written for {' '.join(patch.hardware)}, not for {' '.join(others)}"
        for patch in series.patches
        if patch.hardware and (others := sorted(set(hardware) - set(patch.hardware)))
    ]


def documents_of(plan: Plan, digest: str, patched: Patched, key: SigningKey | None) -> tuple[Document, ...]:
    """The attestations of an image (see :func:`builder.record.documents.make_documents`)."""
    from builder.record.documents import make_documents

    patches = {patch.name: patch.data for patch in patched.applied.series.patches}
    return make_documents(plan.manifest, digest, created=plan.created, patches=patches, key=key)


def _applied(report: PatchReport) -> str:
    """What a patch did, in words."""
    hunks = sum(len(change.hunks) for change in report.files)
    text = f"{counted(hunks, 'hunk')} in {counted(len(report.files), 'file')}"
    text += f", {report.offsets} at an offset" if report.offsets else ""
    return text + (f", {counted(len(report.dropped), 'file')} dropped by rule" if report.dropped else "")


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
