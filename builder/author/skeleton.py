"""Skeletons: a new patch, a new overlay. What is left to fill in says TODO, and lint finds it."""

from __future__ import annotations

import datetime

from builder.errors import InvalidInput
from builder.patch.message import Head, date_of
from builder.project.project import Root
from builder.project.spec import read_spec
from builder.project.spec_edit import SpecText
from builder.project.whole_file import write_whole

DEFAULT_AUTHOR = "overlay maintainers <maintainers@sglang-overlay.dev>"


def patch_head(author: str, day: datetime.date) -> Head:
    """The head of a patch that is yet to be written."""
    text = (
        "TODO: the symptom, its cause, what this changes, and how it was verified.\n\n"
        f"Upstream-Status: Pending\nForwarded: no\nLast-Update: {day.isoformat()}"
    )
    subject = "TODO: where: what this does"
    return Head(author.encode("utf-8", "surrogateescape"), date_of(day), subject.encode(), text.encode())


def new_overlay(root: Root, name: str, template: str, day: datetime.date) -> str:
    """Write ``overlays/NAME.yaml`` from another overlay's spec: same pins and series, comments kept.

    Args:
        root: where specs are.
        name: the new overlay.
        template: the overlay to start from.
        day: the date of its first version.

    Returns:
        The file that was written, relative to the root.

    Raises:
        InvalidInput: there is one of this name already, none to start from, or the name cannot be one; or the
            root is the installed package's, or may not be written to.
    """
    root.check_writable()
    source = root.spec_path(template)
    target = root.overlays / f"{name}.yaml"
    if name in root.names():
        raise InvalidInput("there is an overlay of this name", where=str(target), hint="choose another name")
    if "/" in name or name.startswith("."):
        raise InvalidInput("not a name of an overlay", found=name, expected="letters, digits, '.', '_', '-'")
    text = SpecText(source, source.read_text("utf-8"))
    text.set(["name"], name)
    text.set(["version"], "1")
    text.set(["date"], day.isoformat())
    text.set(["summary"], f"TODO: what {name} is for")
    write_whole(target, text.text.encode())
    try:
        read_spec(target)
    except InvalidInput:
        target.unlink()
        raise
    return str(target.relative_to(root.path))
