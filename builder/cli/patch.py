"""``overlay patch``: import, edit, refresh, export, lint."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from builder.authoring.export import Exported, apply_home, as_mailbox, export_applied, write_directory
from builder.authoring.home import Home, find_home, pinned_upstream, series_names
from builder.authoring.lint.finding import Finding
from builder.cli.completion import complete_series
from builder.cli.options import root_option, source_options
from builder.cli.output import Progress, json_option, paint, print_json, print_table, warn
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


@command.command("lint", epilog="Example: overlay patch lint v0.5.20 --fix")
@click.argument("series", nargs=-1, shell_complete=complete_series)
@click.option("--fix", is_flag=True, help="Mend what can be mended safely, and say what was.")
@click.option("--rules", is_flag=True, help="List the rules and stop.")
@click.option("--offline", is_flag=True, help="Leave out the rules that need the pinned release's sources.")
@source_options
@root_option
@json_option
def lint(
    series: tuple[str, ...],
    fix: bool,
    rules: bool,
    offline: bool,
    source: str,
    upstream_url: str | None,
    wheel: Path | None,
    root: Path | None,
    as_json: bool,
) -> None:
    """Check series, patches, probes and specs against every rule of docs/formats.md (default: all series)."""
    from builder.authoring.lint.finding import RULES
    from builder.authoring.lint.fixing import fix_texts
    from builder.authoring.lint.release import lint_release
    from builder.authoring.lint.root import excused, lint_root

    if rules:
        print_table(("RULE", "WHAT MUST HOLD"), list(RULES.items()))
        return
    place = find_root(root)
    names = list(series) or series_names(place)
    homes = [find_home(place, name) for name in names]
    mended = [mend for home in homes for mend in fix_texts(home)] if fix else []
    findings = lint_root(place, names)
    if not offline:
        for home in homes:
            upstream = _upstream(home, source, upstream_url, wheel)
            found = lint_release(home, upstream, cache_path())
            if fix and any(finding.by_export for finding in found):
                exported = export_applied(apply_home(home, upstream))
                home.write([(patch.name, patch.data) for patch in exported])
                mended += [finding for finding in found if finding.by_export]
                found = lint_release(home, upstream, cache_path())
            findings += found
    allowed: list[Finding] = []
    for home in homes:
        findings, excuses = excused(place, home.name, findings)
        allowed += excuses
    _say_findings(findings, allowed, mended, as_json)
    if findings:
        click.get_current_context().exit(1)


def _say_findings(
    findings: Sequence[Finding], allowed: Sequence[Finding], mended: Sequence[Finding], as_json: bool
) -> None:
    if as_json:
        groups = {"findings": findings, "allowed": allowed, "mended": mended}
        print_json({key: [finding.as_json() for finding in group] for key, group in groups.items()})
        return
    for finding in mended:
        click.echo(f"{paint('mended', 'green')} {finding}")
    for finding in findings:
        at = f"{finding.file}:{finding.line}" if finding.line else finding.file
        click.echo(f"{paint(at, 'bold')}: {paint(finding.rule, 'red')}: {finding.what}")
        for label, value in (("expected", finding.expected), ("found", finding.found), ("try", finding.mend)):
            if value:
                click.echo(f"  {label + ':':<10}{value}")
    excuses = f", {len(allowed)} excused" if allowed else ""
    click.echo(f"{len(findings)} {'finding' if len(findings) == 1 else 'findings'}{excuses}")
