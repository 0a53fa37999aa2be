"""What ``overlay probe --compile``, ``--tile-map`` and ``--gpu`` print."""

from __future__ import annotations

import click

from builder.cli.output import Progress, print_json
from builder.errors import ProbeFailed
from builder.probe.named_trees import NamedTree


def show_evidence(kind: str, tree: NamedTree, *, as_json: bool) -> None:
    """Take one kind of evidence from one tree and print it.

    Args:
        kind: ``compile``, ``tile-map`` or ``gpu``.

    Raises:
        UsageError: what this evidence needs is not installed here.
        ProbeFailed: a kernel is out of its bounds on this GPU.
    """
    progress = Progress()
    progress(f"{'running' if kind == 'gpu' else 'lowering'} the kernels of {tree.name}; this takes minutes")
    if kind == "gpu":
        _show_gpu(tree, progress, as_json)
        return
    from builder.evidence import compile as compiler

    report = compiler.report(tree.tree) if kind == "compile" else compiler.tile_map(tree.tree)
    progress.close()
    if as_json:
        print_json(report.as_json() | {"tree": tree.name, "origin": tree.origin})
    else:
        click.echo(report.markdown() if kind == "compile" else report.grid(), nl=False)


def _show_gpu(tree: NamedTree, progress: Progress, as_json: bool) -> None:
    from builder.evidence import gpu

    report = gpu.report(tree.tree)
    progress.close()
    if as_json:
        print_json(report.as_json() | {"tree": tree.name, "origin": tree.origin})
    else:
        click.echo(report.markdown(), nl=False)
    if report.failed:
        first = report.failed[0]
        raise ProbeFailed(
            f"{len(report.failed)} of {len(report.results)} kernels are out of their bounds",
            where=tree.name,
            found=f"{first.path} at {first.heads} heads, top-k {first.topk}: "
            + (first.problem or f"{first.worst:.2f} times what rounding can do"),
        )
