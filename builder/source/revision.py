"""What a series is judged against: a release, a commit or branch of a repository, or a wheel."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.errors import InvalidInput, Unavailable
from builder.project.releases import known_releases, release_upstream, releases_after
from builder.project.spec import UpstreamSpec, Wheel
from builder.source.git import GitError, GitStore, is_object_id, run_git
from builder.source.upstream import (
    Mount,
    Progress,
    Upstream,
    fetch_address,
    peeled,
    repository_mount,
    resolve_upstream,
    wheel_mount,
)

ALL = "all"
_WHEEL_NAME = re.compile(r"([A-Za-z0-9_.]+)-([A-Za-z0-9_.!+]+)-[^/]+\.whl\Z")


@dataclass(frozen=True)
class Target:
    """A pristine tree to judge against.

    Args:
        name: as the user named it.
        upstream: its sources.
        pin: how a spec would pin it; None where it cannot (a wheel without an index, a local repository).
        repository: a repository with the history up to it; None without one.
        revision: its commit there.
        fetch: gets the sources of another commit where the repository has only the commits themselves.
    """

    name: str
    upstream: Upstream
    pin: UpstreamSpec | None = None
    repository: Path | None = None
    revision: str = ""
    fetch: Callable[[str], Upstream] | None = None


def expand_names(names: tuple[str, ...], pin: UpstreamSpec, root: Path | None) -> list[str]:
    """Target names with ``all`` as every known release after the pin; no name means the pin itself.

    Raises:
        InvalidInput: there is no release after the pin.
    """
    found: list[str] = []
    for name in names or (pin.release,):
        if name != ALL:
            found.append(name)
            continue
        after = releases_after(pin.release, root)
        if not after:
            raise InvalidInput(
                "no known release is newer than the pin",
                where="releases.yaml",
                found=pin.release,
                hint="add the new release to releases.yaml, or name REPOSITORY@REVISION",
            )
        found += after
    return list(dict.fromkeys(found))


def find_target(
    name: str,
    pin: UpstreamSpec,
    cache: Path,
    *,
    url: str | None = None,
    source: str = "auto",
    root: Path | None = None,
    history: bool = False,
    progress: Progress,
) -> Target:
    """The tree that a user names.

    Args:
        name: a release, ``DIRECTORY@REVISION`` of a local repository, a wheel's file, or a commit (40 hex
            digits) or a branch of the upstream repository.
        pin: the overlay's own pin; it says where the upstream repository is.
        cache: where sources are kept.
        url: a mirror or local path of the repository.
        source: for a release: ``wheel``, ``repository`` or ``auto``.
        root: a directory whose ``releases.yaml`` is read as well.
        history: fetch the commits since the pin as well, where the repository is not a local one.
        progress: told what takes time.

    Raises:
        InvalidInput: there is no such target.
        Unavailable: it cannot be fetched.
    """
    target = _found(name, pin, cache, url, source, root, progress)
    commit = target.pin.commit if target.pin else None
    if not history or target.repository is not None or commit is None or pin.commit is None:
        return target
    progress(f"fetching the commits up to {name}")
    commits = fetch_commits(pin.repository, (pin.commit, commit), cache, url=url)
    return replace(target, repository=commits, revision=commit, fetch=_fetcher(pin, cache, url, progress))


def _found(
    name: str,
    pin: UpstreamSpec,
    cache: Path,
    url: str | None,
    source: str,
    root: Path | None,
    progress: Progress,
) -> Target:
    place, at, revision = name.rpartition("@")
    if at and Path(place).expanduser().is_dir():
        return _in_directory(name, Path(place).expanduser(), revision)
    if name.endswith(".whl") and Path(name).is_file():
        return _wheel_file(Path(name), cache, progress)
    if name == pin.release:
        upstream = resolve_upstream(pin, cache, source=source, url=url, progress=progress)
        return Target(name, upstream, peeled(pin, upstream))
    if name in known_releases(root):
        return _release(name, pin, cache, url, source, root, progress)
    if re.match(r"v\d+\.\d+", name) and url is None:
        release_upstream(name, root)  # it is not known: this says so
    if url is not None and Path(url).is_dir():
        return _in_mirror(name, Path(url), pin)
    commit = name if is_object_id(name) else _branch_head(url or pin.repository, name)
    mount = repository_mount(pin.repository, commit, cache, url=url, progress=progress)
    wanted = UpstreamSpec(repository=pin.repository, release=_label(name), commit=mount.commit)
    return Target(name, Upstream(name, "repository", (mount,)), wanted)


def pin_target(pin: UpstreamSpec, upstream: Upstream) -> Target:
    """The overlay's own pin as a target."""
    return Target(pin.release, upstream, peeled(pin, upstream))


def _release(
    name: str,
    pin: UpstreamSpec,
    cache: Path,
    url: str | None,
    source: str,
    root: Path | None,
    progress: Progress,
) -> Target:
    spec = release_upstream(name, root)
    wanted = spec.model_copy(update={"repository": pin.repository, "packages": pin.packages})
    if source == "repository" and wanted.commit is None and url is not None and Path(url).is_dir():
        return _in_mirror(name, Path(url), pin)
    upstream = resolve_upstream(wanted, cache, source=source, url=url, progress=progress)
    wanted = peeled(wanted, upstream)
    if url is not None and Path(url).is_dir() and wanted.commit is not None:
        return Target(name, upstream, wanted, Path(url), wanted.commit)
    return Target(name, upstream, wanted)


def _in_directory(name: str, directory: Path, revision: str) -> Target:
    inner = directory / ".git"
    store = GitStore(inner if inner.exists() else directory)
    commit = store.resolve(revision)
    if commit is None:
        raise InvalidInput(
            "the repository has no such commit",
            where=str(directory),
            found=revision,
            hint="a tag, a branch or a commit of that repository stands after the @",
        )
    return Target(name, Upstream(name, "repository", (Mount("", store, commit),)), None, directory, commit)


def _in_mirror(name: str, mirror: Path, pin: UpstreamSpec) -> Target:
    """A revision of a local mirror of the upstream repository: a spec can pin it by its commit."""
    target = _in_directory(name, mirror, name)
    wanted = UpstreamSpec(
        repository=pin.repository, release=_label(name), commit=target.revision, packages=pin.packages
    )
    return replace(target, pin=wanted)


def _wheel_file(path: Path, cache: Path, progress: Progress) -> Target:
    match = _WHEEL_NAME.match(path.name)
    if match is None:
        raise InvalidInput("not a wheel's file name", where=str(path), expected="NAME-VERSION-….whl")
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    wheel = Wheel(requirement=f"{match[1]}=={match[2]}", sha256=sha256)
    mount = wheel_mount(wheel, cache, wheel_file=path, progress=progress)
    release = f"v{match[2]}"
    return Target(release, Upstream(release, "wheel", (mount,)), UpstreamSpec(release=release, wheel=wheel))


def _branch_head(address: str, name: str) -> str:
    """The commit that a branch or tag of a repository is at; an annotated tag is peeled."""
    address = fetch_address(address)
    if name.startswith("-"):
        raise InvalidInput("not a name of a branch", where=name)
    try:
        rows = run_git(["ls-remote", "--", address], cwd=Path.cwd(), timeout=60).decode(errors="replace")
    except GitError as error:
        raise Unavailable(
            "the repository cannot be asked",
            where=address,
            hint="check the network, name a mirror with --upstream-url, or DIRECTORY@REVISION of a checkout",
            details=error.stderr,
        ) from error
    heads = {name: commit for commit, _, name in (row.partition("\t") for row in rows.splitlines())}
    for reference in (f"refs/tags/{name}^{{}}", f"refs/tags/{name}", f"refs/heads/{name}"):
        if reference in heads:
            return heads[reference]
    raise InvalidInput(
        "the repository has no such branch or tag",
        where=address,
        found=name,
        hint="name a release, a commit (40 hex digits), a branch, or DIRECTORY@REVISION",
    )


def _fetcher(
    pin: UpstreamSpec, cache: Path, url: str | None, progress: Progress
) -> Callable[[str], Upstream]:
    def fetch(commit: str) -> Upstream:
        mount = repository_mount(pin.repository, commit, cache, url=url, progress=progress)
        return Upstream(commit, "repository", (mount,))

    return fetch


def fetch_commits(repository: str, commits: Sequence[str], cache: Path, *, url: str | None = None) -> Path:
    """A repository of commits alone, without their files, and of the release tags; in the cache.

    Args:
        repository: the spec's; names the place in the cache.
        commits: object ids; they and all before them are fetched.
        cache: the cache's directory.
        url: a mirror to fetch from instead.

    Raises:
        InvalidInput: git may not fetch from there.
        Unavailable: it cannot be fetched.
    """
    address = fetch_address(url or repository)
    key = hashlib.sha256(repository.encode()).hexdigest()[:16]
    store = GitStore.create(cache / f"history-{key}.git")
    for setting, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.url": address,
        "remote.origin.promisor": "true",
    }.items():
        store.git("config", setting, value)
    # By reference: a commit's id alone would be fetched from the remote as it is asked for.
    if any(store.resolve(f"refs/history/{commit}") is None for commit in commits):
        wanted = [*(f"{commit}:refs/history/{commit}" for commit in commits), "refs/tags/v*:refs/tags/v*"]
        fetch = ("fetch", "--quiet", "--force", "--no-tags", "--filter=tree:0", "--no-write-fetch-head")
        try:
            store.git(*fetch, "origin", *wanted)
        except GitError as error:
            raise Unavailable(
                "the commits cannot be fetched",
                where=address,
                hint="check the network; or leave out --history, or name a checkout: DIRECTORY@REVISION",
                details=error.stderr,
            ) from error
    return store.path


def _label(name: str) -> str:
    """A target's name as a spec's release may be written."""
    return re.sub(r"[^A-Za-z0-9._+-]", "-", name)
