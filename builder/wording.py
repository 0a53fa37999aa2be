"""Numbers with their nouns."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Such as ``1 hunk`` or ``2 patches``.

    Args:
        number: how many.
        noun: for one.
        plural: for any other number; empty where the noun takes an ``s``.
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
