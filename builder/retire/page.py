"""Reports as one self-contained page: no network, no font, no script from anywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.printable import printable
from builder.retire.evaluate import Report
from builder.retire.markdown import evidence_rows
from builder.retire.verdict import MEANINGS

_TEMPLATE = Path(__file__).with_name("page.html.in")


def render_page(reports: Sequence[Report]) -> str:
    """The page: a matrix of patches and targets for each overlay, evidence behind every cell.

    Args:
        reports: one for each overlay.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True, finalize=_shown
    )
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    names = ", ".join(report.subject.name for report in reports)
    text = template.render(
        title=f"overlay diff: {names}", reports=reports, meanings=MEANINGS, rows=evidence_rows
    )
    # Paths can hold bytes that are not text; a page is UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def _shown(value: object) -> object:
    """What the template puts in, if it is a foreign text and no markup of its own."""
    return printable(value, colors=False) if type(value) is str else value
