"""Which patches has upstream made unnecessary? Evidence of several kinds, one verdict (docs/retirement.md).

In: a series on its pin, and target trees. Out: a verdict for each patch and target; a series without the
patches that are merged; a series on another release. Read first: ``evaluate.judge`` and ``verdict.decide``.
"""
