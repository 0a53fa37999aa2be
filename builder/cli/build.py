"""``overlay build``"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from builder.apply import PatchReport
from builder.bake import Plan
from builder.base import base_location
from builder.build import (
    DEFAULT_TAG,
    Built,
    Patched,
    Sources,
    bake_images,
    choose_bases,
    default_tag,
    locked,
    patch_upstream,
    plan_images,
    store_images,
)
from builder.cli.options import lock_option, name_argument, root_option, source_options
from builder.cli.output import Progress, json_option, paint, print_json, print_table, warn
from builder.errors import UsageError
from builder.image.model import Platform
from builder.image.reference import LayoutReference, Reference, parse_location
from builder.lock import read_lock, write_lock
from builder.pinning import pinned
from builder.root import cache_path, find_root
from builder.spec import read_spec

_EXAMPLES = """\b
Examples:
  overlay build glm53-flash-gb10 --dry-run
  overlay build glm53-flash-gb10 --platform linux/arm64 --push registry.example/sglang
  overlay build glm53-flash-gb10 --base sha256:06e4… --output oci:image
  overlay build glm53-flash-gb10 --base oci:base@sha256:ab12… --output oci:image --complete
"""


@click.command("build", epilog=_EXAMPLES)
@name_argument
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
    from builder.image.layout import Layout, SparseLayout
    from builder.image.location import open_sink
    from builder.image.registry import Network

    targets = _targets(push, output, dry_run)
    home = find_root(root)
    cache = cache_path()
    progress = Progress()
    try:
        spec = read_spec(home.spec_path(name))
        written = lock_file or home.lock_path(name)
        lock = read_lock([lock_file] if lock_file else home.locks(name))
        location = base_location(pinned(base_text, spec.base, lock), spec.base)
        with Network(warn=warn) as network:
            bases = choose_bases(spec, location, network, [Platform.parse(text) for text in platforms])
            patched = patch_upstream(home, spec, cache, Sources(source, upstream_url, wheel), say=progress)
            plans = plan_images(patched, bases, lock=lock, cache=cache, progress=progress.transfer)
            built = bake_images(plans)
            references = []
            if not dry_run:
                for target in targets:
                    tag = target.tag or default_tag(tag_template, patched)
                    sink = open_sink(target, network, layout=Layout if complete else SparseLayout)
                    progress(f"writing to {sink.name}")
                    store_images(built, sink, tag=tag, progress=progress.transfer)
                    references.append(f"{target.name}:{tag}@{built.digest}")
                shared = [text for text in references if not text.startswith("oci:")]
                write_lock(written, locked(lock, plans, built, shared))
    finally:
        progress.close()
    for plan in plans:
        for text in plan.facts.warnings:
            warn(text)
    if as_json:
        print_json(_facts(patched, plans, built, references, None if dry_run else written))
        return
    if dry_run:
        _print_dry_run(plans)
    _print_patches(patched)
    _print_result(built, references, None if dry_run else written)


def _targets(push: str | None, output: str | None, dry_run: bool) -> list[Reference | LayoutReference]:
    """Where the image goes; at least one place, unless nothing is written."""
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
    if not targets and not dry_run:
        raise UsageError(
            "the image has nowhere to go",
            hint="--push REF, --output oci:DIR, or --dry-run to see what would be built",
        )
    return targets


def _facts(
    patched: Patched, plans: list[Plan], built: Built, references: list[str], lock: Path | None
) -> dict[str, Any]:
    return {
        "name": patched.spec.name,
        "version": patched.spec.version,
        "digest": built.digest,
        "references": references,
        "lock": None if lock is None else str(lock),
        "images": [
            {
                "platform": str(baked.plan.base.platform),
                "digest": baked.image.manifest.digest,
                "base": baked.plan.base.manifest.digest,
                "layer": {"digest": baked.layer.descriptor.digest, "size": baked.layer.descriptor.size},
                "dockerfile": baked.plan.dockerfile,
                "warnings": list(baked.plan.facts.warnings),
                "manifest": baked.plan.manifest.model_dump(mode="json"),
            }
            for baked in built.images
        ],
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


def _print_result(built: Built, references: list[str], lock: Path | None) -> None:
    click.echo()
    for baked in built.images:
        base = baked.plan.base
        click.echo(f"base      {base.name}@{base.manifest.digest} ({base.platform})")
        click.echo(f"layer     {baked.layer.descriptor.digest}, {baked.layer.descriptor.size:,} bytes")
        if built.index:
            click.echo(f"image     {baked.image.manifest.digest} ({base.platform})")
    click.echo(f"digest    {paint(built.digest, 'bold')}")
    for reference in references:
        click.echo(f"written   {reference}")
    if lock:
        click.echo(f"lock      {lock}")
