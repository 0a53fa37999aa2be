"""A series as a branch of somebody's git repository: one commit a patch on the pinned commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.author.checkout import commits_stream
from builder.errors import InvalidInput
from builder.patch.canonical import Draft
from builder.source.git import GitError, run_git


def write_branch(repository: Path, branch: str, commit: str | None, drafts: Sequence[Draft]) -> str:
    """Make or replace a branch.

    Args:
        repository: a work tree or bare repository that has the pinned commit.
        branch: its name, without ``refs/heads/``.
        commit: the pinned commit.
        drafts: the patches.

    Returns:
        The branch's new tip.

    Raises:
        InvalidInput: there is no such repository or commit, or the branch is checked out.
    """
    if commit is None:
        raise InvalidInput("the spec pins no commit", where="upstream.commit", hint="use --format mbox")
    try:
        run_git(["check-ref-format", f"refs/heads/{branch}"], cwd=repository)
        run_git(["rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"], cwd=repository)
        heads = run_git(
            ["for-each-ref", "--format=%(refname) %(worktreepath)", f"refs/heads/{branch}"], cwd=repository
        )
    except (GitError, FileNotFoundError, NotADirectoryError) as error:
        raise InvalidInput(
            "not a repository with the pinned commit, or not a branch name",
            where=f"{repository}, {branch}",
            expected=commit,
            hint=f"git -C {repository} fetch origin {commit}",
        ) from error
    if any(line.split(b" ", 1)[1] for line in heads.splitlines()):
        raise InvalidInput(
            "branch is checked out",
            where=str(repository),
            found=branch,
            hint="name another one with --branch",
        )
    stream = commits_stream(f"refs/heads/{branch}", commit, drafts)
    run_git(["fast-import", "--quiet", "--force", "--date-format=raw"], cwd=repository, stdin=stream)
    return run_git(["rev-parse", f"refs/heads/{branch}"], cwd=repository).decode().strip()
