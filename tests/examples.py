"""How many examples a property is tried with."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("OVERLAY_EXAMPLES", "1"))


def examples(few: int) -> int:
    """``few`` in a run of the tests; ``make fuzz`` takes that many times ``OVERLAY_EXAMPLES``."""
    return few * TIMES
