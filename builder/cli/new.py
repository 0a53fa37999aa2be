"""``overlay new``"""

from __future__ import annotations

from pathlib import Path

import click

from builder.author.skeleton import new_overlay
from builder.cli.options import changes_project, complete_overlay, root_option
from builder.cli.output import print_line
from builder.cli.patch import today
from builder.project.project import find_root


@click.command("new", epilog="Example: overlay new my-model --from glm53-flash-gb10")
@click.argument("name")
@click.option(
    "--from", "template", required=True, shell_complete=complete_overlay, help="The overlay to start from."
)
@root_option
@changes_project
def command(name: str, template: str, root: Path | None) -> None:
    """Write a new overlay's spec: pins, series and comments of another one, the rest to fill in."""
    project = find_root(root)
    print_line(f"wrote {new_overlay(project, name, template, today())}: fill in what says TODO")
