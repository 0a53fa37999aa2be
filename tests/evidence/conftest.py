"""Tests that need the extra ``kernels``: hundreds of megabytes that the other tests do without.

Where it is not installed they are not collected, and the closing lines say so.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

INSTALLED = all(find_spec(name) for name in ("torch", "tilelang"))

collect_ignore_glob = [] if INSTALLED else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not INSTALLED:
        terminalreporter.write_line(
            "tests/evidence was left out: it wants the extra kernels (pip install -e '.[kernels]')"
        )
