"""``overlay show``"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from builder.cli.completion import complete_patch
from builder.cli.options import name_argument, root_option
from builder.cli.output import colors_wanted, json_option, paint, print_json, print_line, print_table
from builder.errors import InvalidInput
from builder.patch.patch import Patch
from builder.patch.series import Series, SkippedPatch, chosen_series
from builder.printable import printable
from builder.project.project import find_root
from builder.project.spec import read_spec


@click.command(
    "show", epilog="Examples: overlay show glm53-flash-gb10; overlay show glm53-flash-gb10 dsa-tilelang-smem"
)
@name_argument
@click.argument("patch", required=False, shell_complete=complete_patch)
@root_option
@json_option
def command(name: str, patch: str | None, root: Path | None, as_json: bool) -> None:
    """Show a spec, its series, and where each patch stands upstream; with PATCH, that patch."""
    project = find_root(root)
    spec = read_spec(project.spec_path(name))
    series = chosen_series(project.patches, spec.patches)
    if patch is not None:
        _show_patch(series, patch, as_json)
        return
    patches = [_facts(one) for one in series.patches]
    if as_json:
        print_json(
            {
                "spec": spec.model_dump(mode="json", by_alias=True),
                "patchset": series.digest,
                "patches": patches,
                "skipped": [_facts(one.patch) | _skipped(one) for one in series.skipped],
            }
        )
        return
    print_line(f"{paint(spec.name, 'bold')} {spec.version}: {spec.summary}")
    print_line(
        f"upstream  {spec.upstream.repository} {spec.upstream.release} {spec.upstream.commit or ''}".rstrip()
    )
    print_line(f"base      {spec.base.image}" + (f"@{spec.base.index}" if spec.base.index else ""))
    for platform, digest in spec.base.platforms.items():
        print_line(f"          {platform} {digest or '(not pinned)'}")
    print_line(f"patches   {series.name}, {series.digest}\n")
    print_table(
        ("PATCH", "STATUS", "FILES", "SUBJECT"),
        [(p.name, p.status.word, str(len(p.files)), p.subject) for p in series.patches],
    )
    for one in series.skipped:
        print_line(f"{one.patch.name}: {one.reason}")


def _facts(patch: Patch) -> dict[str, object]:
    return {
        "name": patch.name,
        "subject": patch.subject,
        "status": str(patch.status),
        "bugs": list(patch.bugs),
        "hardware": list(patch.hardware),
        "depends": list(patch.depends),
        "files": [diff.path for diff in patch.files],
        "sha256": patch.sha256,
    }


def _skipped(one: SkippedPatch) -> dict[str, object]:
    return {
        "reason": one.reason,
        "dropped": [{"path": path, "rule": rule} for path, rule in one.dropped],
    }


def _show_patch(series: Series, name: str, as_json: bool) -> None:
    """One patch with its place among the others, in colors where somebody looks."""
    number = next((n for n, patch in enumerate(series.patches) if patch.name == name), None)
    if number is None:
        from difflib import get_close_matches

        near = get_close_matches(name, series.names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(series.names)}"
        raise InvalidInput("the overlay has no such patch", where=series.name, found=name, hint=hint)
    patch = series.patches[number]
    needed_by = [other.name for other in series.patches if name in other.depends]
    place = {
        "series": series.name,
        "number": number + 1,
        "of": len(series.patches),
        "before": [other.name for other in series.patches[:number]],
        "after": [other.name for other in series.patches[number + 1 :]],
        "needed_by": needed_by,
    }
    if as_json:
        print_json(_facts(patch) | {"place": place, "text": patch.data.decode("utf-8", "replace")})
        return
    needed = f", needed by {', '.join(needed_by)}" if needed_by else ""
    print_line(paint(f"# {number + 1} of {len(series.patches)} in {series.name}{needed}", "dim"))
    if colors_wanted(sys.stdout):
        _print_colored(patch)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(patch.data)


def _print_colored(patch: Patch) -> None:
    from rich.console import Console
    from rich.syntax import Syntax

    text = printable(patch.data.decode("utf-8", "replace"), colors=False)
    syntax = Syntax(text, "diff", theme="ansi_dark", background_color="default", word_wrap=True)
    Console(highlight=False).print(syntax)
