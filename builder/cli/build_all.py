"""``overlay build --all``"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from builder.build.pipeline import Sources
from builder.cli.options import format_option, root_option, sandbox_option
from builder.cli.output import Progress, json_option, print_error, print_json, print_line, print_table, warn
from builder.errors import UsageError
from builder.oci.model import Format, Platform
from builder.oci.reference import LayoutReference, Reference, parse_location
from builder.project.project import cache_path, find_root
from builder.publish.fleet import Outcome, Workshop, build_many
from builder.publish.push import DEFAULT_TAG, Delivery

_EXAMPLES = """\b
Examples:
  overlay build --all --push registry.example/sglang
  overlay build --all --push registry.example/sglang -j 4 --json
  overlay build --all glm53-flash-gb10 dsv4-flash-gb10 --platform linux/arm64 --push registry.example/sglang
"""


@click.command("build --all", epilog=_EXAMPLES)
@click.argument("names", nargs=-1, metavar="[NAME…]")
@click.option("--push", metavar="REF", help="Push to this repository; what it holds already is not built.")
@click.option("--output", metavar="oci:DIR", help="Write to an OCI layout.")
@click.option("--complete", is_flag=True, help="With --output: bring the bases' layers too.")
@click.option(
    "--platform", "platforms", multiple=True, metavar="OS/ARCH", help="Only these (default: each spec's)."
)
@click.option("--tag-template", default=DEFAULT_TAG, show_default=True, help="Tags, one an overlay.")
@format_option
@click.option("--rebuild", is_flag=True, help="Build also what the repository holds already.")
@click.option("--no-attach", is_flag=True, help="With --push: attach no attestations to the images.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 64),
    default=lambda: min(8, 2 * (os.cpu_count() or 1)),
    show_default="two a core, at most 8",
    help="Overlays at once.",
)
@click.option(
    "--source", type=click.Choice(["auto", "wheel", "repository"]), default="auto", help="Of pinned sources."
)
@root_option
@sandbox_option
@json_option
def command(
    names: tuple[str, ...],
    push: str | None,
    output: str | None,
    complete: bool,
    platforms: tuple[str, ...],
    tag_template: str,
    format: Format,
    rebuild: bool,
    no_attach: bool,
    jobs: int,
    source: str,
    root: Path | None,
    as_json: bool,
) -> int:
    """Build every overlay, or those that are named, for all platforms of their specs.

    One that fails does not stop the others; the exit code is then that of the first that failed. Overlays
    whose spec pins no base are skipped, which is a usage error for those that are named.
    """
    from builder.oci.registry.client import Network

    targets = _targets(push, output)
    home = find_root(root)
    delivery = Delivery(tuple(targets), complete, False, tag_template, not no_attach, None, None)
    progress = Progress()
    try:
        with Network(warn=warn) as network:
            held = None
            if push and not output and not rebuild:
                held = network.repository(next(t for t in targets if isinstance(t, Reference)))
            workshop = Workshop(
                home,
                cache_path(),
                network,
                Sources(source, None, None),
                delivery,
                tuple(Platform.parse(text) for text in platforms),
                held,
                progress,
                format,
            )
            outcomes = build_many(list(names) or home.names(), workshop, jobs)
    finally:
        progress.close()
    for outcome in outcomes:
        for text in outcome.warnings:
            warn(f"{outcome.name}: {text}")
    if as_json:
        print_json({"overlays": [_facts(outcome) for outcome in outcomes]})
    else:
        _print(outcomes)
    if names and any(outcome.state == "skipped" for outcome in outcomes):
        return UsageError.exit_code  # it was asked for by its name
    return next((outcome.error.exit_code for outcome in outcomes if outcome.error), 0)


def _targets(push: str | None, output: str | None) -> list[Reference | LayoutReference]:
    targets = [parse_location(text) for text in (push, output) if text]
    if not targets:
        raise UsageError("the images have nowhere to go", hint="--push REF or --output oci:DIR")
    for target, option, kind in zip(
        targets,
        [name for name, said in (("--push", push), ("--output", output)) if said],
        [kind for kind, said in ((Reference, push), (LayoutReference, output)) if said],
        strict=True,
    ):
        if not isinstance(target, kind):
            raise UsageError("not what the option takes", where=option, found=str(target))
        if target.tag or target.digest:
            raise UsageError(
                "several images cannot have one name",
                where=option,
                expected=target.name,
                found=str(target),
                hint="--tag-template says how each is tagged",
            )
    return targets


def _facts(outcome: Outcome) -> dict[str, Any]:
    value: dict[str, Any] = {
        "name": outcome.name,
        "state": outcome.state,
        "platforms": [str(platform) for platform in outcome.platforms],
    }
    if outcome.finished and outcome.delivered:
        value["digest"] = outcome.finished.digest
        value["references"] = list(outcome.delivered.references)
        value["images"] = {image["platform"]: image["digest"] for image in outcome.finished.report.images}
    if outcome.reason:
        value["reason"] = outcome.reason
    if outcome.error:
        value["error"] = outcome.error.as_json()
    return value


def _print(outcomes: Sequence[Outcome]) -> None:
    print_table(
        ("OVERLAY", "STATE", "PLATFORMS", "DIGEST"),
        [(o.name, o.state, " ".join(map(str, o.platforms)) or "-", _said(o)) for o in outcomes],
    )
    for outcome in outcomes:
        if outcome.error:
            print_line(f"\n{outcome.name}:", err=True)
            print_error(outcome.error)


def _said(outcome: Outcome) -> str:
    if outcome.error:
        return outcome.error.what
    return outcome.finished.digest if outcome.finished else outcome.reason
