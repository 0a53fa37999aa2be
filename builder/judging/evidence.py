"""What is known of one patch on one target, by kind of evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from builder.probe.harness import Answer

HunkState = Literal["present", "carries", "ambiguous", "conflict", "gone"]
TextState = Literal["merged", "carries", "moves", "partial", "conflict", "gone"]


@dataclass(frozen=True)
class HunkEvidence:
    """What became of one hunk.

    Args:
        path: the file, as the patch names it.
        number: the hunk's number in the file's diff, from 1; 0 where the whole file is meant.
        state: ``present`` (the target has it), ``carries`` (it merges at ``line``), ``ambiguous`` (it
        does not
            merge and its lines fit several places), ``conflict``, ``gone`` (the file is not there).
        line: where it carries, in the target with the patches before this one, from 1.
        places: the other lines at which its pre-image stands, from 1.
        moved_to: the file's name in the target, when it is another.
        details: the differing lines of a conflict.
    """

    path: str
    number: int
    state: HunkState
    line: int | None = None
    places: tuple[int, ...] = ()
    moved_to: str | None = None
    details: str = ""


@dataclass(frozen=True)
class TextEvidence:
    """What merging the patch's text into the target says.

    Args:
        state: ``merged`` (nothing is left of it), ``carries``, ``moves`` (carries into renamed files),
            ``partial`` (some hunks are there, the others carry), ``conflict``, ``gone`` (no file of it
            is there).
        hunks: each hunk's state.
        renames: files that moved, old name to new.
        merged_lines: it carried by a three-way merge in files that the target changed, not by itself.
        note: what the reader should know of how this was found.
    """

    state: TextState
    hunks: tuple[HunkEvidence, ...]
    renames: Mapping[str, str] = field(default_factory=dict)
    merged_lines: bool = False
    note: str = ""

    @property
    def carried(self) -> bool:
        """Whether the target with the patch in it exists."""
        return self.state in ("carries", "moves", "partial")

    def __str__(self) -> str:
        present = sum(hunk.state == "present" for hunk in self.hunks)
        bad = [hunk for hunk in self.hunks if hunk.state in ("conflict", "ambiguous", "gone")]
        if self.state == "partial":
            return f"partial: {present} of {len(self.hunks)} hunks are there"
        if self.state == "conflict":
            return f"conflict: {len(bad)} of {len(self.hunks)} hunks"
        if self.state == "moves":
            return "carries, files moved"
        return self.state


@dataclass(frozen=True)
class Behaviour:
    """What the patch's probe says: of the pin, of the pristine target, and of the target with the patch.

    ``carried`` is None where the patch cannot be carried.
    """

    pin: Answer
    pristine: Answer
    carried: Answer | None

    def __str__(self) -> str:
        if self.carried is None or self.pristine.state in ("fixed", "absent"):
            return self.pristine.state
        return f"{self.pristine.state}, patched {self.carried.state}"


@dataclass(frozen=True)
class Dependency:
    """A distribution that the probe's answer hangs on, as the pin and the target ask for it.

    ``pinned`` and ``target`` are version specifiers such as ``==0.6.18``; None where the tree names none.
    """

    name: str
    pinned: str | None
    target: str | None
    source: str

    @property
    def changed(self) -> bool:
        return self.pinned != self.target

    def __str__(self) -> str:
        return f"{self.name} {self.pinned or 'unpinned'} -> {self.target or 'unpinned'}"


@dataclass(frozen=True)
class History:
    """Since when the target is as it is.

    Args:
        method: ``bisection``, ``pickaxe`` or ``releases``.
        release: the first release that has it; None where none of those asked has.
        commit, subject, pull_request: the first commit that has it.
        runs: how often the probe was run to find it.
        note: what limits this (such as releases in between that were not asked).
    """

    method: Literal["bisection", "pickaxe", "releases"]
    release: str | None = None
    commit: str | None = None
    subject: str | None = None
    pull_request: str | None = None
    runs: int = 0
    note: str = ""

    def __str__(self) -> str:
        commit = f"{self.commit[:12]} {self.subject}" if self.commit else ""
        return ", ".join(part for part in (self.release or "", commit) if part) or self.note


@dataclass(frozen=True)
class Evidence:
    """All that is known of one patch on one target; None where a kind of evidence does not exist."""

    text: TextEvidence
    behaviour: Behaviour | None = None
    dependencies: tuple[Dependency, ...] = ()
    history: History | None = None

    def as_json(self) -> dict[str, Any]:
        """The same facts for programs."""
        return asdict(self)
