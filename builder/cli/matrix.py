"""``overlay matrix``"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from builder.cli.options import format_option, root_option
from builder.cli.output import json_option, print_table, warn
from builder.errors import UsageError
from builder.oci.model import Format, Platform
from builder.oci.reference import LayoutReference, Reference, parse_location
from builder.oci.registry.location import open_source
from builder.project.project import find_root
from builder.publish.matrix import Row, Skipped, missing_platforms, read_row, unchanged_since
from builder.publish.push import DEFAULT_TAG

_EXAMPLES = """\b
Examples:
  overlay matrix --push registry.example/sglang
  overlay matrix --changed-since origin/main --json
  overlay matrix --all --json
"""


@click.command("matrix", epilog=_EXAMPLES)
@click.argument("names", nargs=-1, metavar="[NAME…]")
@click.option(
    "--push", metavar="REF", help="Leave out what this repository holds, made from the same inputs."
)
@click.option(
    "--changed-since", metavar="REV", help="Leave out what was built from the same inputs at this commit."
)
@click.option("--all", "everything", is_flag=True, help="Leave nothing out.")
@click.option(
    "--platform", "platforms", multiple=True, metavar="OS/ARCH", help="Only these (default: each spec's)."
)
@click.option(
    "--tag-template", default=DEFAULT_TAG, show_default=True, help="Tags, as overlay build has them."
)
@format_option
@root_option
@json_option
def command(
    names: tuple[str, ...],
    push: str | None,
    changed_since: str | None,
    everything: bool,
    platforms: tuple[str, ...],
    tag_template: str,
    format: Format,
    root: Path | None,
    as_json: bool,
) -> None:
    """List what must be built now: overlays and platforms whose inputs changed.

    With --json, one line: `images` has an entry for each overlay and platform, `include` one for each overlay
    with all its platforms, since these go into one image index, which one job must write.
    """
    from builder.oci.registry.client import Network

    if not (push or changed_since) and not everything:
        raise UsageError(
            "nothing to compare with", hint="--push REF, --changed-since REV, or --all for everything"
        )
    if everything and (push or changed_since):
        raise UsageError("--all leaves nothing out", hint="leave out --push and --changed-since, or --all")
    target = _repository(push)
    project = find_root(root)
    wanted = [Platform.parse(text) for text in platforms]
    chosen = list(names) or project.names()
    if changed_since:
        said = [read_row(project, name, wanted, tag_template, None, format) for name in chosen]
        same = unchanged_since(project, changed_since, [row for row in said if isinstance(row, Row)], format)
        chosen = [name for name in chosen if name not in same]
    with Network(warn=warn) as network:
        opened = partial(open_source, network=network) if target else None
        read = [read_row(project, name, wanted, tag_template, opened, format) for name in chosen]
        rows = [row for row in read if isinstance(row, Row)]
        todo = {
            row.name: missing_platforms(row, network.repository(target)) if target else row.platforms
            for row in rows
        }
    skipped = [one for one in read if isinstance(one, Skipped)]
    rows = [row for row in rows if todo[row.name]]
    if as_json:
        facts = _facts(rows, todo, skipped, with_inputs=target is not None)
        click.echo(json.dumps(facts, separators=(",", ":")))
        return
    print_table(
        ("OVERLAY", "PLATFORM", "TAG"),
        [(row.name, str(platform), row.tag) for row in rows for platform in todo[row.name]]
        + [(one.name, "-", f"skipped: {one.reason}") for one in skipped],
    )


def _repository(push: str | None) -> Reference | None:
    if push is None:
        return None
    target = parse_location(push)
    if isinstance(target, LayoutReference) or target.tag or target.digest:
        raise UsageError("--push takes a registry's repository, without a tag", found=push)
    return target


def _facts(
    rows: Sequence[Row],
    todo: Mapping[str, Sequence[Platform]],
    skipped: Sequence[Skipped],
    *,
    with_inputs: bool,
) -> dict[str, object]:
    images = [
        {"overlay": row.name, "platform": str(platform), "tag": row.tag}
        | ({"inputs": row.inputs[platform]} if with_inputs else {})
        for row in rows
        for platform in todo[row.name]
    ]
    include = [
        {"overlay": row.name, "platforms": " ".join(map(str, row.platforms)), "tag": row.tag} for row in rows
    ]
    return {
        "include": include,
        "images": images,
        "skipped": [{"overlay": one.name, "reason": one.reason} for one in skipped],
    }
