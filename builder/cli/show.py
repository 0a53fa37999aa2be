"""``overlay show``"""

from __future__ import annotations

from pathlib import Path

import click

from builder.cli.options import name_argument, root_option
from builder.cli.output import json_option, paint, print_json, print_table
from builder.root import find_root
from builder.series import read_series
from builder.spec import read_spec


@click.command("show", epilog="Example: overlay show glm53-flash-gb10")
@name_argument
@root_option
@json_option
def command(name: str, root: Path | None, as_json: bool) -> None:
    """A spec, its series, and where each patch stands upstream."""
    home = find_root(root)
    spec = read_spec(home.spec_path(name))
    series = read_series(
        home.patches / spec.patches.series, only=spec.patches.only, leave_out=spec.patches.leave_out
    )
    patches = [
        {
            "name": patch.name,
            "subject": patch.subject,
            "status": str(patch.status),
            "bugs": list(patch.bugs),
            "hardware": list(patch.hardware),
            "depends": list(patch.depends),
            "files": [diff.path for diff in patch.files],
            "sha256": patch.sha256,
        }
        for patch in series.patches
    ]
    if as_json:
        print_json(
            {
                "spec": spec.model_dump(mode="json", by_alias=True),
                "patchset": series.digest,
                "patches": patches,
            }
        )
        return
    click.echo(f"{paint(spec.name, 'bold')} {spec.version}: {spec.summary}")
    click.echo(
        f"upstream  {spec.upstream.repository} {spec.upstream.release} {spec.upstream.commit or ''}".rstrip()
    )
    click.echo(f"base      {spec.base.image}" + (f"@{spec.base.index}" if spec.base.index else ""))
    for platform, digest in spec.base.platforms.items():
        click.echo(f"          {platform} {digest or '(not pinned)'}")
    click.echo(f"patches   {series.name}, {series.digest}\n")
    print_table(
        ("PATCH", "STATUS", "FILES", "SUBJECT"),
        [(p.name, p.status.word, str(len(p.files)), p.subject) for p in series.patches],
    )
