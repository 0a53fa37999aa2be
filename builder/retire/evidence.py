"""What is known of one patch on one target, by kind of evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from builder.printable import counted
from builder.probe.harness import Answer
from builder.soundness.check import Flaw

HunkState = Literal["present", "carries", "ambiguous", "conflict", "gone"]
Proof = Literal["lines", "syntax", "no code", "hint", "doubt"]
TextProof = Literal["merge", "lines", "syntax", "earlier release"]
TextState = Literal["merged", "carries", "moves", "partial", "conflict", "gone"]


@dataclass(frozen=True)
class Standing:
    """What a target has already of a hunk that does not merge to nothing, or merges twice.

    Args:
        proof: ``lines`` (the added lines stand in the same definition, between the same neighbours, and no
            removed one is left), ``syntax`` (the definition is equal to the patched one but for what does not
            change what it does), ``no code`` (the hunk changes nothing but such things), ``hint`` (lines of
            it stand there; that is no proof), ``doubt`` (it is there, and perhaps not in what counts: the
            definition is there twice, or does what the pin's does).
        definition: the function, class or name that it is in.
        path: the file in the target.
        lines: first and last line of each run there, from 1.
        said: one sentence.
    """

    proof: Proof
    definition: str
    path: str
    lines: tuple[tuple[int, int], ...]
    said: str

    @property
    def place(self) -> str:
        """The file and its lines, as an editor takes them."""
        return _located(self.path, self.lines)

    def __str__(self) -> str:
        return f"{self.place}, in {self.definition}: {self.said}"


@dataclass(frozen=True)
class Place:
    """Lines of a file, first and last of each run, from 1, and the definition that they are in.

    ``like`` says of a whole definition what it has of the one that was looked for; empty of single lines.
    """

    path: str
    definition: str
    lines: tuple[tuple[int, int], ...]
    like: str = ""

    def __str__(self) -> str:
        like = f" ({self.like})" if self.like else ""
        return f"{_located(self.path, self.lines)}, in {self.definition}{like}"


def _located(path: str, lines: Sequence[tuple[int, int]]) -> str:
    spans = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in lines)
    return f"{path}:{spans}" if spans else path


@dataclass(frozen=True)
class HunkEvidence:
    """What became of one hunk.

    Args:
        path: the file, as the patch names it.
        number: the hunk's number in the file's diff, from 1; 0 where the whole file is meant.
        state: ``present`` (the target has it), ``carries`` (it merges at ``line``), ``ambiguous`` (it does
            not merge and its lines fit several places), ``conflict``, ``gone`` (the file is not there).
        line: where it carries, in the target with the patches before this one, from 1.
        places: the other lines at which its pre-image stands, from 1.
        moved_to: the file's name in the target, when it is another.
        details: the differing lines of a conflict.
        standing: what the target has of it already, where merging does not say so.
        went_to: where lines that it removes stand now, each at this one place only.
    """

    path: str
    number: int
    state: HunkState
    line: int | None = None
    places: tuple[int, ...] = ()
    moved_to: str | None = None
    details: str = ""
    standing: Standing | None = None
    went_to: tuple[Place, ...] = ()


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
        since: the earlier release in which it was merged as it is, where the target has changed it since.
        went_on: nothing of what it changes is as it was before the patch: what was merged once was not taken
            back.
        uses: names that stand nowhere in the target and that only another patch of the series adds, by that
            patch.
    """

    state: TextState
    hunks: tuple[HunkEvidence, ...]
    renames: Mapping[str, str] = field(default_factory=dict)
    merged_lines: bool = False
    note: str = ""
    since: str = ""
    went_on: bool = False
    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def carried(self) -> bool:
        """Whether the target with the patch in it exists."""
        return self.state in ("carries", "moves", "partial")

    @property
    def proof(self) -> TextProof | None:
        """By what it is known to be merged; the weakest kind where its hunks differ, None where it is not."""
        if self.state != "merged":
            return None
        proofs = {hunk.standing.proof for hunk in self.hunks if hunk.standing is not None}
        if self.since:
            return "earlier release"
        return "lines" if "lines" in proofs else "syntax" if "syntax" in proofs else "merge"

    @property
    def hints(self) -> tuple[Standing, ...]:
        """What stands in the target of hunks that are not known to be there."""
        return tuple(
            hunk.standing
            for hunk in self.hunks
            if hunk.state != "present" and hunk.standing is not None and hunk.standing.proof == "hint"
        )

    @property
    def doubts(self) -> tuple[Standing, ...]:
        """Why lines that are there may not be what counts."""
        found = (hunk.standing for hunk in self.hunks)
        return tuple(standing for standing in found if standing is not None and standing.proof == "doubt")

    @property
    def went_to(self) -> tuple[Place, ...]:
        """Where code that the patch changes stands now."""
        return tuple(dict.fromkeys(place for hunk in self.hunks for place in hunk.went_to))

    @property
    def how(self) -> str:
        """How it is merged, with the places; empty where it is not."""
        if self.state != "merged":
            return ""
        if self.since:
            return f"merged in {self.since}, changed since"
        standings = [hunk.standing for hunk in self.hunks if hunk.standing is not None]
        shown = [str(standing) for standing in standings if standing.proof in ("lines", "syntax")]
        if not shown:
            return "nothing is left of it when merged"
        more = f"; and {counted(len(shown) - 2, 'hunk')} more" if len(shown) > 2 else ""
        return "; ".join(shown[:2]) + more

    def __str__(self) -> str:
        present = sum(hunk.state == "present" for hunk in self.hunks)
        bad = [hunk for hunk in self.hunks if hunk.state in ("conflict", "ambiguous", "gone")]
        if self.state == "partial":
            return f"partial: {present} of {counted(len(self.hunks), 'hunk')} there"
        if self.state == "conflict":
            return f"conflict: {len(bad)} of {counted(len(self.hunks), 'hunk')}"
        if self.state == "moves":
            return "carries, files moved"
        if self.since:
            return f"merged in {self.since}, changed since"
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
class Landed:
    """A commit of a pull request that a patch says it is.

    Args:
        pull_request: such as ``#36755``.
        commit, subject: of the commit.
        contained: whether the target has it.
        release: the first release that has it; None where none has, or the target has it not.
        reverted_by, revert_subject: the later commit of the target that took it back; None where none did.
    """

    pull_request: str
    commit: str
    subject: str
    contained: bool
    release: str | None = None
    reverted_by: str | None = None
    revert_subject: str | None = None

    @property
    def stands(self) -> bool:
        """Whether the target has it, and no later commit says that it takes it back."""
        return self.contained and self.reverted_by is None

    def __str__(self) -> str:
        said = f"{self.pull_request} is {self.commit[:12]} {self.subject}"
        if not self.contained:
            return f"{said}, which the target does not have"
        since = f" since {self.release}" if self.release else ""
        if self.reverted_by is not None:
            return (
                f"{said}, in the target{since}, taken back by {self.reverted_by[:12]} {self.revert_subject}"
            )
        return f"{said}, in the target{since}"


@dataclass(frozen=True)
class Evidence:
    """All that is known of one patch on one target; None where a kind of evidence does not exist.

    ``notes`` are of what could not be looked at in the merged files, or was broken before the patch.
    """

    text: TextEvidence
    behaviour: Behaviour | None = None
    dependencies: tuple[Dependency, ...] = ()
    history: History | None = None
    landed: tuple[Landed, ...] = ()
    flaws: tuple[Flaw, ...] = ()
    clashes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The same facts for programs."""
        value = asdict(self)
        value["text"]["proof"] = self.text.proof
        return value
