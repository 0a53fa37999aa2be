"""Many overlays at once: one network, one cache, several threads; one that fails does not stop the others.

What a registry holds already is not built again (:mod:`builder.publish.matrix`), so a run that was killed
is carried on by running it again. An overlay's platforms belong to one index and are one piece of work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock as Mutex
from typing import TYPE_CHECKING, Any, Literal

from builder.base.image import Base
from builder.build.drift import build_inputs
from builder.build.pipeline import (
    Patched,
    Planned,
    Sources,
    bake_images,
    choose_bases,
    creation_time,
    finish,
    patch_upstream,
    plan_images,
)
from builder.build.plan import Plan
from builder.build.result import Finished, locked
from builder.errors import OverlayError
from builder.oci.model import Format, Platform
from builder.oci.registry.location import open_source
from builder.project.lock import Lock, read_lock, update_lock
from builder.project.project import Root
from builder.publish.matrix import Row, Skipped, missing_platforms, read_row
from builder.publish.push import Delivered, Delivery, deliver

if TYPE_CHECKING:
    from builder.oci.registry.client import Network, Repository

Say = Callable[[str], None]


@dataclass(frozen=True)
class Workshop:
    """What all builds of a run share.

    Args:
        root, cache: where overlays are, and the user's cache.
        network: the registries.
        sources: where pinned sources come from.
        delivery: where images go.
        platforms: which; none means those of each spec.
        held: the repository whose images need not be built again; None to build everything.
        say: hears of each overlay that is done.
        format: which media types images get.
    """

    root: Root
    cache: Path
    network: Network
    sources: Sources
    delivery: Delivery
    platforms: tuple[Platform, ...]
    held: Repository | None
    say: Say
    format: Format = "base"
    _mutexes: dict[str, Mutex] = field(default_factory=dict, repr=False)
    _guard: Mutex = field(default_factory=Mutex, repr=False)
    _made: dict[str, Any] = field(default_factory=dict, repr=False)

    def alone(self, what: str) -> AbstractContextManager[object]:
        """Work whose second doer finds it done: held for one thread at a time."""
        with self._guard:
            return self._mutexes.setdefault(what, Mutex())

    def bases(self, row: Row) -> list[Base]:
        """The overlay's bases; of overlays with the same, the first asks the registry."""
        key = f"{row.base} {' '.join(map(str, row.platforms))}"
        with self.alone(key):
            if key not in self._made:
                self._made[key] = choose_bases(row.spec, row.locations, self.network, row.platforms)
            bases: list[Base] = self._made[key]
            return bases

    def patched(self, row: Row) -> Patched:
        """The overlay's patched source; of overlays with one pin and series, the first applies and probes."""
        spec = row.spec
        key = f"{spec.upstream.model_dump_json()} {row.series.digest} {spec.patches.drop}"
        with self.alone(key):
            if key not in self._made:
                self._made[key] = patch_upstream(self.root, spec, self.cache, self.sources, say=_silent)
            first: Patched = self._made[key]
            return replace(first, spec=spec, format=self.format)


@dataclass(frozen=True)
class Outcome:
    """What became of one overlay.

    Args:
        name: of the overlay.
        state: ``built``, ``there`` (the registry holds it), ``skipped`` (it cannot be built as it stands) or
            ``failed``.
        platforms: those that it is for.
        finished, delivered: the images and where they went.
        reason: why it was skipped.
        error: why it failed.
        warnings: what a person should know of its bases.
    """

    name: str
    state: Literal["built", "there", "skipped", "failed"]
    platforms: tuple[Platform, ...] = ()
    finished: Finished | None = None
    delivered: Delivered | None = None
    reason: str = ""
    error: OverlayError | None = None
    warnings: tuple[str, ...] = ()


def build_many(names: Sequence[str], workshop: Workshop, jobs: int) -> list[Outcome]:
    """Build several overlays, ``jobs`` at a time; an outcome for each, in the order of ``names``.

    What goes wrong with one is its outcome; what is no :class:`OverlayError` is a fault of this program, and
    ends the run.
    """
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="build") as pool:
        futures = [pool.submit(_build, name, workshop) for name in names]
        try:
            for future in as_completed(futures):
                outcome = future.result()
                outcomes[outcome.name] = outcome
                workshop.say(f"{len(outcomes)} of {len(names)}: {outcome.name} {outcome.state}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [outcomes[name] for name in names]


def _build(name: str, workshop: Workshop) -> Outcome:
    try:
        row = read_row(
            workshop.root,
            name,
            workshop.platforms,
            workshop.delivery.tag_template,
            partial(open_source, network=workshop.network),
            workshop.format,
        )
        if isinstance(row, Skipped):
            return Outcome(name, "skipped", reason=row.reason)
        if workshop.held is not None and not missing_platforms(row, workshop.held):
            return Outcome(name, "there", tuple(row.platforms))
        return _built(row, workshop)
    except OverlayError as error:
        return Outcome(name, "failed", error=error)


def plan_row(row: Row, workshop: Workshop) -> tuple[Patched, list[Plan], Lock]:
    """The patched source and each platform's plan, and the lock that was read.

    Raises:
        InvalidInput, PatchConflict, ProbeFailed, ImageMismatch, Unavailable: as each step of a build says.
    """
    lock = read_lock(workshop.root.locks(row.name))
    bases = workshop.bases(row)
    patched = workshop.patched(row)
    is_locked = all(lock.bases.get(base.manifest.digest) for base in bases)
    # Layers that nobody knows are read once, by the first that needs them.
    turn = nullcontext() if is_locked else workshop.alone(f"layers of {row.base}")
    with turn:
        plans = plan_images(patched, bases, lock=lock, cache=workshop.cache, progress=_quiet)
    return patched, plans, lock


def _built(row: Row, workshop: Workshop) -> Outcome:
    """The steps of ``overlay build``, with what is shared made once."""
    spec, root = row.spec, workshop.root
    patched, plans, _ = plan_row(row, workshop)
    inputs = build_inputs(spec, patched.applied.series, root.template, creation_time(spec), workshop.format)
    delivery = workshop.delivery
    finished = finish(
        Planned(patched, tuple(plans), inputs),
        bake_images(plans),
        documents=delivery.needs_documents,
        key=delivery.key,
    )

    def lock(*references: str) -> None:
        update_lock(root.locks(row.name), lambda now: locked(now, finished, references))

    delivered = deliver(finished, delivery, workshop.network, say=_silent, progress=_quiet, on_named=lock)
    lock(*delivered.shared)
    warnings = (*finished.report.warnings, *delivered.notes)
    return Outcome(row.name, "built", tuple(row.platforms), finished, delivered, warnings=warnings)


def _silent(text: str) -> None:
    """Threads at once would talk over each other: the run tells of overlays, not of their steps."""


def _quiet(text: str, total: int) -> Callable[[int], None]:
    return _ignore


def _ignore(count: int) -> None:
    return None
