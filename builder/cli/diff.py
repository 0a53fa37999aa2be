"""``overlay diff``"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli.options import (
    accept_text_option,
    changes_project,
    complete_overlay,
    root_option,
    sandbox_option,
)
from builder.cli.output import Progress, json_option, paint, print_json, print_line, print_table, warn
from builder.errors import UsageError
from builder.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from builder.project.project import Root
    from builder.project.spec import Spec
    from builder.retire.compare import Difference
    from builder.retire.evaluate import Evaluation, Report, Subject
    from builder.retire.last_seen import Change
    from builder.retire.retire import Retirement
    from builder.source.revision import Target

_COLORS = {
    "merged": "cyan",
    "fixed-by-dependency": "cyan",
    "obsolete": "cyan",
    "carry": "green",
    "partial": "yellow",
    "rework": "red",
    "unknown": "red",
}


@click.command(
    "diff",
    epilog="Examples:\n\n"
    "\b\n"
    "  overlay diff glm53-flash-gb10 --upstream v0.5.23\n"
    "  overlay diff glm53-flash-gb10 --upstream all --html report.html\n"
    "  overlay diff glm53-flash-gb10 --upstream ~/src/sglang@main --exit-code\n"
    "  overlay diff glm53-flash-gb10 glm53-flash-gb10-v0.5.23\n"
    "\n\b\n"
    "Exit codes with --exit-code: 0 nothing changed since the lock remembered it, 4 a patch can be\n"
    "retired, 3 a patch needs rework.",
)
@click.argument("names", nargs=-1, metavar="NAME...", shell_complete=complete_overlay)
@click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="RELEASE|COMMIT|BRANCH|DIR@REV|FILE.whl|all",
    help="The tree to judge against; can be repeated. 'all' is every known release after the pin.",
)
@click.option("--image", "images", multiple=True, metavar="REF", help="Judge against the source in an image.")
@click.option(
    "--upstream-url",
    metavar="URL|PATH",
    envvar="OVERLAY_UPSTREAM_URL",
    help="A mirror or a local repository; a local one gives history as well.",
)
@click.option(
    "--source",
    type=click.Choice(["auto", "wheel", "repository"]),
    default="auto",
    show_default=True,
    help="Take releases from their wheels or from the repository.",
)
@click.option(
    "--history", is_flag=True, help="Fetch the commits since the pin too, to name the one that changed it."
)
@click.option("--markdown", is_flag=True, help="Print Markdown, for a pull request or an issue.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one self-contained page."
)
@click.option(
    "--exit-code", "with_exit_code", is_flag=True, help="Exit by what changed, and remember it in the lock."
)
@click.option("--retire", is_flag=True, help="Take the patches that the pin does not need out of the series.")
@click.option("--dry-run", is_flag=True, help="With --retire: show the diff, write nothing.")
@accept_text_option
@click.option("--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="For one probe on one tree.")
@root_option
@sandbox_option
@json_option
@changes_project(option="retire")
@click.pass_context
def command(
    context: click.Context,
    names: tuple[str, ...],
    upstreams: tuple[str, ...],
    images: tuple[str, ...],
    upstream_url: str | None,
    source: str,
    history: bool,
    markdown: bool,
    html: Path | None,
    with_exit_code: bool,
    retire: bool,
    dry_run: bool,
    accept_text: tuple[str, ...],
    timeout: float | None,
    root: Path | None,
    as_json: bool,
) -> None:
    """Tell which patches upstream has made unnecessary: a verdict for each, with its evidence.

    Without --upstream, an overlay is judged on its own pin; two overlays (or applied-patch manifests of two
    images) are compared with each other.
    """
    from builder.project.project import find_root

    if as_json and markdown:
        raise UsageError("--json and --markdown exclude each other")
    if dry_run and not retire:
        raise UsageError("--dry-run goes with --retire")
    if retire and (upstreams or images):
        raise UsageError(
            "--retire takes out what the overlay's own pin can do without, and judges no other tree",
            found=", ".join([*upstreams, *images]),
            hint=f"a newer release: overlay rebase {' '.join(names[:1]) or 'NAME'} --onto RELEASE "
            "leaves out what it has",
        )
    project = find_root(root)
    if len(names) == 2 and not (upstreams or images or retire or with_exit_code or html):
        _show_difference(names, project, as_json, markdown)
        return
    targets = partial(_targets, upstreams, images, upstream_url, source, history)
    reports = _judge_all(
        names or tuple(project.names()), project, upstream_url, targets, accept_text, timeout
    )
    found = _changes(reports, project)
    retired = _retire(reports, project, dry_run) if retire else None
    if html is not None:
        from builder.project.whole_file import write_whole
        from builder.retire.page import render_page

        write_whole(html, render_page(reports).encode())
    if as_json:
        _print_json(reports, found, retired)
    elif markdown:
        from builder.retire.markdown import render_markdown

        click.echo("\n".join(render_markdown(report) for report in reports), nl=False)
    else:
        _print_text(reports, retired, dry_run, project.names())
    if with_exit_code:
        context.exit(_remembered_exit(reports, found, project))


def _judge_all(
    names: tuple[str, ...],
    project: Root,
    url: str | None,
    targets_of: Callable[[Spec, Subject, Path, Path, Progress], list[Target]],
    accept_text: tuple[str, ...],
    timeout: float | None,
) -> list[Report]:
    from builder.project.project import cache_path
    from builder.project.releases import known_releases
    from builder.retire.evaluate import check_accept_text, judge
    from builder.retire.selection import read_subject

    progress, cache = Progress(), cache_path()
    reports = []
    try:
        for name in dict.fromkeys(names):
            subject, spec = read_subject(name, project, cache, url=url, progress=progress)
            targets = targets_of(spec, subject, cache, project.path, progress)
            known = list(known_releases(project.path))
            report = judge(
                subject,
                targets,
                project.probes,
                cache,
                known=known,
                accept_text=accept_text,
                timeout=timeout,
                say=progress,
            )
            reports.append(report)
    finally:
        progress.close()
    check_accept_text(accept_text, [report.subject.series for report in reports], project.probes)
    return reports


def _targets(
    upstreams: tuple[str, ...],
    images: tuple[str, ...],
    url: str | None,
    source: str,
    history: bool,
    spec: Spec,
    subject: Subject,
    cache: Path,
    root: Path,
    progress: Progress,
) -> list[Target]:
    from builder.retire.selection import find_targets

    found: list[Target] = []
    if upstreams or not images:
        asked = partial(find_targets, spec, subject, upstreams, cache, url=url, source=source)
        found = asked(root=root, history=history, progress=progress)
    if images:
        from builder.retire.image_tree import upstream_image_target

        found += [upstream_image_target(image, cache, progress.transfer, warn) for image in images]
    return found


def _changes(reports: list[Report], project: Root) -> dict[str, list[Change]]:
    from builder.project.lock import read_lock
    from builder.retire.last_seen import changes

    return {r.subject.name: changes(r, read_lock(project.locks(r.subject.name))) for r in reports}


def _remembered_exit(reports: list[Report], found: dict[str, list[Change]], project: Root) -> int:
    from builder.project.lock import update_lock
    from builder.retire.last_seen import exit_code, remember

    for report in reports:
        name = report.subject.name
        update_lock(project.locks(name), partial(remember, report))
    return exit_code([change for rows in found.values() for change in rows])


def _retire(reports: list[Report], project: Root, dry_run: bool) -> list[Retirement]:
    from builder.retire.retire import plan_retirement, retire

    plans = [plan_retirement(report, project) for report in reports]
    if not dry_run:
        for plan in plans:
            retire(plan, project)
    return plans


# --- what is printed ----------------------------------------------------------------------------------------


def _print_json(
    reports: list[Report], found: dict[str, list[Change]], retired: list[Retirement] | None
) -> None:
    value: dict[str, object] = {
        "reports": [
            report.as_json() | {"changes": [change.as_json() for change in found[report.subject.name]]}
            for report in reports
        ]
    }
    if retired is not None:
        value["retired"] = [plan.as_json() for plan in retired]
    print_json(value)


def _print_text(
    reports: list[Report], retired: list[Retirement] | None, dry_run: bool, there: Collection[str]
) -> None:
    for number, report in enumerate(reports):
        if number:
            print_line()
        _print_report(report, there)
    for plan in retired or ():
        print_line()
        print_line(plan.diff if dry_run and plan.diff else plan.summary)
        for line in plan.kept:
            print_line(line)


def _print_report(report: Report, there: Collection[str]) -> None:
    subject = report.subject
    patches = counted(len(subject.series.patches), "patch", "patches")
    print_line(
        f"{paint(subject.name, 'bold')} {subject.version}: {patches} of "
        f"{subject.series.name}, pinned to {subject.release}\n"
    )
    if len(report.targets) == 1:
        _print_one(report)
    else:
        rows = [
            (patch.name, *(_painted(report.of(patch.name, target.name)) for target in report.targets))
            for patch in subject.series.patches
        ]
        print_table(("PATCH", *(target.name for target in report.targets)), rows)
    last = report.on(report.targets[-1].name)
    _print_group("can be retired", [j for j in last if j.verdict.retirable])
    _print_group("not retired on text alone", [j for j in last if j.verdict.is_text_alone])
    _print_group("needs a person", [j for j in last if j.verdict.word in ("rework", "unknown", "partial")])
    against = [j for j in last if j.verdict.contradictions]
    if against:
        print_line(f"\n{paint('the evidence does not agree', 'yellow')} ({report.targets[-1].name})")
        for evaluation in against:
            for line in evaluation.verdict.contradictions:
                print_line(f"  {evaluation.patch}: {line}")
    noted = [(evaluation.patch, note) for evaluation in last for note in evaluation.evidence.notes]
    if noted:
        print_line(f"\n{paint('whether it would run is not known', 'bold')} ({report.targets[-1].name})")
        for patch, note in noted:
            print_line(f"  {patch}: {note}")
    _print_next(subject, report.targets[-1].name, there)


def _print_next(subject: Subject, target: str, there: Collection[str]) -> None:
    """The command that carries the series to the release that was asked about, where it is a newer one."""
    from builder.project.releases import release_order

    order = release_order(target)
    if order[0] and order > release_order(subject.release):
        carried = f"{subject.name}-{target}"
        if carried in there:
            print_line(f"\nit was carried there before: overlay show {carried}")
        else:
            print_line(f"\nto carry it there: overlay rebase {subject.name} --onto {target} --as {carried}")


def _print_one(report: Report) -> None:
    (target,) = report.targets
    rows = [
        (
            evaluation.patch,
            _painted(evaluation),
            str(evaluation.evidence.text),
            str(evaluation.evidence.behaviour or "no probe"),
            evaluation.verdict.why,
        )
        for evaluation in report.on(target.name)
    ]
    print_table(("PATCH", f"ON {target.name}", "TEXT", "PROBE", "WHY"), rows)


def _print_group(title: str, evaluations: Sequence[Evaluation]) -> None:
    if not evaluations:
        return
    print_line(f"\n{paint(title, 'bold')} ({evaluations[0].target})")
    for evaluation in evaluations:
        since = _since(evaluation)
        said = f"{evaluation.verdict.word}{since}: {evaluation.verdict.why}"
        print_line(f"  {evaluation.patch}: {said}")
        for hunk in evaluation.evidence.text.hunks:
            if evaluation.verdict.word in ("rework", "partial") and hunk.state != "carries":
                where = f"{hunk.path}, hunk {hunk.number}" if hunk.number else hunk.path
                places = f" (its lines stand at {', '.join(map(str, hunk.places))})" if hunk.places else ""
                print_line(f"      {hunk.state}: {where}{places}")
        for landed in evaluation.evidence.landed:
            print_line(f"      {landed}")


def _since(evaluation: Evaluation) -> str:
    history = evaluation.evidence.history
    if history is None:
        return ""
    request = f" ({history.pull_request})" if history.pull_request else ""
    note = f" ({history.note})" if history.note and history.release else ""
    return f" since {history}{request}{note}"


def _painted(evaluation: Evaluation) -> str:
    word = evaluation.verdict.word
    return paint(word + ("!" if evaluation.verdict.contradictions else ""), _COLORS[word])


# --- two overlays -------------------------------------------------------------------------------------------


def _show_difference(names: tuple[str, ...], project: Root, as_json: bool, markdown: bool) -> None:
    from builder.project.project import cache_path
    from builder.retire.compare import compare, read_side

    progress = Progress()
    read = partial(read_side, transfer=progress.transfer, warn=warn)
    left, right = (read(name, project, cache_path(), progress) for name in names)
    progress.close()
    difference = compare(left, right)
    if as_json:
        print_json(difference.as_json())
    elif markdown:
        click.echo(difference.as_markdown(), nl=False)
    else:
        _print_difference(difference)


def _print_difference(difference: Difference) -> None:
    left, right = difference.left, difference.right
    rows = [(key, was, now) for key, was, now in difference.facts]
    if not rows and not difference.patches and not difference.files:
        print_line(f"{left.name} and {right.name} are the same")
        return
    print_table(("", left.name, right.name), rows)
    for title, entries in (("PATCH", difference.patches), ("FILE", difference.files)):
        if entries:
            print_line()
            print_table((title, "CHANGE"), [(name, what) for name, what in entries])
