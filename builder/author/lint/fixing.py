"""Repairing what lint found, where nothing is decided by it: line endings, blank context, last newline."""

from __future__ import annotations

from builder.author.lint.finding import Finding
from builder.author.series_directory import SeriesDirectory
from builder.patch.repair import repair_text
from builder.project.whole_file import write_whole


def fix_texts(directory: SeriesDirectory) -> list[Finding]:
    """Repair the text of every patch of a series; what was repaired."""
    repaired: list[Finding] = []
    for name in directory.order():
        path = directory.path(name)
        if not path.is_file():
            continue
        data, repairs = repair_text(path.read_bytes())
        if repairs:
            write_whole(path, data)
            file = str(path.relative_to(directory.root.path))
            repaired += [Finding(m.rule, file, m.line, m.what, m.expected, m.found) for m in repairs]
    return repaired
