"""``overlay patch``: import, edit, refresh, export, lint."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from builder.author.branch import write_branch
from builder.author.checkout import holds_current_work, open_worktree, series_key, worktree_of
from builder.author.export import (
    Exported,
    apply_directory,
    as_mailbox,
    draft_of,
    export_applied,
    write_directory,
)
from builder.author.importing import Imported, ImportOptions, import_input_patches, squash
from builder.author.inputs import InputPatch, read_input_patches, read_quilt, read_range
from builder.author.lint.finding import Finding
from builder.author.refresh import check_complete, difference, refresh_file
from builder.author.series_directory import (
    SeriesDirectory,
    find_series_directory,
    pinned_upstream,
    series_names,
)
from builder.author.skeleton import DEFAULT_AUTHOR, patch_head
from builder.author.sound import check_sound
from builder.author.worktree import RESCUED, WorkTree
from builder.cli.completion import complete_patch, complete_series
from builder.cli.options import changes_project, root_option, sandbox_option, source_options
from builder.cli.output import Progress, json_option, paint, print_json, print_line, print_table, warn
from builder.errors import InvalidInput, PatchConflict, UsageError
from builder.patch.apply import try_series
from builder.patch.canonical import Draft, write_patches
from builder.patch.diff import MAX_DIFF_BYTES
from builder.patch.patch import check_patch_name
from builder.printable import counted
from builder.probe.mutants import Trial
from builder.project.project import cache_path, find_root, state_path
from builder.project.whole_file import write_whole
from builder.source.git import GitStore
from builder.source.upstream import Upstream

series_argument = click.argument("series", shell_complete=complete_series)


@click.group(
    "patch",
    epilog="Examples:\n\n"
    "\b\n"
    "  overlay patch import v0.5.20 fix.patch         a patch that there is\n"
    "  overlay patch new v0.5.20 better-default       one of your own: a work tree to write it in\n"
    "  overlay patch export v0.5.20                   the work tree's commits, back into the series\n"
    "  overlay patch lint v0.5.20",
)
def command() -> None:
    """Write patches like code: import, edit, refresh, export, lint."""


@command.command(
    "import",
    epilog="Examples:\n\n"
    "\b\n"
    "  overlay patch import v0.5.20 39482.patch --origin https://github.com/sgl-project/sglang/pull/39482\n"
    "  git diff | overlay patch import v0.5.20 - --name my-fix\n"
    "  overlay patch import v0.5.20 debian/patches\n"
    "  overlay patch import v0.5.20 ~/sglang v0.5.20..my-branch --squash",
)
@series_argument
@click.argument("place", metavar="FILE|-|DIR|REPO")
@click.argument("commits", metavar="[BASE..HEAD]", required=False)
@click.option("--name", default="", help="The patch's name (default: its file's, else its subject's).")
@click.option("--squash", "squashed", is_flag=True, help="Make one patch of all.")
@click.option("--strip", type=click.IntRange(0, 9), help="Leading path components to take off (patch -pN).")
@click.option("--author", default="", help="Author of patches that name none: 'Name <address>'.")
@click.option("--status", default="", help="Upstream-Status of patches that have none (default: Pending).")
@click.option("--bug", "bugs", multiple=True, metavar="URL", help="Bug trailer to add; repeatable.")
@click.option("--origin", default="", metavar="URL", help="Origin trailer to add.")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@source_options
@root_option
@json_option
@changes_project
def import_(
    series: str,
    place: str,
    commits: str | None,
    name: str,
    squashed: bool,
    strip: int | None,
    author: str,
    status: str,
    bugs: tuple[str, ...],
    origin: str,
    dry_run: bool,
    source: str,
    upstream_url: str | None,
    wheel: Path | None,
    root: Path | None,
    as_json: bool,
) -> None:
    """Add patches to a series: a git mailbox, a diff, a quilt directory, or commits of a repository.

    They are put on top of the series on its release, so that what is written is known to apply and to be
    Python still; files that the release lacks are dropped by the spec's rules, and listed.
    """
    series_directory = find_series_directory(find_root(root), series)
    if not dry_run:
        series_directory.root.check_writable()
    input_patches = _input_patches(place, commits)
    if squashed:
        input_patches = [squash(input_patches)]
    if name and len(input_patches) > 1:
        raise UsageError(
            f"--name is for one patch, and there are {len(input_patches)}", hint="or --squash them"
        )
    upstream = _upstream(series_directory, source, upstream_url, wheel)
    imported = import_input_patches(
        series_directory, upstream, input_patches, ImportOptions(name, author, status, bugs, origin, strip)
    )
    now = [(patch, series_directory.path(patch).read_bytes()) for patch in series_directory.order()]
    longer = [*now, *((one.name, one.data) for one in imported)]
    _check_sound(series_directory, upstream, longer, [one.name for one in imported], "repair the patch")
    if not dry_run:
        series_directory.write(longer)
    _say_imported(imported, as_json)


def _input_patches(place: str, commits: str | None) -> list[InputPatch]:
    if commits is not None:
        return read_range(Path(place), commits)
    if place == "-":
        return read_input_patches(sys.stdin.buffer.read(MAX_DIFF_BYTES + 1), "-")
    path = Path(place)
    if path.is_dir():
        return read_quilt(path)
    if not path.is_file():
        raise UsageError("there is no such file or directory", found=place, hint="- reads standard input")
    with path.open("rb") as file:
        return read_input_patches(file.read(MAX_DIFF_BYTES + 1), path.name)


def _say_imported(imported: Sequence[Imported], as_json: bool) -> None:
    if as_json:
        print_json([one.as_json() for one in imported])
        return
    for one in imported:
        print_line(f"{paint('imported', 'green')} {one.name}")
        if one.reading:
            print_line(f"  paths read as {one.reading}")
        for repair in one.repairs:
            print_line(f"  repaired, line {repair.line}: {repair.what}")
        for path, rule in one.dropped:
            print_line(f"  dropped {path} ({rule})")
        for path in one.merged:
            print_line(f"  merged three ways: {path} (the release has another file than the commit)")
        if one.offsets:
            print_line(f"  {counted(one.offsets, 'hunk')} moved to another line")


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
@click.option("--branch", metavar="NAME", help="With --format branch (default: overlay/SERIES).")
@source_options
@root_option
@json_option
@changes_project
def export(
    series: str,
    check: bool,
    restack: bool,
    kind: str,
    output: str | None,
    branch: str | None,
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
    series_directory = find_series_directory(find_root(root), series)
    upstream = _upstream(series_directory, source, upstream_url, wheel)
    worktree = _worktree(series_directory)
    _resume(worktree)
    elsewhere = output is not None and worktree.exists()
    from_worktree = (
        not restack and not check and (elsewhere or holds_current_work(worktree, series_directory, upstream))
    )
    drafts = _worktree_drafts(worktree) if from_worktree else None
    exported = (
        _export_drafts(series_directory, drafts)
        if drafts is not None
        else _export_files(series_directory, upstream)
    )
    if drafts is not None:
        check_complete(series_directory, upstream, worktree, exported)
    if check:
        _check(series_directory, exported, as_json)
    elif kind == "mbox":
        _write_mailbox(str(output), exported)
    elif kind == "branch":
        name = branch or f"overlay/{series_directory.name}"
        drafts = drafts or [
            draft_of(report) for report in apply_directory(series_directory, upstream).reports
        ]
        tip = write_branch(Path(str(output)), name, series_directory.spec.upstream.commit, drafts)
        print_line(f"{counted(len(drafts), 'commit')} on {name}, at {tip[:12]}")
    elif output is not None:
        write_directory(Path(output), exported)
        print_line(f"{counted(len(exported), 'patch', 'patches')} in {output}")
    else:
        gone = series_directory.write([(patch.name, patch.data) for patch in exported])
        if from_worktree:
            worktree.mark_exported(series_key(series_directory, upstream))
        _say_exported(exported, as_json, gone)


@command.command("edit", epilog="Example: overlay patch edit v0.5.20 shm-broadcast-host-ip")
@series_argument
@click.argument("patch", required=False, shell_complete=complete_patch)
@source_options
@root_option
@json_option
@changes_project
def edit(
    series: str,
    patch: str | None,
    source: str,
    upstream_url: str | None,
    wheel: Path | None,
    root: Path | None,
    as_json: bool,
) -> None:
    """Open a git work tree of the series: the release, and one commit a patch on top of it.

    With PATCH, a rebase stops at its commit, to be amended. Work goes on where it was left; overlay patch
    export writes it back. The work tree is never thrown away while it holds work.
    """
    directory = find_series_directory(find_root(root), series)
    upstream = _upstream(directory, source, upstream_url, wheel)
    _resume(_worktree(directory))
    worktree = _open(directory, upstream)
    if patch:
        worktree.require_settled()
        worktree.stop_at(patch)
    state = worktree.state()
    if as_json:
        facts = {"busy": state.busy, "dirty": state.dirty, "unexported": state.unexported}
        print_json({"worktree": str(worktree.path), **facts})
        return
    print_line(f"cd {worktree.path}")
    if state.busy:
        print_line(f"a {state.busy} is under way: git commit --amend, then git {state.busy} --continue")
    elif not state.idle:
        print_line("it holds work that is not exported")
    print_line(f"then: overlay patch export {directory.name}")


@command.command("refresh", epilog="Example: overlay patch refresh v0.5.20 dsa-tilelang-smem")
@series_argument
@click.argument("patch", shell_complete=complete_patch)
@click.option("--dry-run", is_flag=True, help="Show the change and write nothing.")
@source_options
@root_option
@changes_project
def refresh(
    series: str,
    patch: str,
    dry_run: bool,
    source: str,
    upstream_url: str | None,
    wheel: Path | None,
    root: Path | None,
) -> None:
    """Fold the work tree's changes into PATCH and write the series back; or repair a patch edited by hand.

    Where no work tree with changes is open, the patch file is read as it was meant (counts, lost blanks,
    line endings), the change is shown, and the series is written anew.
    """
    directory = find_series_directory(find_root(root), series)
    upstream = _upstream(directory, source, upstream_url, wheel)
    worktree = _worktree(directory)
    _resume(worktree)
    if from_worktree := worktree.exists() and not worktree.state().idle:
        state = worktree.state()
        if state.busy:
            raise worktree.stopped(state.busy)
        if dry_run:
            print_line("\n".join(state.dirty) or "commits that are not exported")
            return
        if not state.dirty and not any(one.changed for one in _export_drafts(directory, worktree.drafts())):
            worktree.mark_exported(series_key(directory, upstream))  # written, and killed before it was noted
            raise InvalidInput("there are no changes to fold in", where=str(worktree.path))
        holds_current_work(worktree, directory, upstream)  # refuses where the patch files changed as well
        if state.dirty:
            worktree.fold(patch)
        exported = _export_drafts(directory, worktree.drafts())
        check_complete(directory, upstream, worktree, exported)
    else:
        refreshed = refresh_file(directory, upstream, patch)
        for repair in refreshed.repairs:
            print_line(f"{patch}.patch:{repair.line}: {repair.rule}: {repair.what}")
        exported = list(refreshed.exported)
    for one in exported:
        if one.changed:
            print_line(difference(one))
    written = [(one.name, one.data) for one in exported]
    place = f"repair it in {worktree.path}" if from_worktree else f"repair {directory.path(patch)}"
    _check_sound(directory, upstream, written, [patch], f"{place}, and refresh it again")
    if not dry_run:
        gone = directory.write(written)
        if from_worktree:
            worktree.mark_exported(series_key(directory, upstream))
        _say_exported(exported, as_json=False, gone=gone)


def _resume(worktree: WorkTree) -> None:
    if worktree.exists() and worktree.resume():
        warn(f"a refresh that was stopped is finished; the work tree as it was found is {RESCUED}")


def _who() -> str:
    """Who git's own configuration says its user is; the set's maintainers where it says nothing."""
    asked = ["git", "-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False, errors="surrogateescape")
    return said.stdout.rpartition(">")[0] + ">" if said.returncode == 0 else DEFAULT_AUTHOR


@command.command("new", epilog="Example: overlay patch new v0.5.20 better-default")
@series_argument
@click.argument("patch")
@click.option("--author", default=_who, show_default="git's user", help="Who writes it: 'Name <address>'.")
@source_options
@root_option
@changes_project
def new(
    series: str,
    patch: str,
    author: str,
    source: str,
    upstream_url: str | None,
    wheel: Path | None,
    root: Path | None,
) -> None:
    """Begin a patch at the end of the series: an empty commit in its work tree, with a message to fill in."""
    directory = find_series_directory(find_root(root), series)
    directory.root.check_writable()
    check_patch_name(patch, where="PATCH")
    if patch in directory.order():
        raise InvalidInput("there is a patch of this name", where=str(directory.path(patch)))
    upstream = _upstream(directory, source, upstream_url, wheel)
    worktree = _open(directory, upstream)
    worktree.require_settled()
    if any(draft.name == patch for draft in worktree.drafts()):
        raise InvalidInput(
            "the work tree has a commit for a patch of this name",
            where=str(worktree.path),
            found=patch,
            hint=f"go on with it there, then: overlay patch export {directory.name}",
        )
    worktree.add_empty(patch, patch_head(author, today()))
    print_line(f"cd {worktree.path}")
    print_line("edit files, git commit --all --amend: say what the patch does where it says TODO")
    print_line("a file that is not there: git sparse-checkout add DIRECTORY")
    print_line(f"then: overlay patch export {directory.name}")


def today() -> datetime.date:
    """The day that new things are dated by: SOURCE_DATE_EPOCH's, else this one in UTC."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    if seconds and seconds.isdigit():
        return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).date()
    return datetime.datetime.now(datetime.UTC).date()


def _upstream(directory: SeriesDirectory, source: str, url: str | None, wheel: Path | None) -> Upstream:
    progress = Progress()
    try:
        return pinned_upstream(
            directory, cache_path(), source=source, url=url, wheel=wheel, progress=progress
        )
    finally:
        progress.close()


def _check_sound(
    directory: SeriesDirectory,
    upstream: Upstream,
    patches: Sequence[tuple[str, bytes]],
    names: Sequence[str],
    hint: str,
) -> None:
    for note in check_sound(directory, upstream, patches, names, cache_path(), hint=hint):
        warn(note)


def _worktree(directory: SeriesDirectory) -> WorkTree:
    return worktree_of(directory, state_path())


def _open(directory: SeriesDirectory, upstream: Upstream) -> WorkTree:
    """The series' work tree, made where there is none."""
    worktree = _worktree(directory)
    series = directory.series()
    applied = try_series(series, upstream.files(series.paths), drop=directory.drop)
    for report in applied.reports:
        if report.dropped:
            paths = ", ".join(path for path, _ in report.dropped)
            raise InvalidInput(
                "patch has files that the release lacks, which a work tree cannot hold",
                where=str(directory.path(report.patch.name)),
                found=paths,
                hint="take these files out of the patch",
            )
    open_worktree(worktree, directory, upstream, applied)
    return worktree


def _worktree_drafts(worktree: WorkTree) -> list[Draft]:
    worktree.require_settled()
    return worktree.drafts()


def _export_drafts(directory: SeriesDirectory, drafts: Sequence[Draft]) -> list[Exported]:
    paths = [directory.path(draft.name) for draft in drafts]
    now = [path.read_bytes() if path.is_file() else None for path in paths]
    written = zip(drafts, write_patches(drafts), now, strict=True)
    return [Exported(draft.name, data, before) for draft, data, before in written]


def _export_files(directory: SeriesDirectory, upstream: Upstream) -> list[Exported]:
    exported = export_applied(apply_directory(directory, upstream, _store()))
    for patch in exported:
        if patch.kept:
            warn(f"{patch.name} is left as it is: it {patch.kept}")
    return exported


def _store() -> GitStore:
    return GitStore.create(cache_path() / "series.git")


def _check(directory: SeriesDirectory, exported: Sequence[Exported], as_json: bool) -> None:
    stale = [patch.name for patch in exported if patch.changed]
    if stale:
        raise PatchConflict(
            f"{len(stale)} of {counted(len(exported), 'patch', 'patches')} "
            f"{'is' if len(stale) == 1 else 'are'} not in canonical form",
            where=str(directory.directory),
            found=", ".join(stale),
            hint=f"overlay patch export {directory.name}",
            facts={"stale": stale},
        )
    _say_exported(exported, as_json)


def _say_exported(exported: Sequence[Exported], as_json: bool, gone: Sequence[str] = ()) -> None:
    if as_json:
        patches = [{"name": patch.name, "changed": patch.changed} for patch in exported]
        print_json({"patches": patches, "removed": list(gone)})
        return
    changed = [patch.name for patch in exported if patch.changed]
    for name in changed:
        print_line(f"{paint('wrote', 'green')}    {name}")
    for name in gone:
        print_line(f"{paint('removed', 'yellow')}  {name}")
    print_line(
        f"{counted(len(exported), 'patch', 'patches')}, {len(changed)} written anew, "
        f"{len(exported) - len(changed)} as before"
    )


def _write_mailbox(output: str, exported: Sequence[Exported]) -> None:
    data = as_mailbox(exported)
    if output == "-":
        sys.stdout.buffer.write(data)
    else:
        write_whole(Path(output), data)
        print_line(f"{counted(len(exported), 'patch', 'patches')} in {output}")


@command.command("lint", epilog="Example: overlay patch lint v0.5.20 --fix")
@click.argument("series", nargs=-1, shell_complete=complete_series)
@click.option("--fix", is_flag=True, help="Repair what can be repaired safely, and say what was.")
@click.option("--rules", is_flag=True, help="List the rules and stop.")
@click.option("--offline", is_flag=True, help="Leave out the rules that need the pinned release's sources.")
@click.option(
    "--probes", is_flag=True, help="Try the probes on mutants and variants, too (overlay help probes)."
)
@source_options
@root_option
@sandbox_option
@json_option
@changes_project(option="fix")
def lint(
    series: tuple[str, ...],
    fix: bool,
    rules: bool,
    offline: bool,
    probes: bool,
    source: str,
    upstream_url: str | None,
    wheel: Path | None,
    root: Path | None,
    as_json: bool,
) -> None:
    """Check series (default: all), patches, probes and specs against every rule of overlay help formats."""
    from builder.author.lint.finding import PROBE_RULES, RELEASE_RULES, RULES
    from builder.author.lint.fixing import fix_texts
    from builder.author.lint.probes import lint_probes
    from builder.author.lint.release import lint_release
    from builder.author.lint.root import excused, lint_root

    if rules:
        if as_json:
            print_json(RULES)
        else:
            print_table(("RULE", "WHAT MUST HOLD"), list(RULES.items()))
        return
    if probes and offline:
        raise UsageError("--probes needs the pinned release's sources", hint="leave out --offline")
    place = find_root(root)
    if fix:
        place.check_writable()
    names = list(series) or series_names(place)
    directories = [find_series_directory(place, name) for name in names]
    repaired = [repair for directory in directories for repair in fix_texts(directory)] if fix else []
    findings = lint_root(place, names)
    trials: list[Trial] = []
    notes: list[str] = []
    if not offline:
        for directory in directories:
            upstream = _upstream(directory, source, upstream_url, wheel)
            found, unseen = lint_release(directory, upstream, cache_path())
            if fix and any(finding.by_export for finding in found):
                exported = export_applied(apply_directory(directory, upstream))
                directory.write([(patch.name, patch.data) for patch in exported])
                repaired += [finding for finding in found if finding.by_export]
                found, unseen = lint_release(directory, upstream, cache_path())
            findings += found
            notes += unseen
            if probes:
                found, tried = lint_probes(directory, upstream, cache_path())
                findings += found
                trials += tried
    judged = RULES.keys() - (RELEASE_RULES if offline else set()) - (set() if probes else PROBE_RULES)
    allowed: list[Finding] = []
    for directory in directories:
        findings, excuses = excused(place, directory.name, findings, judged)
        allowed += excuses
    _say_findings(findings, allowed, repaired, trials, notes, as_json)
    if findings:
        click.get_current_context().exit(1)


def _say_findings(
    findings: Sequence[Finding],
    allowed: Sequence[Finding],
    repaired: Sequence[Finding],
    trials: Sequence[Trial],
    notes: Sequence[str],
    as_json: bool,
) -> None:
    if as_json:
        groups = {"findings": findings, "allowed": allowed, "mended": repaired}
        facts = {key: [finding.as_json() for finding in group] for key, group in groups.items()}
        tried = {"probes": [trial.as_json() for trial in trials]} if trials else {}
        print_json(facts | tried | {"notes": list(notes)})
        return
    for note in notes:
        warn(note)
    for trial in trials:
        print_line(f"{paint(f'{trial.series}/{trial.patch}', 'bold')}: {trial.summary}")
        for outcome in trial.outcomes:
            if outcome.case.costs:
                print_line(f"  apart ({outcome.case.costs}): {outcome.case.name}: {outcome.case.why}")
    for finding in repaired:
        print_line(f"{paint('repaired', 'green')} {finding}")
    for finding in findings:
        at = f"{finding.file}:{finding.line}" if finding.line else finding.file
        print_line(f"{paint(at, 'bold')}: {paint(finding.rule, 'red')}: {finding.what}")
        for label, value in (
            ("expected", finding.expected),
            ("found", finding.found),
            ("try", finding.repair),
        ):
            if value:
                print_line(f"  {label + ':':<10}{value}")
    excuses = f", {len(allowed)} excused" if allowed else ""
    print_line(f"{counted(len(findings), 'finding')}{excuses}")
