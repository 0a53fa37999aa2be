"""Mending what lint found, where nothing is decided by it: line endings, blank context, last newline."""

from __future__ import annotations

from builder.author.lint.finding import Finding
from builder.author.series_directory import Home
from builder.patch.repair import mend_text
from builder.project.whole_file import write_whole


def fix_texts(home: Home) -> list[Finding]:
    """Mend the text of every patch of a series; what was mended."""
    mended: list[Finding] = []
    for name in home.order():
        path = home.path(name)
        if not path.is_file():
            continue
        data, mends = mend_text(path.read_bytes())
        if mends:
            write_whole(path, data)
            file = str(path.relative_to(home.root.path))
            mended += [Finding(m.rule, file, m.line, m.what, m.expected, m.found) for m in mends]
    return mended
