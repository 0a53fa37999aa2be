"""Errors of overlay: one class for each kind of exit code, each carrying its facts.

A step raises one of these; only ``builder.cli`` shows them (``builder.cli.output.report_error``).
"""

from __future__ import annotations

from collections.abc import Mapping


class OverlayError(Exception):
    """What went wrong, where, what was expected, what was found, and what to do.

    Args:
        what: one sentence that says what went wrong, with the noun it is about.
        where: file, patch, hunk, layer or reference it happened at.
        expected: what should have been there.
        found: what was there.
        hint: what the user can do about it; a command where there is one.
        details: further lines (a diff, the differing context), shown verbatim.
        facts: machine-readable facts for ``--json`` beside the ones above.
    """

    exit_code = 1
    kind = "error"

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
        details: str | None = None,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.hint = hint
        self.details = details
        self.facts = dict(facts or {})

    def as_json(self) -> dict[str, object]:
        """The same facts as the text, for ``--json``."""
        named = {
            "kind": self.kind,
            "exit_code": self.exit_code,
            "what": self.what,
            "where": self.where,
            "expected": self.expected,
            "found": self.found,
            "hint": self.hint,
            "details": self.details,
        }
        return {key: value for key, value in named.items() if value is not None} | self.facts


class InvalidInput(OverlayError):
    """A spec, patch, reference or template is not what its format asks for (exit 1)."""

    kind = "invalid-input"


class UsageError(OverlayError):
    """The command line asks for something that cannot be (exit 2)."""

    exit_code = 2
    kind = "usage"


class PatchConflict(OverlayError):
    """A patch of the series does not apply to the pinned upstream (exit 3)."""

    exit_code = 3
    kind = "patch-conflict"


class ImageMismatch(OverlayError):
    """The base or an image is not what it should be (exit 5)."""

    exit_code = 5
    kind = "image-mismatch"


class NotReproducible(OverlayError):
    """Two builds of the same inputs differ (exit 6)."""

    exit_code = 6
    kind = "not-reproducible"


class ProbeFailed(OverlayError):
    """A probe does not say ``defect`` before, or ``fixed`` after, its patch (exit 7)."""

    exit_code = 7
    kind = "probe-failed"


class Unavailable(OverlayError):
    """A registry, the network, git's remote or the Docker Engine failed (exit 8)."""

    exit_code = 8
    kind = "unavailable"
