"""Text from patches, images and registries, as people may be shown it: nothing in it steers a terminal."""

from __future__ import annotations

import re

_OWN_COLOR = r"\x1b\[(?:0|1|2|3[1-6])m"
_CONTROLS = re.compile(rf"{_OWN_COLOR}|[^\n\t]")  # a color, or one character


def printable(text: str, *, colors: bool = True) -> str:
    """``text`` with controls and format characters written out; line ends and tabs stay.

    A character that moves the cursor, hides or turns around what follows (Unicode's Cc and Cf, and whatever
    else Python takes for not printable) stands as the escape that names it.

    Args:
        text: anything.
        colors: whether the colors that this program prints stay as well.
    """
    if text.isprintable():
        return text
    return _CONTROLS.sub(
        lambda found: found[0] if colors and len(found[0]) > 1 else "".join(map(_written_out, found[0])), text
    )


def _written_out(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def counted(number: int, noun: str, plural: str = "") -> str:
    """Such as ``1 hunk`` or ``2 patches``.

    Args:
        number: how many.
        noun: for one.
        plural: for any other number; empty where the noun takes an ``s``.
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
