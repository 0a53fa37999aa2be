"""Patches: read without losing a byte, placed where they belong, applied, repaired, written canonically.

In: bytes of patch files, and the files of a pinned source. Out: patched files with a report of each patch,
or an error that names the hunk. Read first: ``series.read_series`` and ``apply.apply_series``.
"""
