"""``overlay probe``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli.completion import IMAGE_TREE, complete_tree
from builder.cli.options import root_option, sandbox_option
from builder.cli.output import Progress, json_option, paint, print_json, print_line, print_table, warn
from builder.errors import UsageError
from builder.printable import counted, printable

if TYPE_CHECKING:
    from builder.probe.evaluate import Matrix
    from builder.probe.named_trees import NamedTree
    from builder.project.project import Root

_COLORS = {"defect": "red", "fixed": "green", "absent": "cyan", "unknown": "yellow"}


@click.command(
    "probe",
    epilog="Examples:\n\n"
    "\b\n"
    "  overlay probe v0.5.17 v0.5.20 overlay:glm53-flash-gb10\n"
    "  overlay probe ~/src/sglang --only shm-broadcast-host-ip\n"
    "  overlay probe ~/src/sglang@main --json\n"
    "  overlay probe image:registry.example/sglang@sha256:06e4…\n"
    "  overlay probe overlay:glm53-flash-gb10 --compile",
)
@click.argument(
    "trees",
    nargs=-1,
    required=True,
    metavar="TREE|overlay:NAME|image:REF|RELEASE...",
    shell_complete=complete_tree,
)
@click.option("--only", multiple=True, metavar="PROBE", help="Run this probe alone; can be repeated.")
@click.option("--markdown", is_flag=True, help="Print the matrix as Markdown.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=30, show_default=True, help="Seconds for one probe."
)
@click.option(
    "--compile",
    "evidence",
    flag_value="compile",
    help="Instead: what the tree's attention kernels ask for, says the compiler (extra kernels).",
)
@click.option(
    "--tile-map", "evidence", flag_value="tile-map", help="Instead: the same for every tile in reach."
)
@click.option(
    "--gpu",
    "evidence",
    flag_value="gpu",
    help="Instead: run the tree's attention kernels on this GPU against a float32 reference.",
)
@click.option("--fresh", is_flag=True, help="Run every probe, also where its answer is known from before.")
@root_option
@sandbox_option
@json_option
def command(
    trees: tuple[str, ...],
    only: tuple[str, ...],
    markdown: bool,
    timeout: float,
    evidence: str | None,
    fresh: bool,
    root: Path | None,
    as_json: bool,
) -> None:
    """Run the probes: which defects does a source tree have?

    A tree is a directory with python/sglang in it, DIRECTORY@REVISION of a git repository, a release, an
    overlay's pin with its series applied, or the source inside an image (image:REF, image:oci:DIR). The
    answers are defect, fixed, absent (the tree has no such site) and unknown (with the reason).
    """
    from builder.probe.evaluate import ask_all, find_probes
    from builder.project.project import cache_path, find_root

    if as_json and markdown:
        raise UsageError("--json and --markdown exclude each other")
    project = find_root(root)
    if evidence:
        from builder.cli.evidence import show_evidence

        if len(trees) != 1:
            raise UsageError("evidence is taken from one tree at a time", found=" ".join(trees))
        progress = Progress()
        try:
            tree = _tree(trees[0], project, progress)
        finally:
            progress.close()
        show_evidence(evidence, tree, project, as_json=as_json)
        return
    probes = find_probes(project.probes, only)
    kept = None if fresh else cache_path() / "probes"
    progress = Progress()
    try:
        named = [_tree(name, project, progress) for name in dict.fromkeys(trees)]
        progress(f"running {counted(len(probes), 'probe')} on {counted(len(named), 'tree')}")
        matrix = ask_all(probes, {tree.name: tree.tree for tree in named}, timeout=timeout, remembered=kept)
    finally:
        progress.close()
    if as_json:
        print_json(matrix.as_json() | {"origins": {tree.name: tree.origin for tree in named}})
    elif markdown:
        _print_markdown(matrix, named)
    else:
        _print_text(matrix)


def _tree(name: str, project: Root, progress: Progress) -> NamedTree:
    from builder.probe.named_trees import NamedTree, find_tree, pristine_tree
    from builder.project.project import cache_path

    if not name.startswith(IMAGE_TREE):
        return find_tree(name, project, cache_path(), progress)
    from builder.retire.image_tree import image_target

    target = image_target(name.removeprefix(IMAGE_TREE), cache_path(), progress.transfer, warn)
    tree = pristine_tree(target.upstream)
    return NamedTree(name, f"source in the image, git tree {tree.tree_id}", tree)


def _print_text(matrix: Matrix) -> None:
    rows = [(probe, *(matrix.answers[probe, tree].state for tree in matrix.trees)) for probe in matrix.probes]
    print_table(("PROBE", *matrix.trees), rows)
    for probe in matrix.probes:
        print_line(f"\n{paint(probe, 'bold')}")
        for tree, state, evidence in _grouped(matrix, probe):
            print_line(f"  {tree}: {_painted(state)}: {evidence}")


def _painted(state: str) -> str:
    return paint(state, _COLORS[state])


def _grouped(matrix: Matrix, probe: str) -> list[tuple[str, str, str]]:
    """The answers of one probe, those that say the same in one row: trees, state, evidence."""
    groups: dict[tuple[str, str], list[str]] = {}
    for tree in matrix.trees:
        answer = matrix.answers[probe, tree]
        evidence = answer.evidence + (f" [{', '.join(answer.pins)}]" if answer.pins else "")
        groups.setdefault((answer.state, evidence), []).append(tree)
    return [(", ".join(trees), state, evidence) for (state, evidence), trees in groups.items()]


def _print_markdown(matrix: Matrix, named: list[NamedTree]) -> None:
    print_line("| probe | " + " | ".join(_cell(tree) for tree in matrix.trees) + " |")
    print_line("|---" * (len(matrix.trees) + 1) + "|")
    for probe in matrix.probes:
        print_line(f"| {probe} | " + " | ".join(matrix.answers[probe, t].state for t in matrix.trees) + " |")
    print_line("\nTrees:\n")
    for tree in named:
        print_line(f"- `{tree.name}`: {_cell(tree.origin)}")
    print_line("\nEvidence:\n")
    for probe in matrix.probes:
        print_line(f"- **{probe}**")
        for trees, state, evidence in _grouped(matrix, probe):
            print_line(f"  - {_cell(trees)}: *{state}*: {_cell(evidence)}")


def _cell(text: str) -> str:
    """Text that stays in its place in Markdown."""
    text = printable(text, colors=False)
    for character in "\\|*_`<>[]":
        text = text.replace(character, "\\" + character)
    return text
