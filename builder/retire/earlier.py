"""What was merged in an earlier release and has gone on since: told by several releases together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from builder.project.releases import release_order
from builder.retire.evidence import TextEvidence


def with_earlier(texts: Mapping[str, Mapping[str, TextEvidence]]) -> dict[str, dict[str, TextEvidence]]:
    """The evidence of a series on several targets, each read in the light of the releases before it.

    A patch that a release has as it is, and whose lines a later one has changed without going back to those
    before the patch, is merged there. A release in between that needs it ends that: it was taken back.

    Args:
        texts: by target and patch.
    """
    ordered = sorted((name for name in texts if release_order(name)[0]), key=release_order)
    found = {name: dict(rows) for name, rows in texts.items()}
    for patch in {patch for rows in texts.values() for patch in rows}:
        for name, text in _of_patch([(name, texts[name][patch]) for name in ordered if patch in texts[name]]):
            found[name][patch] = text
    return found


def _of_patch(row: Sequence[tuple[str, TextEvidence]]) -> list[tuple[str, TextEvidence]]:
    since = ""
    found = []
    for name, text in row:
        if text.state == "merged" and not text.doubts:
            since = since or name
        elif since and text.state in ("conflict", "gone") and text.went_on:
            found.append((name, replace(text, state="merged", since=since)))
        else:
            since = ""
    return found
