"""Build an overlay and bring it to where it is to go: what ``overlay build`` does, for one and for many.

The steps of a build are imported where they are taken: what was built before needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.build.request import Request, Sources
from builder.build.result import BuildResult, Report, locked, pushed_before
from builder.build.reuse import BuildKey, look_up_build, store_build, take_snapshot
from builder.errors import UsageError
from builder.oci.model import ByteProgress
from builder.project.lock import Lock, update_lock
from builder.publish.push import Delivered, Delivery, deliver, deliver_from_engine

if TYPE_CHECKING:
    from builder.build.pipeline import Built, Planned, Shared
    from builder.build.plan import Plan
    from builder.oci.registry.client import Network

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One build.

    Args:
        request: of what.
        delivery: where it goes.
        writes: whether it goes anywhere.
        locks: the lock's files, of which the first is written; none leaves it as it is.
        check: whether it is built twice and compared.
        engine, run_network: what bakes it (``oci`` or ``docker``), and what RUN sees of the network.
    """

    request: Request
    delivery: Delivery
    writes: bool
    locks: Sequence[Path]
    check: bool = False
    engine: str = "oci"
    run_network: str = "default"

    @property
    def key(self) -> BuildKey | None:
        """What it is kept under; None where more is key for than the image of these inputs."""
        request = self.request
        is_plain = request.sources == Sources() and self.delivery.key is None
        if not (is_plain and self.writes and self.engine == "oci") or request.is_locked or self.check:
            return None
        platforms = tuple(map(str, request.platforms))
        return BuildKey(request.root, request.name, request.base, platforms, request.format)


@dataclass(frozen=True)
class Callbacks:
    """What is called while a build runs.

    Args:
        say: what takes time.
        warn: what a person should know though the work goes on.
        progress: makes a byte counter for a layer that is read or copied.
    """

    say: Say
    warn: Say
    progress: ByteProgress


@dataclass(frozen=True)
class Outcome:
    """What became of it.

    Args:
        report: what is said of it.
        finished: what the embedded engine baked.
        delivered: where it went.
        plans: what it was planned by; none where it was built before.
        is_cached: whether it was built before.
        before: the digests of what the lock recorded as built last, by platform; where they were others.
    """

    report: Report
    finished: BuildResult | None
    delivered: Delivered | None
    plans: Sequence[Plan] = ()
    is_cached: bool = False
    before: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str | None:
        made = self.finished or self.delivered
        return made.digest if made else None

    def locked(self, now: Lock) -> Lock:
        """The lock with what was verified and made; a Docker Engine's digests are its own, and left out."""
        if self.finished:
            return locked(now, self.finished, self.delivered.shared if self.delivered else ())
        verified = {plan.base.manifest.digest: plan.facts.as_json() for plan in self.plans}
        return replace(now, bases={**now.bases, **verified})


def build(job: Job, network: Network, callbacks: Callbacks, shared: Shared | None = None) -> Outcome:
    """Build and deliver, and write the lock: what was built of the same inputs before, or every step anew.

    Args:
        job: what is key for.
        network: the registries.
        callbacks: what is told of it while it runs.
        shared: what several builds of one run make once.

    Raises:
        NotReproducible: an input is not what the lock says, or two builds differ.
        UsageError, InvalidInput, PatchConflict, ProbeFailed, ImageMismatch, Unavailable: as each step says.
    """
    outcome = _recalled(job, network, callbacks) or _built(job, network, callbacks, shared)
    if outcome.delivered and job.locks:
        update_lock(job.locks, outcome.locked)
    return outcome


def _recalled(job: Job, network: Network, callbacks: Callbacks) -> Outcome | None:
    """Deliver what was built of the same inputs before."""
    if job.key is None:
        return None
    request = job.request
    finished = look_up_build(job.key, request.cache, request.lock, documents=job.delivery.needs_documents)
    if finished is None:
        return None
    return replace(_delivered(finished, job, network, callbacks), is_cached=True)


def _built(job: Job, network: Network, callbacks: Callbacks, shared: Shared | None) -> Outcome:
    """Every step, from the spec on."""
    from builder.build.pipeline import Shared, bake_images, finish, plan_overlay, report_of

    request = job.request

    def plan(request: Request, shared: Shared) -> Planned:
        return plan_overlay(
            request, network, shared, say=callbacks.say, warn=callbacks.warn, progress=callbacks.progress
        )

    def build_again() -> Built:
        """The whole of it once more, from the files on: no fact of the lock or the cache is believed."""
        again = replace(request, lock=Lock(pins=request.lock.pins), is_locked=False, anew=True)
        return bake_images(plan(again, Shared()).plans)

    snapshot = take_snapshot(job.key) if job.key else None
    planned = plan(request, shared or Shared())
    if job.engine == "docker":
        delivered = _build_in_engine(planned, job, network, callbacks.say) if job.writes else None
        return Outcome(report_of(planned, None), None, delivered, planned.plans)
    built = bake_images(planned.plans)
    if job.check or request.is_locked:
        _check_same(built, request.lock, build_again if job.check else None)
    finished = finish(planned, built, documents=job.delivery.needs_documents, key=job.delivery.key)
    if not job.writes:
        return Outcome(finished.report, finished, None, planned.plans)
    outcome = _delivered(finished, job, network, callbacks)
    if snapshot:
        try:
            store_build(snapshot, request.cache, request.lock, finished)
        except OSError as error:
            callbacks.warn(f"the build is not kept for the next time: {error}")
    return outcome


def _delivered(finished: BuildResult, job: Job, network: Network, callbacks: Callbacks) -> Outcome:
    recorded = job.request.lock
    before = pushed_before(recorded, finished)

    def lock(reference: str) -> None:
        """What can be pulled is in the lock, whatever becomes of the next target."""
        if job.locks:
            update_lock(job.locks, lambda now: locked(now, finished, (reference,)))

    done = deliver(
        finished,
        job.delivery,
        network,
        before=before,
        say=callbacks.say,
        progress=callbacks.progress,
        on_named=lock,
    )
    changed = {
        image["platform"]: str(old)
        for image in finished.report.images
        if (old := recorded.images.get(image["platform"], {}).get("digest")) not in (None, image["digest"])
    }
    return Outcome(finished.report, finished, done, before=changed)


def _check_same(built: Built, lock: Lock, again: Callable[[], Built] | None) -> None:
    """Compare with a second build, where one is key for, and with what the lock records."""
    from builder.build.check import compare_builds, compare_with_lock, reproduction_error

    if again is not None and (differences := compare_builds(built, again())):
        raise reproduction_error(differences, "two builds of the same inputs differ")
    if differences := compare_with_lock(built, lock):
        raise reproduction_error(differences, "the build is not the one that the lock records")


def _build_in_engine(planned: Planned, job: Job, network: Network, say: Say) -> Delivered:
    from builder.publish.docker_engine.bake import bake_in_engine
    from builder.publish.docker_engine.connection import connect

    if len(planned.plans) != 1:
        raise UsageError("a Docker Engine bakes one platform at a time", hint="choose one with --platform")
    with connect() as engine:
        images = [bake_in_engine(engine, plan, job.run_network, say) for plan in planned.plans]
        return deliver_from_engine(engine, images, job.delivery, planned.patched, network, say=say)
