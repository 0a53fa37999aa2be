"""Rules for what a probe says: of mutants and variants of the patched source (docs/probes.md)."""

from __future__ import annotations

from pathlib import Path

from builder.author.lint.finding import Finding
from builder.author.series_directory import SeriesDirectory
from builder.errors import InvalidInput
from builder.probe.mutants import Trial, try_probes
from builder.probe.named_trees import pristine_tree
from builder.source.upstream import Upstream


def lint_probes(
    directory: SeriesDirectory, upstream: Upstream, cache: Path
) -> tuple[list[Finding], list[Trial]]:
    """Try the probes of a series.

    Args:
        directory: the series; one that does not apply is not tried, which other rules have said.
        upstream: its pinned release.
        cache: where answers are kept.

    Returns:
        What is wrong, and everything that was tried.
    """
    try:
        series = directory.series()
        trials = try_probes(
            directory.root.probes,
            series,
            upstream.files(series.paths),
            pristine_tree(upstream),
            drop=directory.drop,
            remembered=cache / "probes",
        )
    except InvalidInput:
        return [], []
    findings = []
    for trial in trials:
        file = str((directory.root.probes / f"{trial.patch}.py").relative_to(directory.root.path))
        for rule, complaints in trial.complaints.items():
            findings += [Finding(rule, file, None, f"on {directory.name}: {what}") for what in complaints]
    return findings, trials
