"""Many overlays at once: one network, one cache, several threads; one that fails does not stop the others.

What a registry holds already is not built again (:mod:`builder.publish.matrix`), so a run that was killed
is carried on by running it again. An overlay's platforms belong to one index and are one piece of work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.build.pipeline import Shared, check_locked_patches
from builder.build.request import Request, Sources
from builder.errors import InvalidInput, OverlayError
from builder.oci.model import Format, Platform
from builder.oci.registry.location import open_source
from builder.project.lock import read_lock
from builder.project.project import Root
from builder.project.spec import read_spec
from builder.publish import build as one
from builder.publish.build import Callbacks, Job
from builder.publish.matrix import Row, Skipped, missing_platforms, read_row
from builder.publish.push import Delivered, Delivery

if TYPE_CHECKING:
    from builder.oci.registry.client import Network, Repository

Say = Callable[[str], None]


@dataclass(frozen=True)
class Fleet:
    """What all builds of a run have in common.

    Args:
        root, cache: where overlays are, and the user's cache.
        network: the registries.
        sources: where pinned sources come from.
        delivery: where images go; attestations as files, in a directory for each overlay.
        writes: whether they go anywhere.
        platforms: which; none means those of each spec.
        held: the repository whose images need not be built again; None to build everything.
        say: hears of each overlay that is done.
        format: which media types images get.
        is_locked, check: whether drift is an error, and whether each is built twice and compared.
    """

    root: Root
    cache: Path
    network: Network
    sources: Sources
    delivery: Delivery
    writes: bool
    platforms: tuple[Platform, ...]
    held: Repository | None
    say: Say
    format: Format = "base"
    is_locked: bool = False
    check: bool = False


@dataclass(frozen=True)
class Result:
    """What became of one overlay.

    Args:
        name: of the overlay.
        state: ``built``, ``there`` (the registry holds it), ``skipped`` (it cannot be built as it stands) or
            ``failed``.
        platforms: those that it is for.
        digest: of its image or index.
        images: the digest of each platform's image.
        delivered: where it went.
        is_cached: whether it was built before.
        reason: why it was skipped.
        error: why it failed.
        warnings: what a person should know of it.
    """

    name: str
    state: Literal["built", "there", "skipped", "failed"]
    platforms: tuple[Platform, ...] = ()
    digest: str | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    delivered: Delivered | None = None
    is_cached: bool = False
    reason: str = ""
    error: OverlayError | None = None
    warnings: tuple[str, ...] = ()


def build_many(names: Sequence[str], fleet: Fleet, jobs: int) -> list[Result]:
    """Build several overlays, ``jobs`` at a time; a result for each, in the order of ``names``.

    What goes wrong with one is its result; any exception but :class:`OverlayError` is a fault of this
    program, and ends the run.
    """
    results: dict[str, Result] = {}
    shared = Shared()
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="build") as pool:
        futures = {pool.submit(_build, name, fleet, shared) for name in names}
        try:
            for future in as_completed(futures):
                result = future.result()
                results[result.name] = result
                fleet.say(f"{len(results)} of {len(names)}: {result.name} {result.state}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[name] for name in names]


def _build(name: str, fleet: Fleet, shared: Shared) -> Result:
    warnings: list[str] = []
    try:
        row = _read(name, fleet)
        if isinstance(row, Skipped):
            return Result(name, "skipped", reason=row.reason)
        platforms = tuple(row.platforms)
        if fleet.held is not None and not missing_platforms(row, fleet.held):
            return Result(name, "there", platforms)
        callbacks = Callbacks(_silent, warnings.append, _quiet)
        outcome = one.build(_job(row, fleet), fleet.network, callbacks, shared)
    except OverlayError as error:
        return Result(name, "failed", error=error, warnings=tuple(warnings))
    delivered, report = outcome.delivered, outcome.report
    warnings += [*report.warnings, *(delivered.notes if delivered else ())]
    # Layers and attestations are let go: of a thousand overlays only this stays.
    return Result(
        name,
        "built",
        platforms,
        outcome.digest,
        {image["platform"]: image["digest"] for image in report.images},
        delivered,
        outcome.is_cached,
        warnings=tuple(warnings),
    )


def _read(name: str, fleet: Fleet) -> Row | Skipped:
    opened = partial(open_source, network=fleet.network)
    try:
        return read_row(fleet.root, name, fleet.platforms, fleet.delivery.tag_template, opened, fleet.format)
    except InvalidInput as error:
        if fleet.is_locked:
            spec = read_spec(fleet.root.spec_path(name))
            check_locked_patches(fleet.root, spec, read_lock(fleet.root.locks(name)), error)
        raise


def _job(row: Row, fleet: Fleet) -> Job:
    locks, attest = fleet.root.locks(row.name), fleet.delivery.attest
    return Job(
        Request(
            fleet.root,
            row.name,
            None,
            row.platforms,
            fleet.sources,
            fleet.cache,
            read_lock(locks),
            fleet.is_locked,
            fleet.format,
        ),
        replace(fleet.delivery, attest=attest and attest / row.name),
        fleet.writes,
        () if fleet.is_locked else locks,
        fleet.check,
    )


def _silent(text: str) -> None:
    """Threads at once would talk over each other: the run tells of overlays, not of their steps."""


def _quiet(text: str, total: int) -> Callable[[int], None]:
    return _ignore


def _ignore(count: int) -> None:
    return None
