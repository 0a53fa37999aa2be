"""``overlay bake``"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from builder.build.pipeline import Shared, plan_overlay
from builder.build.request import Request, Sources
from builder.cli.options import root_option
from builder.cli.output import Progress, json_option, print_json, print_line, print_table, warn
from builder.errors import UsageError
from builder.oci.model import Platform
from builder.oci.reference import LayoutReference, parse_location
from builder.oci.registry.location import open_source
from builder.project.lock import read_lock
from builder.project.project import cache_path, find_root
from builder.publish.buildx import Target, write_bake_file
from builder.publish.matrix import Skipped, read_row
from builder.publish.push import DEFAULT_TAG

_EXAMPLES = """\b
Examples:
  overlay bake --output bake --push registry.example/sglang
  cd bake && docker buildx bake --push
  cd bake && docker buildx bake --print glm53-flash-gb10
"""


@click.command("bake", epilog=_EXAMPLES)
@click.argument("names", nargs=-1, metavar="[NAME…]")
@click.option(
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="A new directory, for docker-bake.json and the contexts.",
)
@click.option("--push", metavar="REF", help="The repository that targets are tagged for.")
@click.option(
    "--platform", "platforms", multiple=True, metavar="OS/ARCH", help="Only these (default: each spec's)."
)
@click.option(
    "--tag-template", default=DEFAULT_TAG, show_default=True, help="Tags; the platform is added to each."
)
@click.option(
    "--source", type=click.Choice(["auto", "wheel", "repository"]), default="auto", help="Of pinned sources."
)
@root_option
@json_option
def command(
    names: tuple[str, ...],
    output: Path,
    push: str | None,
    platforms: tuple[str, ...],
    tag_template: str,
    source: str,
    root: Path | None,
    as_json: bool,
) -> None:
    """Write a bake file with a target for each overlay and platform, for docker buildx bake.

    Everything is checked as in a build; each context then holds all that BuildKit needs but the base.
    """
    from builder.oci.registry.client import Network

    project = find_root(root)
    repository = _repository(push)
    wanted = tuple(Platform.parse(text) for text in platforms)
    targets: list[Target] = []
    progress = Progress()
    try:
        with Network(warn=warn) as network:
            shared, sources, cache = Shared(), Sources(source), cache_path()
            for name in names or project.names():
                row = read_row(project, name, wanted, tag_template, partial(open_source, network=network))
                if isinstance(row, Skipped):
                    warn(f"{name}: {row.reason}")
                    continue
                progress(f"planning {name}")
                lock = read_lock(project.locks(name))
                request = Request(project, name, None, row.platforms, sources, cache, lock)
                planned = plan_overlay(
                    request, network, shared, say=_silent, warn=warn, progress=progress.transfer
                )
                targets += [Target(name, plan, row.tag) for plan in planned.plans]
    finally:
        progress.close()
    if not targets:
        raise UsageError("there is nothing to bake", where=str(project.overlays))
    path = write_bake_file(targets, repository, output)
    if as_json:
        print_json(
            {
                "file": str(path),
                "targets": {
                    target.name: {"context": target.context, "tag": target.image_tag} for target in targets
                },
            }
        )
        return
    print_table(("TARGET", "CONTEXT", "TAG"), [(t.name, t.context, t.image_tag) for t in targets])
    print_line(f"\nwritten   {path}")


def _silent(text: str) -> None:
    """The overlay is named already."""


def _repository(push: str | None) -> str | None:
    if push is None:
        return None
    target = parse_location(push)
    if isinstance(target, LayoutReference) or target.tag or target.digest:
        raise UsageError("--push takes a registry's repository, without a tag", found=push)
    return target.name
