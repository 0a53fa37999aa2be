"""``overlay build --all``"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from builder.build.request import Sources
from builder.cli.options import format_option, read_key, root_option, sandbox_option, sign_key_option
from builder.cli.output import Progress, json_option, print_error, print_json, print_line, print_table, warn
from builder.errors import UsageError
from builder.oci.model import Format, Platform
from builder.oci.reference import LayoutReference, Reference, parse_location
from builder.project.project import cache_path, find_root
from builder.publish.fleet import Fleet, Result, build_many
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
    "--attest",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the attestations to DIR/OVERLAY too.",
)
@sign_key_option
@click.option("--locked", "is_locked", is_flag=True, help="Fail if an input is not what the lock says.")
@click.option(
    "--check", is_flag=True, help="Build each twice in memory, and compare; exit 6 shows what differs."
)
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
    attest: Path | None,
    sign_key: Path | None,
    is_locked: bool,
    check: bool,
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
    if not (targets or check):
        raise UsageError(
            "the images have nowhere to go",
            hint="--push REF or --output oci:DIR; or --check to compare alone",
        )
    project = find_root(root)
    delivery = Delivery(
        tuple(targets), complete, False, tag_template, not no_attach, attest, read_key(sign_key)
    )
    progress = Progress()
    try:
        with Network(warn=warn) as network:
            held = None
            if push and not (output or rebuild or is_locked or check):
                held = network.repository(next(t for t in targets if isinstance(t, Reference)))
            fleet = Fleet(
                project,
                cache_path(),
                network,
                Sources(source),
                delivery,
                bool(targets),
                tuple(Platform.parse(text) for text in platforms),
                held,
                progress,
                format,
                is_locked,
                check,
            )
            results = build_many(list(names) or project.names(), fleet, jobs)
    finally:
        progress.close()
    for result in results:
        for text in result.warnings:
            warn(f"{result.name}: {text}")
    if as_json:
        print_json({"overlays": [_facts(result) for result in results]})
    else:
        _print(results)
    if names and any(result.state == "skipped" for result in results):
        return UsageError.exit_code  # it was asked for by its name
    return next((result.error.exit_code for result in results if result.error), 0)


def _targets(push: str | None, output: str | None) -> list[Reference | LayoutReference]:
    targets = [parse_location(text) for text in (push, output) if text]
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


def _facts(result: Result) -> dict[str, Any]:
    value: dict[str, Any] = {
        "name": result.name,
        "state": result.state,
        "platforms": [str(platform) for platform in result.platforms],
    }
    if result.digest:
        delivered = result.delivered
        value["digest"] = result.digest
        value["references"] = list(delivered.references) if delivered else []
        value["attestations"] = [str(path) for path in delivered.documents] if delivered else []
        value["recalled"] = result.is_cached
        value["images"] = result.images
    if result.reason:
        value["reason"] = result.reason
    if result.error:
        value["error"] = result.error.as_json()
    return value


def _print(results: Sequence[Result]) -> None:
    print_table(
        ("OVERLAY", "STATE", "PLATFORMS", "DIGEST"),
        [(r.name, r.state, " ".join(map(str, r.platforms)) or "-", _said(r)) for r in results],
    )
    for result in results:
        if result.error:
            print_line(f"\n{result.name}:", err=True)
            print_error(result.error)


def _said(result: Result) -> str:
    if result.error:
        return result.error.what
    return result.digest or result.reason
