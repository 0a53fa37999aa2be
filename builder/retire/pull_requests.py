"""The commits of a patch's own pull requests: whether a target has them, and whether they were taken back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from builder.errors import Unavailable
from builder.patch.patch import Patch
from builder.retire.evidence import Landed
from builder.retire.history import first_release
from builder.source.git import GitError, GitStore

MOST_COMMITS = 200_000
_NUMBER = re.compile(r"\(#(\d{1,9})\)\s*\Z")
_ADDRESS = re.compile(r"https?://[^/\s]+/([^/\s]+/[^/\s]+)/(?:pull|-/merge_requests)/(\d{1,9})\b")
_REVERT = re.compile(r'(?:Revert|Reapply) "(.*)"\Z', re.DOTALL)
_TRAILERS = ("Applied-Upstream", "Origin", "Forwarded", "Bug", "Upstream-Status")


def requests_of(patch: Patch, repository: str) -> list[str]:
    """The numbers of the pull requests that a patch says it is, without duplicates.

    Args:
        patch: its subject may end in ``(#N)``; some trailers hold addresses.
        repository: the upstream's address; those of others do not count. Empty: all count.
    """
    found = [match[1] for match in [_NUMBER.search(patch.subject)] if match]
    own = re.search(r"([^/:\s]+/[^/\s]+?)(?:\.git)?/?\Z", repository) if "://" in repository else None
    for trailer in _TRAILERS:
        for value in patch.values(trailer):
            for name, number in _ADDRESS.findall(value):
                if own is None or name.lower() == own[1].lower():
                    found.append(number)
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class _Commit:
    oid: str
    subject: str


class Log:
    """The commits of a target and, where one is asked for that it lacks, of all its repository.

    Args:
        repository: with the history.
        revision: the target's commit; a repository that lacks it says nothing of the target.

    Raises:
        Unavailable: git cannot read the history.
    """

    def __init__(self, repository: GitStore, revision: str) -> None:
        self._repository = repository
        self._target = list(_commits(repository, [revision])) if repository.resolve(revision) else []
        self._rest: list[_Commit] | None = None

    def landed(self, number: str) -> Landed | None:
        """The last commit whose subject ends in ``(#N)``; None where the repository has none."""
        for contained, commits in ((True, self._target), (False, None)):
            rows = commits if commits is not None else self._others()
            at = next((n for n, commit in enumerate(rows) if _ends_in(commit.subject, number)), None)
            if at is not None:
                commit = rows[at]
                release = first_release(self._repository, commit.oid) if contained else None
                # the log begins with the newest
                revert = _reverted(commit, rows[:at]) if contained else None
                return Landed(
                    f"#{number}", commit.oid, commit.subject, contained, release,
                    revert.oid if revert else None, revert.subject if revert else None,
                )  # fmt: skip
        return None

    def _others(self) -> list[_Commit]:
        if self._rest is None:
            known = {commit.oid for commit in self._target}
            self._rest = [c for c in _commits(self._repository, ["--all"]) if c.oid not in known]
        return self._rest


def landed(log: Log, numbers: Iterable[str]) -> tuple[Landed, ...]:
    """What became of pull requests; those of which the repository knows nothing are left out."""
    return tuple(found for number in numbers if (found := log.landed(number)) is not None)


def _commits(repository: GitStore, which: list[str]) -> Iterator[_Commit]:
    try:
        out = repository.git("log", "-z", "--format=%H %s", f"--max-count={MOST_COMMITS}", *which, "--")
    except GitError as error:
        raise Unavailable(
            "the upstream's history cannot be read", where=str(repository.path), found=error.stderr.strip()
        ) from error
    for row in out.decode(errors="replace").split("\0"):
        oid, _, subject = row.strip("\n").partition(" ")
        if oid:
            yield _Commit(oid, subject)


def _ends_in(subject: str, number: str) -> bool:
    match = _NUMBER.search(subject)
    return match is not None and match[1] == number


def _reverted(commit: _Commit, later: list[_Commit]) -> _Commit | None:
    """The commit that took another back for good; None where it stands, or was put back again."""
    names = {commit.subject, _bare(commit.subject)}
    found: _Commit | None = None
    for one in reversed(later):
        subject, depth = _bare(one.subject), 0
        again = subject.startswith("Reapply ")
        while match := _REVERT.match(subject):
            subject, depth = match[1], depth + 1
            if subject in names or _bare(subject) in names:
                found = None if again or depth % 2 == 0 else one
                break
            subject = _bare(subject)
    return found


def _bare(subject: str) -> str:
    """A subject without the number of its own pull request."""
    return _NUMBER.sub("", subject).strip()
