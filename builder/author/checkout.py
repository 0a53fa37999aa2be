"""Opening a work tree: a sparse partial clone of the release, and the series on top of it as commits."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from builder.author.export import draft_of, head_of
from builder.author.series_directory import SeriesDirectory
from builder.author.worktree import NAME_TRAILER, UPSTREAM_HEAD, WorkTree
from builder.errors import UsageError
from builder.patch.apply import AppliedSeries, PatchReport, quoted_path
from builder.patch.canonical import Draft
from builder.patch.message import Head, commit_message, raw_date, split_author, write_head
from builder.patch.patch import Patch
from builder.source.git import GitError
from builder.source.upstream import Mount, Upstream, fetch_blobs
from builder.temporary import sweep_directories, temporary_directory

# What the user's own git must not do to the files and messages in here, whatever it is set up for.
_LOCAL = {
    "core.autocrlf": "false", "core.safecrlf": "false", "core.commentChar": ";", "gc.auto": "0",
    "rebase.autoSquash": "true", "rerere.enabled": "false", "advice.updateSparsePath": "false",
}  # fmt: skip
_ATTRIBUTES = "* -text -filter -ident -working-tree-encoding !diff !merge !eol\n"


def worktree_of(series_directory: SeriesDirectory, state: Path) -> WorkTree:
    """Where the work tree of a series is, whether it is open or not.

    Args:
        series_directory: the series.
        state: the user's state directory; it outlives the cache, since there is work in it.
    """
    return WorkTree(
        state / "edit" / f"{series_directory.name}-{series_directory.root.key}", series_directory.name
    )


def series_key(directory: SeriesDirectory, upstream: Upstream) -> str:
    """Names a series' patches and release: what a work tree was made of."""
    return f"{directory.series().digest} on {upstream.main.commit}"


def holds_current_work(worktree: WorkTree, directory: SeriesDirectory, upstream: Upstream) -> bool:
    """Whether a work tree has something to write back to the series as it is now.

    Raises:
        UsageError: it has, but the patch files changed since it was made of them.
    """
    if not worktree.exists():
        return False
    state = worktree.state()
    if worktree.exported_key() == series_key(directory, upstream) or state.busy:
        return not state.idle
    if not state.idle:
        raise UsageError(
            "the patch files changed while the work tree holds work that is not exported",
            where=str(worktree.path),
            expected="the series that it was made of",
            hint=f"write the work elsewhere and compare: overlay patch export {directory.name} --output DIR; "
            "then put the patch files back, or remove the work tree",
        )
    return False


def open_worktree(
    worktree: WorkTree, series_directory: SeriesDirectory, upstream: Upstream, applied: AppliedSeries
) -> bool:
    """The work tree as it was left; made anew where there is none, or where it holds no work and is outdated.

    Args:
        worktree: where it is.
        series_directory, upstream: the series and its release.
        applied: the series tried on the release; patches from the first that fails on are left to ``git am``.

    Returns:
        Whether it was made.

    Raises:
        UsageError: it holds work, but the patch files have changed meanwhile.
        PatchConflict: a patch does not apply; git stopped at it, for the user to resolve.
    """
    sweep_directories(worktree.path.parent)
    key = series_key(series_directory, upstream)
    if worktree.exists():
        if holds_current_work(worktree, series_directory, upstream) or worktree.exported_key() == key:
            return False
        shutil.rmtree(worktree.path)
    worktree.path.parent.mkdir(parents=True, exist_ok=True)
    good = _applying(applied)
    with temporary_directory("tree", worktree.path.parent) as directory:
        new = WorkTree(directory / "tree", series_directory.name)
        _make(new, upstream, applied, good, key)
        new.path.rename(worktree.path)
    rest = [report.patch for report in applied.reports[len(good) :]]
    if rest:
        _am(worktree, rest)
    return True


def _applying(applied: AppliedSeries) -> list[PatchReport]:
    """The patches before the first one that does not apply, or has files the release lacks."""
    good: list[PatchReport] = []
    for report in applied.reports:
        if report.problems:
            break
        good.append(report)
    return good


def _make(
    worktree: WorkTree, upstream: Upstream, applied: AppliedSeries, good: Sequence[PatchReport], key: str
) -> None:
    worktree.path.mkdir(parents=True, exist_ok=True)
    worktree.git("init", "--quiet", f"--initial-branch={worktree.series}", "--template=")
    for name, value in _LOCAL.items():
        worktree.git("config", name, value)
    (worktree.path / ".git" / "info").mkdir(exist_ok=True)
    (worktree.path / ".git" / "info" / "attributes").write_text(_ATTRIBUTES)
    directories = _directories(applied)
    base = _bring_release(worktree, upstream.main, directories)
    base = _bring_packages(worktree, upstream, base, applied)
    worktree.git("update-ref", UPSTREAM_HEAD, base)
    drafts = [draft_of(report) for report in good]
    branch = f"refs/heads/{worktree.series}"
    worktree.git("fast-import", "--quiet", "--date-format=raw", stdin=_commits(branch, base, drafts))
    patterns = [pattern for d in directories for pattern in (f"/{d}/*", f"!/{d}/*/")]
    worktree.git("sparse-checkout", "set", "--no-cone", *patterns)
    worktree.git("read-tree", "-m", "-u", "HEAD")
    worktree.mark_exported(key)


def _directories(applied: AppliedSeries) -> list[str]:
    """The directories of the files that the series touches, or SGLang's own where it touches none."""
    touched = {str(PurePosixPath(path).parent) for path in applied.before}
    return sorted(touched - {"."}) or ["python/sglang"]


def _bring_release(worktree: WorkTree, mount: Mount, directories: Sequence[str]) -> str:
    """Copy the release's commit, all its trees, and the blobs that will be checked out."""
    store = mount.store
    entries = store.entries(mount.commit)
    blobs = {entry.blob for path, entry in entries.items() if path.rpartition("/")[0] in directories}
    if mount.partial:
        fetch_blobs(store, sorted(blobs))
        address = store.git("config", "remote.origin.url").decode().strip()
    else:
        for name in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
            store.git("config", name, "true")
        address = str(store.path)
    trees = store.git("ls-tree", "-r", "-d", "--full-tree", mount.commit).decode("utf-8", "surrogateescape")
    ids = {line.split("\t")[0].split(" ")[2] for line in trees.splitlines()} | blobs
    root = store.git("rev-parse", f"{mount.commit}^{{tree}}").decode().strip()
    pack = store.git(
        "pack-objects", "--stdout", "-q", stdin="\n".join([mount.commit, root, *sorted(ids), ""]).encode()
    )
    settings = {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.url": address,
        "remote.origin.promisor": "true",
        "remote.origin.partialCloneFilter": "blob:none",
    }
    for name, value in settings.items():
        worktree.git("config", name, value)
    # The commit's own parents are not needed, and mostly not there.
    (worktree.path / ".git" / "shallow").write_text(f"{mount.commit}\n")
    worktree.git("index-pack", "--stdin", "--promisor", stdin=pack)
    return mount.commit


def _bring_packages(worktree: WorkTree, upstream: Upstream, base: str, applied: AppliedSeries) -> str:
    """A commit more for files of other packages that the series touches."""
    prefixes = tuple(mount.prefix for mount in upstream.mounts[1:])
    files = {path: file for path, file in applied.before.items() if file and path.startswith(prefixes)}
    if not prefixes:
        return base
    if not files:
        return base
    head = Head(b"overlay <overlay@localhost>", b"Thu, 1 Jan 1970 00:00:00 +0000", b"Other packages", b"")
    worktree.git(
        "fast-import", "--quiet", "--date-format=raw",
        stdin=_commits("refs/overlay/base", base, [Draft("", head, {}, files)], named=False),
    )  # fmt: skip
    return str(worktree.resolve("refs/overlay/base"))


def _commits(branch: str, base: str, drafts: Sequence[Draft], *, named: bool = True) -> bytes:
    """A stream for ``git fast-import``: one commit for each draft on top of ``base``."""
    stream = [f"reset {branch}\nfrom {base}\n\n".encode()]
    for draft in drafts:
        head = draft.head.with_trailer(NAME_TRAILER, draft.name) if named else draft.head
        name, mail = split_author(head.author)
        message = commit_message(head)
        stream.append(f"commit {branch}\n".encode())
        stream.append(b"author " + name + b" <" + mail + b"> " + raw_date(head.date).encode() + b"\n")
        stream.append(b"committer overlay <overlay@localhost> " + raw_date(head.date).encode() + b"\n")
        stream.append(b"data %d\n%s\n" % (len(message), message))
        stream += [b"D " + _path(path) + b"\n" for path in draft.before if path not in draft.after]
        for path, file in draft.after.items():
            stream.append(b"M %s inline %s\n" % (file.mode.encode(), _path(path)))
            stream.append(b"data %d\n%s\n" % (len(file.data), file.data))
    return b"".join(stream)


def commits_stream(branch: str, base: str, drafts: Sequence[Draft]) -> bytes:
    """A stream for ``git fast-import`` that makes a branch of a series, patch names left out."""
    return _commits(branch, base, drafts, named=False)


def _path(path: str) -> bytes:
    return quoted_path(path.encode("utf-8", "surrogateescape"))


def _am(worktree: WorkTree, patches: Sequence[Patch]) -> None:
    """Let git apply what we do not, three-way; where it stops, the user goes on."""
    mails = [
        write_head(head_of(patch).with_trailer(NAME_TRAILER, patch.name)) + b"---\n\n" + patch.diff
        for patch in patches
    ]
    try:
        worktree.git("am", "--quiet", "--3way", "--keep", "--keep-cr", stdin=b"\n".join(mails))
    except GitError as error:
        raise worktree.stopped("am") from error
