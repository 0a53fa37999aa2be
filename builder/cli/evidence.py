"""What ``overlay probe --compile``, ``--tile-map`` and ``--gpu`` print."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import click

from builder.cli.output import Progress, print_json
from builder.errors import ProbeFailed, UsageError
from builder.probe.named_trees import NamedTree
from builder.project.project import Root


def show_evidence(kind: str, tree: NamedTree, root: Root, *, as_json: bool) -> None:
    """Take one kind of evidence from one tree and print it.

    Args:
        kind: ``compile``, ``tile-map`` or ``gpu``.
        tree: what it is asked about.
        root: whose patches' ``evidence`` is run, with the rights of this process.

    Raises:
        UsageError: the root has no such evidence, or what this evidence needs is not installed here.
        ProbeFailed: a kernel is out of its bounds on this GPU.
    """
    progress = Progress()
    progress(f"{'running' if kind == 'gpu' else 'lowering'} the kernels of {tree.name}; this takes minutes")
    if kind == "gpu":
        _show_gpu(tree, _import("gpu", root), progress, as_json)
        return
    compiler = _import("compile", root)
    report = compiler.report(tree.tree) if kind == "compile" else compiler.tile_map(tree.tree)
    progress.close()
    if as_json:
        print_json(report.as_json() | {"tree": tree.name, "origin": tree.origin})
    else:
        click.echo(report.markdown() if kind == "compile" else report.grid(), nl=False)


def _import(module: str, root: Root) -> ModuleType:
    if not (root.patches / "evidence" / f"{module}.py").is_file():
        raise UsageError(
            "this project has no evidence of this kind",
            where=str(root.patches / "evidence"),
            expected=f"{module}.py",
            hint="overlay help probes says what it is asked for",
        )
    sys.path.insert(0, str(root.patches))
    return import_module(f"evidence.{module}")


def _show_gpu(tree: NamedTree, gpu: ModuleType, progress: Progress, as_json: bool) -> None:
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
