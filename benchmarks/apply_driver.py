"""Apply a series as a build does, as a process: ``apply_driver.py SERIES REPOSITORY STORE OUT``.

Sources come out of git's object store, the result is written below OUT. A process of its own, so that
Python's start is part of the figure.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from builder.patch.apply import apply_series
from builder.patch.series import read_series
from builder.source.files import SourceFile
from builder.source.git import GitStore

series = read_series(Path(sys.argv[1]))
repository = GitStore(Path(sys.argv[2]) / ".git")
commit = repository.resolve("HEAD")
assert commit is not None
entries = repository.entries(commit, series.paths)
blobs = repository.blobs(entry.blob for entry in entries.values())
sources = {path: SourceFile(entry.mode, blobs[entry.blob]) for path, entry in entries.items()}
applied = apply_series(series, sources, GitStore.create(Path(sys.argv[3])))
for path, source in applied.after.items():
    if source is not None:
        target = Path(sys.argv[4]) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.data)
