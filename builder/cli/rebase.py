"""``overlay rebase``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli.options import (
    accept_text_option,
    changes_project,
    name_argument,
    root_option,
    sandbox_option,
)
from builder.cli.output import Progress, json_option, paint, print_json, print_line, print_table, warn
from builder.errors import UsageError
from builder.printable import printable

if TYPE_CHECKING:
    from builder.retire.rebase import Rebased


@click.command(
    "rebase",
    epilog="Examples:\n\n"
    "\b\n"
    "  overlay rebase glm53-flash-gb10 --onto v0.5.23\n"
    "  overlay rebase glm53-flash-gb10 --onto v0.5.23 --as glm53-flash-gb10-v0.5.23\n"
    "  overlay rebase glm53-flash-gb10 --continue\n"
    "\n\b\n"
    "Exit codes: 0 written; 3 a patch needs a person, and is open in a work tree; 7 a carried patch's\n"
    "probe does not say fixed.",
)
@name_argument
@click.option("--onto", metavar="RELEASE|COMMIT|BRANCH", help="The release to carry the series to.")
@click.option("--as", "new_name", metavar="NAME", help="Write a new overlay instead of moving this one.")
@click.option("--series", metavar="NAME", help="Directory below patches/ to write (default: the release).")
@click.option("--continue", "go_on", is_flag=True, help="Go on after a person has looked.")
@click.option("--abort", "give_up", is_flag=True, help="Remove the work tree; nothing else was changed.")
@click.option(
    "--worktree",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the work tree is (default: with the user's state).",
)
@click.option(
    "--upstream-url",
    metavar="URL|PATH",
    envvar="OVERLAY_UPSTREAM_URL",
    help="A mirror or a local repository.",
)
@click.option(
    "--source",
    type=click.Choice(["auto", "wheel", "repository"]),
    default="auto",
    show_default=True,
    help="Take the release from its wheel or from the repository.",
)
@accept_text_option
@root_option
@sandbox_option
@json_option
@changes_project
def command(
    name: str,
    onto: str | None,
    new_name: str | None,
    series: str | None,
    go_on: bool,
    give_up: bool,
    worktree: Path | None,
    upstream_url: str | None,
    source: str,
    accept_text: tuple[str, ...],
    root: Path | None,
    as_json: bool,
) -> None:
    """Carry an overlay's series to another release; what upstream has is left out.

    Patches go over one by one with git's three-way merge. A conflict is left open in a work tree, one
    commit a patch. Nothing is written before every carried patch's probe says defect on the new release and
    fixed with the series; then patches, spec, lock and changelog are written together.
    """
    from builder.project.project import cache_path, find_root, state_path
    from builder.retire.rebase import Settings, abort, resume, start

    if sum((onto is not None, go_on, give_up)) != 1:
        raise UsageError("name one of --onto RELEASE, --continue and --abort")
    project, cache = find_root(root), cache_path()
    project.spec_path(name)
    work = worktree or state_path() / "rebase" / f"{name}-{project.key}"
    if give_up:
        abort(work)
        if not as_json:
            print_line(f"given up: {work} is removed, nothing else was changed")
        return
    progress = Progress()
    try:
        if onto is not None:
            settings = Settings(name, onto, new_name or name, series, upstream_url, source, accept_text)
            done = start(settings, work, project, cache, say=progress)
        else:
            done = resume(name, work, project, cache, accept_text=accept_text, say=progress)
    finally:
        progress.close()
    if as_json:
        print_json(done.as_json())
    else:
        _print(done)


def _print(done: Rebased) -> None:
    print_line(f"{paint(done.settings.new_name, 'bold')} is on {done.series} now\n")
    rows = [
        (
            move.name,
            f"{move.before.state}->{move.after.state}" if move.before and move.after else "no probe",
            "merged, differs from the original (below)" if move.changed else "as it was",
        )
        for move in done.moves
    ]
    rows += [(name, "", f"left out: {how}") for name, how in done.dropped.items()]
    rows += [(name, "", f"left out: {why}") for name, why in done.retired.items()]
    print_table(("PATCH", "PROBE", "HOW"), rows)
    for name, others in done.untied.items():
        print_line(f"{name}: Overlay-Depends: {', '.join(others)} is taken out: {done.series} has it")
    for move in done.moves:
        if move.range_diff:
            click.echo(printable(f"\n{move.range_diff}"), nl=False)
    for note in done.notes:
        warn(note)
    for clash in done.clashes:
        warn(clash)
    if done.base_unpinned:
        print_line(
            "\nThe base image's digests were of the old release and are gone from the spec. Pin one:\n"
            f"  overlay pin {done.settings.new_name} --base IMAGE:TAG"
        )
