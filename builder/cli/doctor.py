"""``overlay doctor``"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from builder.cli.options import root_option
from builder.cli.output import json_option, paint, print_json, print_line, warn
from builder.errors import UsageError
from builder.oci.reference import Reference, parse_location
from builder.project.project import Root, cache_path, find_root
from builder.project.spec import read_spec
from builder.publish.doctor import (
    Finding,
    State,
    check_cache,
    check_engine,
    check_git,
    check_registries,
    check_sandbox,
)

_COLORS = {State.GOOD: "green", State.MISSING: "yellow", State.BROKEN: "red"}


@click.command("doctor", epilog="Example: overlay doctor registry.example/sglang")
@click.argument("repositories", metavar="[REF]...", nargs=-1)
@click.option("--offline", is_flag=True, help="Ask no registry.")
@root_option
@json_option
def command(repositories: tuple[str, ...], offline: bool, root: Path | None, as_json: bool) -> None:
    """Check that everything is there that overlay needs; exit 8 if something is broken.

    Asks the given repositories, else those that the specs name as bases. Changes nothing.
    """
    from builder.oci.registry.client import Network

    findings = [check_git(), check_cache(cache_path()), check_sandbox(), *check_engine()]
    if not offline:
        references = [_reference(text) for text in repositories] or _bases(find_root(root))
        with Network(warn=warn) as network:
            findings += check_registries(references, network)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    if any(finding.state is State.BROKEN for finding in findings):
        click.get_current_context().exit(8)


def _reference(text: str) -> Reference:
    location = parse_location(text)
    if not isinstance(location, Reference):
        raise UsageError("doctor asks registries; a layout needs no asking", found=text)
    return location


def _bases(project: Root) -> list[Reference]:
    """The specs' base images, each repository once, with a digest that should be there."""
    found: dict[str, Reference] = {}
    for name in project.names():
        base = read_spec(project.spec_path(name)).base
        reference = _reference(base.image)
        found.setdefault(reference.name, replace(reference, tag=None, digest=base.index))
    return list(found.values())


def _print(findings: list[Finding]) -> None:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        state = paint(f"{finding.state:<8}", _COLORS[finding.state])
        print_line(f"{state}{finding.name:<{width}}  {finding.text}")
        if finding.hint:
            print_line(f"{'':<8}{'':<{width}}  {finding.hint}")
