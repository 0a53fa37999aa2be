"""``overlay patch``: import, edit, refresh, export, lint."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from builder.authoring.export import Exported, apply_home, as_mailbox, export_applied, write_directory
from builder.authoring.home import Home, find_home, pinned_upstream
from builder.cli.completion import complete_series
from builder.cli.options import root_option, source_options
from builder.cli.output import Progress, json_option, paint, print_json, warn
from builder.errors import PatchConflict, UsageError
from builder.gitstore import GitStore
from builder.lock import write_whole
from builder.root import cache_path, find_root
from builder.upstream import Upstream

series_argument = click.argument("series", shell_complete=complete_series)


@click.group("patch")
def command() -> None:
    """Write patches like code: import, edit, refresh, export, lint."""


@command.command("export", epilog="Example: overlay patch export v0.5.20 --check")
@series_argument
@click.option(
    "--check", is_flag=True, help="Write nothing; exit 3 and name the patches that are not canonical."
)
@click.option("--restack", is_flag=True, help="From the patch files, even where a work tree is open.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["dir", "mbox", "branch"]),
    default="dir",
    show_default=True,
    help="A quilt directory, one mailbox for git am, or a branch of a git repository.",
)
@click.option("--output", metavar="PATH|-", help="Where to (default: the series' own directory).")
@source_options
@root_option
@json_option
def export(
    series: str,
    check: bool,
    restack: bool,
    kind: str,
    output: str | None,
    source: str,
    upstream_url: str | None,
    wheel: Path | None,
    root: Path | None,
    as_json: bool,
) -> None:
    """Write a series back in canonical form: from its open work tree, else from its own files.

    Hunks stand at their true lines, blob ids are the release's, headers are in one order; a patch that did
    not change comes out byte for byte the same.
    """
    if check and (output or kind != "dir"):
        raise UsageError(
            "--check looks at the series' own directory", found=f"--format {kind} --output {output}"
        )
    if kind != "dir" and output is None:
        raise UsageError(f"--format {kind} needs a place to write to", hint="name it with --output")
    home = find_home(find_root(root), series)
    upstream = _upstream(home, source, upstream_url, wheel)
    exported = export_applied(apply_home(home, upstream, _store()))
    for patch in exported:
        if patch.kept:
            warn(f"{patch.name} is left as it is: it {patch.kept}")
    if check:
        _check(home, exported, as_json)
    elif kind == "mbox":
        _write_mailbox(str(output), exported)
    elif output is not None:
        write_directory(Path(output), exported)
        click.echo(f"{len(exported)} patches in {output}")
    else:
        home.write([(patch.name, patch.data) for patch in exported])
        _say_exported(exported, as_json)


def _upstream(home: Home, source: str, url: str | None, wheel: Path | None) -> Upstream:
    progress = Progress()
    try:
        return pinned_upstream(home, cache_path(), source=source, url=url, wheel=wheel, progress=progress)
    finally:
        progress.close()


def _store() -> GitStore:
    return GitStore.create(cache_path() / "series.git")


def _check(home: Home, exported: Sequence[Exported], as_json: bool) -> None:
    stale = [patch.name for patch in exported if patch.changed]
    if stale:
        raise PatchConflict(
            f"{len(stale)} of {len(exported)} patches are not in canonical form",
            where=str(home.directory),
            found=", ".join(stale),
            hint=f"overlay patch export {home.name}",
            facts={"stale": stale},
        )
    _say_exported(exported, as_json)


def _say_exported(exported: Sequence[Exported], as_json: bool) -> None:
    if as_json:
        print_json({"patches": [{"name": patch.name, "changed": patch.changed} for patch in exported]})
        return
    changed = [patch.name for patch in exported if patch.changed]
    for name in changed:
        click.echo(f"{paint('wrote', 'green')}  {name}")
    click.echo(
        f"{len(exported)} patches, {len(changed)} written anew, {len(exported) - len(changed)} as they were"
    )


def _write_mailbox(output: str, exported: Sequence[Exported]) -> None:
    data = as_mailbox(exported)
    if output == "-":
        sys.stdout.buffer.write(data)
    else:
        write_whole(Path(output), data)
        click.echo(f"{len(exported)} patches in {output}")
