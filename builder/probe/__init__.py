"""Probes: small programs that decide from a source tree alone whether a defect is there (docs/probes.md).

In: a probe's file, and a tree that may be anybody's. Out: ``fixed``, ``defect``, ``absent`` or ``unknown``,
with evidence; the tree's code runs in a process that can reach nothing. Read first: ``run.run_probe`` and
``sandbox.main``.
"""
