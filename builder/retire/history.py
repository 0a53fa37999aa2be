"""Evidence by history: since which commit, and since which release, a target needs a patch no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.errors import InvalidInput
from builder.patch.patch import Patch
from builder.project.releases import release_order
from builder.retire.evidence import History
from builder.source.git import GitError, GitStore

MAX_RUNS = 12
"""How often a probe is run at most to find one commit; enough for 2,048 commits with none unknown."""

_PULL_REQUEST = re.compile(r"\(#(\d+)\)|Merge pull request #(\d+)")
_RELEASE = re.compile(r"v\d+\.\d+\.\d+(\.post\d+)?\Z")


@dataclass(frozen=True)
class Range:
    """The commits between a pin and a target of one repository.

    Args:
        repository: where they are.
        commits: first-parent commits of the target that the pin has not, oldest first.
        base: the newest commit that both have.
    """

    repository: GitStore
    commits: tuple[str, ...]
    base: str


def commits_between(repository: Path, pin: str, target: str) -> Range:
    """The commits in which a target may have changed since the pin.

    Args:
        repository: a repository with its history, bare or not.
        pin, target: commits or tags.

    Raises:
        InvalidInput: the repository lacks one of the two, or they have no commit in common.
    """
    inner = repository / ".git"
    store = GitStore(inner if inner.exists() else repository)
    ends = [store.resolve(name) for name in (pin, target)]
    for name, found in zip((pin, target), ends, strict=True):
        if found is None:
            raise InvalidInput("the repository has no such commit", where=str(repository), found=name)
    old, new = (str(end) for end in ends)
    try:
        base = store.git("merge-base", old, new).decode().strip()
        rows = store.git("rev-list", "--first-parent", "--reverse", f"{base}..{new}").decode().split()
    except GitError as error:
        raise InvalidInput(
            "the two have no history in common", where=str(repository), found=f"{pin}, {target}"
        ) from error
    return Range(store, tuple(rows), base)


def bisect(span: Range, changed: Callable[[str], bool | None], *, max_runs: int = MAX_RUNS) -> History:
    """The first commit of a range in which something has changed, where its end has and its base has not.

    Args:
        span: the range.
        changed: asked about a commit; None where it cannot tell, then a neighbour is asked.
        max_runs: how often it is asked at most.
    """
    low, high, runs = -1, len(span.commits) - 1, 0
    untold: set[int] = set()
    while high - low > 1 and runs < max_runs:
        middle = _untried(low, high, untold)
        if middle is None:
            break
        runs += 1
        answer = changed(span.commits[middle])
        if answer is None:
            untold.add(middle)
        elif answer:
            high = middle
        else:
            low = middle
    if high - low == 1:
        return _described(span, high, runs)
    note = f"one of the {high - low} commits {span.commits[low + 1][:12]}..{span.commits[high][:12]}"
    return History("bisection", first_release(span.repository, span.commits[high]), runs=runs, note=note)


def _untried(low: int, high: int, untold: set[int]) -> int | None:
    """The commit nearest to the middle that was not asked in vain."""
    middle = (low + high) // 2
    inner = sorted((n for n in range(low + 1, high) if n not in untold), key=lambda n: abs(n - middle))
    return inner[0] if inner else None


def _described(span: Range, number: int, runs: int) -> History:
    commit = span.commits[number]
    subject = span.repository.git("log", "-1", "--format=%s", commit).decode(errors="replace").strip()
    release = first_release(span.repository, commit)
    return History("bisection", release, commit, subject, pull_request_of(subject), runs)


def pickaxe(span: Range, patch: Patch) -> History | None:
    """The first commit that has all of a patch's added lines, by text; None when there is no such commit.

    Used where no probe can decide: it finds who wrote the lines, not whether they work.
    """
    last: int = -1
    order = {commit: number for number, commit in enumerate(span.commits)}
    for diff in patch.files:
        for hunk in diff.hunks:
            added = max((line[1:].strip() for line in hunk.lines if line[:1] == b"+"), key=len, default=b"")
            if not added:
                continue
            wanted = "-S" + added.decode("utf-8", "surrogateescape")
            within = f"{span.base}..{span.commits[-1]}"
            options = ("--first-parent", "-m", "--reverse", "--format=%H", wanted, within)
            found = span.repository.git("log", *options, "--", diff.path)
            rows = found.decode().split()
            if not rows:
                return None
            last = max(last, order[rows[0]])
    if last < 0:
        return None
    return replace(_described(span, last, 0), method="pickaxe")


def first_release(repository: GitStore, commit: str) -> str | None:
    """The first release whose tag has the commit; None when none has."""
    tags = repository.git("tag", "--contains", commit).decode().split()
    return min((tag for tag in tags if _RELEASE.match(tag)), key=release_order, default=None)


def pull_request_of(subject: str) -> str | None:
    """The pull request that a commit's subject names, such as ``#36755``."""
    found = _PULL_REQUEST.findall(subject)
    return f"#{found[-1][0] or found[-1][1]}" if found else None


def by_releases(asked: Sequence[tuple[str, bool]], pin: str, known: Sequence[str]) -> History:
    """The first of the releases asked in which something has changed, for good.

    Args:
        asked: release and whether it had changed there, the pin's own included.
        pin: the pin's release.
        known: every release there is, to say which were not asked.
    """
    ordered = sorted(asked, key=lambda pair: release_order(pair[0]))
    first: str | None = None
    for release, changed in ordered:
        if not changed:
            first = None
        elif first is None:
            first = release
    if first is None:
        return History("releases", note="none of the releases asked")
    before = max((r for r, changed in ordered if not changed and release_order(r) < release_order(first)),
                 key=release_order, default=pin)  # fmt: skip
    between = [r for r in known if release_order(before) < release_order(r) < release_order(first)]
    note = f"not asked: {', '.join(between)}" if between else ""
    return History("releases", first, note=note)
