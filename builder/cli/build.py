"""``overlay build``"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.build.request import Request, Sources
from builder.build.result import Report
from builder.cli.options import (
    format_option,
    lock_option,
    name_argument,
    read_key,
    root_option,
    sandbox_option,
    sign_key_option,
    source_options,
)
from builder.cli.output import Progress, json_option, paint, print_json, print_line, print_table, warn
from builder.errors import UsageError
from builder.oci.model import Format, Platform
from builder.oci.reference import LayoutReference, Reference, parse_location
from builder.project.lock import check_writable, read_lock
from builder.project.project import Root, cache_path, find_root
from builder.publish.build import Callbacks, Job, Outcome, build
from builder.publish.push import DEFAULT_TAG, Delivered, Delivery, check_engine_delivery

if TYPE_CHECKING:
    from builder.build.plan import Plan

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
@sign_key_option
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
    key = read_key(sign_key)
    delivery = Delivery(tuple(targets), complete, load, tag_template, not no_attach, attest, key)
    if engine == "docker":
        check_engine_delivery(delivery)
    project = find_root(root)
    locks = _locks(project, name, lock_file, is_written=writes and not is_locked)
    progress = Progress()
    request = Request(
        project,
        name,
        base_text,
        [Platform.parse(text) for text in platforms],
        Sources(source, upstream_url, wheel),
        cache_path(),
        read_lock(locks),
        is_locked,
        format,
    )
    job = Job(request, delivery, writes, () if is_locked else locks, check, engine, network)
    try:
        with Network(warn=warn) as registries:
            outcome = build(job, registries, Callbacks(progress, warn, progress.transfer))
    finally:
        progress.close()
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


def _locks(project: Root, name: str, named: Path | None, *, is_written: bool) -> list[Path]:
    """Where the lock is read from. The first is where it is written, which must be possible if it will be."""
    places = project.locks(name) if named is None else [named]
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
        "recalled": outcome.is_cached,
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
    if outcome.is_cached:
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
