"""``python -m builder`` is ``overlay``."""

from builder.cli import main

main()
