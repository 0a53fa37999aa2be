"""``overlay build``"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.apply import PatchReport
from builder.bake import Plan
from builder.base import Base, base_location
from builder.build import (
    DEFAULT_TAG,
    Built,
    Patched,
    Sources,
    bake_images,
    choose_bases,
    creation_time,
    locked,
    patch_upstream,
    plan_images,
    series_of,
)
from builder.cli.build_all import OneOrAll
from builder.cli.options import lock_option, name_argument, root_option, source_options
from builder.cli.output import Progress, json_option, paint, print_json, print_table, warn
from builder.deliver import Delivered, Delivery, check_engine_delivery, deliver, deliver_from_engine
from builder.drift import build_inputs, drift_error, find_drift, unversioned_changes
from builder.errors import UsageError
from builder.image.model import Platform
from builder.image.reference import LayoutReference, Reference, parse_location
from builder.lock import Lock, check_writable, read_lock, update_lock
from builder.pinning import pinned
from builder.root import Root, cache_path, find_root
from builder.spec import read_spec

if TYPE_CHECKING:
    from builder.image.registry import Network

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
    from builder.image.registry import Network

    targets = _targets(push, output)
    writes = not dry_run and bool(targets or load or engine == "docker")
    _check_usage(engine, writes=writes, dry_run=dry_run, check=check, several=len(platforms) > 1)
    key = _read_key(sign_key)
    delivery = Delivery(tuple(targets), complete, load, tag_template, not no_attach, attest, key)
    if engine == "docker":
        check_engine_delivery(delivery)
    home = find_root(root)
    cache = cache_path()
    progress = Progress()
    built: Built | None = None
    delivered: Delivered | None = None
    try:
        spec = read_spec(home.spec_path(name))
        locks = _locks(home, name, lock_file, is_written=writes and not is_locked)
        lock = read_lock(locks)
        location = base_location(pinned(base_text, spec.base, lock), spec.base)
        with Network(warn=warn) as registries:
            bases = choose_bases(spec, location, registries, [Platform.parse(text) for text in platforms])
            # Before the series is applied: a patch that changed is drift, whether it still applies or not.
            inputs = build_inputs(spec, series_of(home, spec), home.template, creation_time(spec))
            _check_drift(lock, inputs, bases, name, is_locked)
            sources = Sources(source, upstream_url, wheel)
            patched = patch_upstream(home, spec, cache, sources, say=progress)
            plans = plan_images(patched, bases, lock=lock, cache=cache, progress=progress.transfer)

            def build_again() -> Built:
                """The whole of it once more, from the files on, and believing nothing of the lock's facts."""
                once_more = patch_upstream(
                    home, read_spec(home.spec_path(name)), cache, sources, say=progress
                )
                plans = plan_images(once_more, bases, lock=Lock(), cache=cache, progress=progress.transfer)
                return bake_images(plans)

            if engine == "oci":
                built = bake_images(plans)
                if check or is_locked:
                    _check_same(built, lock, build_again if check else None)
                if writes:
                    delivered = deliver(
                        built, delivery, patched, registries, say=progress, progress=progress.transfer
                    )
            elif writes:
                delivered = _build_in_engine(plans, network, delivery, patched, registries, progress)
        if delivered is not None and not is_locked:
            shared = delivered.shared
            update_lock(locks, lambda now: locked(now, plans, built, shared, inputs))
    finally:
        progress.close()
    for plan in plans:
        for text in plan.facts.warnings:
            warn(text)
    written = locks[0] if delivered is not None and not is_locked else None
    if as_json:
        print_json(_facts(patched, plans, built, delivered, written))
        return
    if dry_run:
        _print_dry_run(plans)
    _print_patches(patched)
    _print_result(plans, built, delivered, written)


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


def _check_usage(engine: str, *, writes: bool, dry_run: bool, check: bool, several: bool) -> None:
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
    if engine == "docker" and several:
        raise UsageError(
            "a Docker Engine bakes one platform at a time", hint="build once for each --platform"
        )


def _read_key(path: Path | None) -> Any:
    if path is None:
        return None
    from builder.attest.signature import read_signing_key

    return read_signing_key(path)


def _check_drift(lock: Lock, inputs: dict[str, Any], bases: list[Base], name: str, is_locked: bool) -> None:
    """With ``--locked`` every drift is an error; without, a patch that changed under its version is told."""
    if is_locked:
        if drifts := find_drift(lock, inputs, bases):
            raise drift_error(drifts, name)
    elif changed := unversioned_changes(lock, inputs):
        warn(f"{', '.join(changed)}: changed since the lock, and the overlay's version is still the same")


def _check_same(built: Built, lock: Lock, again: Callable[[], Built] | None) -> None:
    """Compare with a second build, where one is asked for, and with what the lock records."""
    from builder.reproduce import compare_builds, compare_with_lock, reproduction_error

    if again is not None and (differences := compare_builds(built, again())):
        raise reproduction_error(differences, "two builds of the same inputs differ")
    if differences := compare_with_lock(built, lock):
        raise reproduction_error(differences, "the build is not the one that the lock records")


def _build_in_engine(
    plans: list[Plan],
    network: str,
    delivery: Delivery,
    patched: Patched,
    registries: Network,
    progress: Progress,
) -> Delivered:
    from builder.engine.bake import bake_in_engine
    from builder.engine.connection import connect

    if len(plans) != 1:
        raise UsageError("a Docker Engine bakes one platform at a time", hint="choose one with --platform")
    with connect() as engine:
        images = [bake_in_engine(engine, plan, network, progress) for plan in plans]
        return deliver_from_engine(engine, images, delivery, patched, registries, say=progress)


def _facts(
    patched: Patched, plans: list[Plan], built: Built | None, delivered: Delivered | None, lock: Path | None
) -> dict[str, Any]:
    baked = {str(image.plan.base.platform): image for image in built.images} if built else {}
    images = []
    for plan in plans:
        facts: dict[str, Any] = {"platform": str(plan.base.platform), "base": plan.base.manifest.digest}
        if image := baked.get(str(plan.base.platform)):
            layer = image.layer.descriptor
            facts["digest"] = image.image.manifest.digest
            facts["layer"] = {"digest": layer.digest, "size": layer.size}
        facts["dockerfile"] = plan.dockerfile
        facts["warnings"] = list(plan.facts.warnings)
        facts["manifest"] = plan.manifest.model_dump(mode="json")
        images.append(facts)
    return {
        "name": patched.spec.name,
        "version": patched.spec.version,
        "digest": built.digest if built else delivered.digest if delivered else None,
        "references": list(delivered.references) if delivered else [],
        "loaded": delivered.loaded if delivered else None,
        "attestations": [str(path) for path in delivered.documents] if delivered else [],
        "lock": None if lock is None else str(lock),
        "images": images,
    }


def _print_dry_run(plans: list[Plan]) -> None:
    for plan in plans:
        click.echo(paint(f"# Dockerfile for {plan.base.platform}", "dim"))
        click.echo(plan.dockerfile)
        print_table(
            ("MODE", "OWNER", "SIZE", "FILE"),
            [(f"{f.mode:04o}", f"{f.uid}:{f.gid}", str(len(f.data)), "/" + f.image_path) for f in plan.files]
            + [("-", "-", "-", f"/{path} (removed)") for path in plan.removed],
        )
        click.echo()


def _print_patches(patched: Patched) -> None:
    rows = []
    for report in patched.applied.reports:
        probe = patched.probes[report.patch.name].replace("->", " → ")
        rows.append((report.patch.name, report.patch.status.word, probe, _applied(report)))
    print_table(("PATCH", "STATUS", "PROBE", "APPLIED"), rows)


def _applied(report: PatchReport) -> str:
    """What a patch did, in words."""
    hunks = sum(len(change.hunks) for change in report.files)
    text = f"{_count(hunks, 'hunk')} in {_count(len(report.files), 'file')}"
    text += f", {report.offsets} at an offset" if report.offsets else ""
    return text + (f", {_count(len(report.dropped), 'file')} dropped by rule" if report.dropped else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _print_result(
    plans: list[Plan], built: Built | None, delivered: Delivered | None, lock: Path | None
) -> None:
    click.echo()
    for plan in plans:
        click.echo(f"base      {plan.base.name}@{plan.base.manifest.digest} ({plan.base.platform})")
    for baked in built.images if built else ():
        click.echo(f"layer     {baked.layer.descriptor.digest}, {baked.layer.descriptor.size:,} bytes")
        if built and built.index:
            click.echo(f"image     {baked.image.manifest.digest} ({baked.plan.base.platform})")
    if built or delivered:
        digest = built.digest if built else delivered.digest if delivered else ""
        click.echo(f"digest    {paint(digest, 'bold')}")
    if delivered:
        for label, values in (("written", delivered.references), ("attested", delivered.documents)):
            for value in values:
                click.echo(f"{label:<10}{value}")
        if delivered.loaded:
            click.echo(f"loaded    {delivered.loaded}")
    if lock:
        click.echo(f"lock      {lock}")
