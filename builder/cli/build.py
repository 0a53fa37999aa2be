"""``overlay build``"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.build.result import Finished, Report, locked, pushed_before
from builder.build.reuse import Asked, keep, recall, watch
from builder.cli.options import (
    format_option,
    lock_option,
    name_argument,
    root_option,
    sandbox_option,
    source_options,
)
from builder.cli.output import Progress, json_option, paint, print_json, print_line, print_table, warn
from builder.errors import UsageError
from builder.oci.model import Format, Platform
from builder.oci.reference import LayoutReference, Reference, parse_location
from builder.project.lock import Lock, check_writable, read_lock, update_lock
from builder.project.project import Root, cache_path, find_root
from builder.publish.push import (
    DEFAULT_TAG,
    Delivered,
    Delivery,
    check_engine_delivery,
    deliver,
    deliver_from_engine,
)

# The steps of a build are imported where they are taken: what was built before needs none.
if TYPE_CHECKING:
    from builder.build.pipeline import Built, Planned
    from builder.build.plan import Plan
    from builder.oci.registry.client import Network

_EXAMPLES = """\b
Examples:
  overlay build glm53-flash-gb10 --dry-run
  overlay build glm53-flash-gb10 --platform linux/arm64 --push registry.example/sglang
  overlay build glm53-flash-gb10 --base sha256:06e4… --output oci:image
  overlay build glm53-flash-gb10 --base oci:base@sha256:ab12… --output oci:image --complete
  overlay build glm53-flash-gb10 --platform linux/arm64 --load
  overlay build glm53-flash-gb10 --locked --check
  overlay build --all --push registry.example/sglang
"""


class OneOrAll(click.Command):
    """``overlay build``: with ``--all``, another command, with options of its own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if "--all" not in args:
            return super().make_context(info_name, args, parent, **extra)
        from builder.cli.build_all import command as build_all

        rest = [word for word in args if word != "--all"]
        return build_all.make_context(f"{info_name} --all", rest, parent, **extra)


@click.command("build", cls=OneOrAll, epilog=_EXAMPLES)
@name_argument
@click.option(
    "--all",
    is_flag=True,
    expose_value=False,
    help="Build every overlay, or several; has options of its own: overlay build --all --help.",
)
@click.option(
    "--base", "base_text", metavar="DIGEST|REF@DIGEST", help="The base, by digest (default: the spec's pin)."
)
@click.option(
    "--platform",
    "platforms",
    multiple=True,
    metavar="OS/ARCH",
    help="Platform of the base's index; repeatable.",
)
@click.option("--push", metavar="REF", help="Push to this repository (and tag).")
@click.option(
    "--output", metavar="oci:DIR[:TAG]", help="Write to an OCI layout; its base layers stay where they are."
)
@click.option("--complete", is_flag=True, help="With --output: bring the base's layers too.")
@click.option(
    "--tag-template", default=DEFAULT_TAG, show_default=True, help="Tag for --push REF without one."
)
@click.option(
    "--engine",
    type=click.Choice(["oci", "docker"]),
    default="oci",
    show_default=True,
    help="What follows the Dockerfile: the embedded engine, or a Docker Engine (for RUN; not reproducible).",
)
@click.option(
    "--network",
    type=click.Choice(["default", "none", "host"]),
    default="default",
    show_default=True,
    help="What RUN sees of the network, with --engine docker.",
)
@format_option
@click.option("--load", is_flag=True, help="Bring the image into the Docker Engine.")
@click.option("--locked", "is_locked", is_flag=True, help="Fail if an input is not what the lock says.")
@click.option("--check", is_flag=True, help="Build twice in memory, and compare; exit 6 shows what differs.")
@click.option(
    "--attest",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the attestations here too.",
)
@click.option("--no-attach", is_flag=True, help="With --push: attach no attestations to the image.")
@click.option(
    "--sign-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Sign the attestations with this ed25519 key (PEM).",
)
@click.option("--dry-run", is_flag=True, help="Print the Dockerfile, the files and the plan; write nothing.")
@lock_option
@source_options
@root_option
@sandbox_option
@json_option
def command(
    name: str,
    base_text: str | None,
    platforms: tuple[str, ...],
    push: str | None,
    output: str | None,
    complete: bool,
    tag_template: str,
    engine: str,
    network: str,
    format: Format,
    load: bool,
    is_locked: bool,
    check: bool,
    attest: Path | None,
    no_attach: bool,
    sign_key: Path | None,
    dry_run: bool,
    lock_file: Path | None,
    source: str,
    upstream_url: str | None,
    wheel: Path | None,
    root: Path | None,
    as_json: bool,
) -> None:
    """Build an image: the base's layers untouched, one layer of patched files, the manifest.

    The base is named by digest. Every file to be patched must be, in the base, what the series was made for.
    """
    from builder.oci.registry.client import Network

    targets = _targets(push, output)
    writes = not dry_run and bool(targets or load or engine == "docker")
    _check_usage(engine, format, writes=writes, dry_run=dry_run, check=check, several=len(platforms) > 1)
    key = _read_key(sign_key)
    delivery = Delivery(tuple(targets), complete, load, tag_template, not no_attach, attest, key)
    if engine == "docker":
        check_engine_delivery(delivery)
    home = find_root(root)
    locks = _locks(home, name, lock_file, is_written=writes and not is_locked)
    job = Job(
        home=home,
        cache=cache_path(),
        lock=read_lock(locks),
        name=name,
        base=base_text,
        platforms=platforms,
        sources=(source, upstream_url, wheel),
        delivery=delivery,
        engine=engine,
        network=network,
        format=format,
        writes=writes,
        locks=() if is_locked else locks,
        is_locked=is_locked,
        check=check,
        progress=Progress(),
    )
    try:
        with Network(warn=warn) as registries:
            outcome = _recalled(job, registries) or _built(job, registries)
        if outcome.delivered and not is_locked:
            update_lock(locks, outcome.locked)
    finally:
        job.progress.close()
    for text in (*outcome.report.warnings, *(outcome.delivered.notes if outcome.delivered else ())):
        warn(text)
    written = locks[0] if outcome.delivered and not is_locked else None
    if as_json:
        print_json(_facts(outcome, written))
        return
    if dry_run:
        _print_dry_run(outcome.plans)
    _print_patches(outcome.report)
    _print_result(outcome, written)


@dataclass(frozen=True)
class Job:
    """What the command line asks for.

    Args:
        home, cache, lock: where overlays are, the user's cache, and the overlay's lock.
        name, base, platforms: of what, and on what.
        sources: kind, address and file of the pinned source (see :class:`builder.build.pipeline.Sources`).
        delivery: where it goes.
        engine, network: what bakes it, and what RUN sees of the network.
        format: which media types it gets.
        writes: whether anything is written.
        locks: the lock's files, if it is to be written.
        is_locked, check: whether drift is an error, and whether it is built twice.
        progress: says what takes time.
    """

    home: Root
    cache: Path
    lock: Lock
    name: str
    base: str | None
    platforms: tuple[str, ...]
    sources: tuple[str, str | None, Path | None]
    delivery: Delivery
    engine: str
    network: str
    format: Format
    writes: bool
    locks: Sequence[Path]
    is_locked: bool
    check: bool
    progress: Progress

    @property
    def asked(self) -> Asked | None:
        """What it is kept under; None where more is asked for than the image of these inputs."""
        is_plain = self.sources == ("auto", None, None) and self.delivery.key is None
        if not (is_plain and self.writes and self.engine == "oci") or self.is_locked or self.check:
            return None
        return Asked(self.home, self.name, self.base, self.platforms, self.format)


@dataclass(frozen=True)
class Outcome:
    """What became of it.

    Args:
        report: what is said of it.
        finished: what the embedded engine baked.
        delivered: where it went.
        plans: what it was planned by; none where it was built before.
        is_recalled: whether it was built before.
        before: the digests of what the lock recorded as built last, by platform; where they were others.
    """

    report: Report
    finished: Finished | None
    delivered: Delivered | None
    plans: Sequence[Plan] = ()
    is_recalled: bool = False
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


def _recalled(job: Job, registries: Network) -> Outcome | None:
    """Deliver what was built of the same inputs before."""
    if job.asked is None:
        return None
    finished = recall(job.asked, job.cache, job.lock, documents=job.delivery.needs_documents)
    if finished is None:
        return None
    return replace(_delivered(finished, job, registries), is_recalled=True)


def _built(job: Job, registries: Network) -> Outcome:
    """Every step, from the spec on."""
    from builder.build.pipeline import Request, Sources, bake_images, finish, plan_overlay, report_of

    platforms = [Platform.parse(text) for text in job.platforms]
    sources = Sources(*job.sources)
    request = Request(
        job.home, job.name, job.base, platforms, sources, job.cache, job.lock, job.is_locked, job.format
    )

    def plan(request: Request) -> Planned:
        return plan_overlay(request, registries, say=job.progress, warn=warn, progress=job.progress.transfer)

    def build_again() -> Built:
        """The whole of it once more, from the files on, and believing nothing of the lock's facts."""
        return bake_images(plan(replace(request, lock=Lock(pins=job.lock.pins), is_locked=False)).plans)

    watched = watch(job.asked) if job.asked else None
    planned = plan(request)
    if job.engine == "docker":
        delivered = _build_in_engine(planned, job, registries) if job.writes else None
        return Outcome(report_of(planned, None), None, delivered, planned.plans)
    built = bake_images(planned.plans)
    if job.check or job.is_locked:
        _check_same(built, job.lock, build_again if job.check else None)
    finished = finish(planned, built, documents=job.delivery.needs_documents, key=job.delivery.key)
    if not job.writes:
        return Outcome(finished.report, finished, None, planned.plans)
    outcome = _delivered(finished, job, registries)
    if watched:
        try:
            keep(watched, job.cache, job.lock, finished)
        except OSError as error:
            warn(f"the build is not kept for the next time: {error}")
    return outcome


def _delivered(finished: Finished, job: Job, registries: Network) -> Outcome:
    before = pushed_before(job.lock, finished)
    say, progress = job.progress, job.progress.transfer

    def lock(reference: str) -> None:
        """What can be pulled is in the lock, whatever becomes of the next target."""
        if job.locks:
            update_lock(job.locks, lambda now: locked(now, finished, (reference,)))

    done = deliver(
        finished, job.delivery, registries, before=before, say=say, progress=progress, on_named=lock
    )
    changed = {
        image["platform"]: str(old)
        for image in finished.report.images
        if (old := job.lock.images.get(image["platform"], {}).get("digest")) not in (None, image["digest"])
    }
    return Outcome(finished.report, finished, done, before=changed)


def _locks(home: Root, name: str, named: Path | None, *, is_written: bool) -> list[Path]:
    """Where the lock is read from. The first is where it is written, which must be possible if it will be."""
    places = home.locks(name) if named is None else [named]
    if is_written:
        check_writable(places[0])
    return places


def _targets(push: str | None, output: str | None) -> list[Reference | LayoutReference]:
    """The repository and the layout that the image goes to."""
    targets = [parse_location(text) for text in (push, output) if text]
    if push and isinstance(targets[0], LayoutReference):
        raise UsageError("--push takes a registry's repository", found=push, hint=f"--output {push}")
    if output and not isinstance(targets[-1], LayoutReference):
        raise UsageError(
            "--output takes oci:DIR", found=output, hint=f"--push {output}, or --output oci:{output}"
        )
    for target in targets:
        if target.digest:
            raise UsageError(
                "the digest is what a build finds out", found=str(target), hint="name a tag, or nothing"
            )
    return targets


def _check_usage(
    engine: str, format: Format, *, writes: bool, dry_run: bool, check: bool, several: bool
) -> None:
    if not (writes or dry_run or check):
        raise UsageError(
            "the image has nowhere to go",
            hint="--push REF, --output oci:DIR, --load, or --dry-run to see what would be built",
        )
    if engine == "docker" and check:
        raise UsageError(
            "a Docker Engine stamps its own times into what it bakes: no two builds are the same",
            hint="--check goes with --engine oci",
        )
    if engine == "docker" and format != "base":
        raise UsageError(
            "a Docker Engine chooses the media types itself", hint="--format goes with --engine oci"
        )
    if engine == "docker" and several:
        raise UsageError(
            "a Docker Engine bakes one platform at a time", hint="build once for each --platform"
        )


def _read_key(path: Path | None) -> Any:
    if path is None:
        return None
    from builder.record.signature import read_signing_key

    return read_signing_key(path)


def _check_same(built: Built, lock: Lock, again: Callable[[], Built] | None) -> None:
    """Compare with a second build, where one is asked for, and with what the lock records."""
    from builder.build.check import compare_builds, compare_with_lock, reproduction_error

    if again is not None and (differences := compare_builds(built, again())):
        raise reproduction_error(differences, "two builds of the same inputs differ")
    if differences := compare_with_lock(built, lock):
        raise reproduction_error(differences, "the build is not the one that the lock records")


def _build_in_engine(planned: Planned, job: Job, registries: Network) -> Delivered:
    from builder.publish.docker_engine.bake import bake_in_engine
    from builder.publish.docker_engine.connection import connect

    if len(planned.plans) != 1:
        raise UsageError("a Docker Engine bakes one platform at a time", hint="choose one with --platform")
    with connect() as engine:
        images = [bake_in_engine(engine, plan, job.network, job.progress) for plan in planned.plans]
        return deliver_from_engine(
            engine, images, job.delivery, planned.patched, registries, say=job.progress
        )


def _facts(outcome: Outcome, lock: Path | None) -> dict[str, Any]:
    report, delivered = outcome.report, outcome.delivered
    return {
        "name": report.name,
        "version": report.version,
        "digest": outcome.digest,
        "references": list(delivered.references) if delivered else [],
        "loaded": delivered.loaded if delivered else None,
        "loaded_id": delivered.loaded_id if delivered else None,
        "attestations": [str(path) for path in delivered.documents] if delivered else [],
        "lock": None if lock is None else str(lock),
        "recalled": outcome.is_recalled,
        "before": outcome.before,
        "moved": delivered.moved if delivered else {},
        "notes": list(delivered.notes) if delivered else [],
        "images": report.images,
    }


def _print_dry_run(plans: Sequence[Plan]) -> None:
    for plan in plans:
        print_line(paint(f"# Dockerfile for {plan.base.platform}", "dim"))
        print_line(plan.dockerfile)
        print_table(
            ("MODE", "OWNER", "SIZE", "FILE"),
            [(f"{f.mode:04o}", f"{f.uid}:{f.gid}", str(len(f.data)), "/" + f.image_path) for f in plan.files]
            + [("-", "-", "-", f"/{path} (removed)") for path in plan.removed],
        )
        print_line()


def _print_patches(report: Report) -> None:
    rows = [
        (name, status, probe.replace("->", " → "), applied) for name, status, probe, applied in report.patches
    ]
    print_table(("PATCH", "STATUS", "PROBE", "APPLIED"), rows)


def _print_result(outcome: Outcome, lock: Path | None) -> None:
    print_line()
    finished = outcome.finished
    for image in outcome.report.images:
        print_line(f"base      {image['manifest']['base']['ref']}@{image['base']} ({image['platform']})")
    for image in outcome.report.images if finished else ():
        print_line(f"layer     {image['layer']['digest']}, {image['layer']['size']:,} bytes")
        if finished and finished.index:
            print_line(f"image     {image['digest']} ({image['platform']})")
    for platform, digest in outcome.before.items():
        print_line(f"before    {digest} ({platform}), says the lock")
    if outcome.is_recalled:
        print_line("built     before, of the same inputs; --check builds it again")
    if outcome.digest:
        print_line(f"digest    {paint(outcome.digest, 'bold')}")
    if outcome.delivered:
        _print_delivered(outcome.delivered)
    if lock:
        print_line(f"lock      {lock}")


def _print_delivered(delivered: Delivered) -> None:
    for label, values in (("written", delivered.references), ("attested", delivered.documents)):
        for value in values:
            print_line(f"{label:<10}{value}")
    for name, digest in delivered.moved.items():
        print_line(f"moved     {name}, which was {digest}")
    if delivered.loaded:
        is_own = delivered.loaded_id not in (None, delivered.digest)
        called = f", which the engine calls {delivered.loaded_id}" if is_own else ""
        print_line(f"loaded    {delivered.loaded}{called}")
