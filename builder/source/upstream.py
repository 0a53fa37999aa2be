"""The pinned upstream as git objects in the user's cache: a commit of the repository, or a release wheel.

Both give the same blob ids for the files of one release. A wheel's ``sglang/…`` is imported as
``python/sglang/…``, without compiled extensions, as one deterministic commit; of the repository, a
partial clone fetches the commit's trees, and then only the blobs that are asked for.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import InvalidInput, Unavailable
from builder.locking import exclusive
from builder.project.spec import UpstreamSpec, Wheel, check_git_source
from builder.source.files import SourceFile
from builder.source.git import GitError, GitStore, TreeEntry
from builder.source.wheel import check_wheel, download_wheel, read_wheel, without_secrets

Progress = Callable[[str], None]
METADATA_PATH = "python/sglang.dist-info/METADATA"


def _silent(_: str) -> None:
    return None


@dataclass(frozen=True)
class Mount:
    """A part of the source tree: a commit of a store, seen below a prefix (empty for the whole)."""

    prefix: str
    store: GitStore
    commit: str
    partial: bool = False


@dataclass(frozen=True)
class Upstream:
    """The pinned source tree.

    Args:
        release: the spec's release.
        kind: ``wheel`` or ``repository``.
        mounts: SGLang first, then other packages.
    """

    release: str
    kind: str
    mounts: tuple[Mount, ...]

    @property
    def main(self) -> Mount:
        """Where SGLang itself is."""
        return self.mounts[0]

    def entries(self, paths: Iterable[str] = ()) -> dict[str, TreeEntry]:
        """Mode and blob id of files, all or those at ``paths``."""
        wanted = list(paths)
        found: dict[str, TreeEntry] = {}
        for mount in self.mounts:
            inner = [_inside(mount, path) for path in wanted]
            asked = [path for path in inner if path is not None]
            if wanted and not asked:
                continue
            entries = mount.store.entries(mount.commit, asked)
            found |= {mount.prefix + path: entry for path, entry in entries.items()}
        return found

    def files(self, paths: Sequence[str]) -> dict[str, SourceFile]:
        """Mode and bytes of the files among ``paths`` that there are.

        Raises:
            Unavailable: a partial clone has to fetch one and cannot.
        """
        found: dict[str, SourceFile] = {}
        for mount in self.mounts:
            inner = {path: rest for path in paths if (rest := _inside(mount, path)) is not None}
            entries = mount.store.entries(mount.commit, inner.values()) if inner else {}
            if mount.partial:
                fetch_blobs(mount.store, [entry.blob for entry in entries.values()])
            blobs = mount.store.blobs(entry.blob for entry in entries.values())
            found |= {
                path: SourceFile(entries[rest].mode, blobs[entries[rest].blob])
                for path, rest in inner.items()
                if rest in entries
            }
        return found


def _inside(mount: Mount, path: str) -> str | None:
    return path[len(mount.prefix) :] if path.startswith(mount.prefix) else None


def resolve_upstream(
    spec: UpstreamSpec,
    cache: Path,
    *,
    source: str = "auto",
    url: str | None = None,
    wheel_file: Path | None = None,
    progress: Progress = _silent,
) -> Upstream:
    """The pinned source tree of a spec, fetched if it is not in the cache.

    Args:
        spec: the spec's ``upstream``.
        cache: the cache's directory.
        source: ``wheel``, ``repository``, or ``auto`` (what is cached; else the wheel, else the repository).
        url: a mirror or a local path to fetch the repository's commit from.
        wheel_file: a wheel that is already here, instead of a download.
        progress: told what takes time.

    Raises:
        InvalidInput: the spec has no such source, or the wheel's SHA-256 is another.
        Unavailable: it cannot be fetched.
    """
    if source == "auto":
        has_commit = spec.commit is not None and (
            url is not None or _is_cached(spec.repository, spec.commit, cache)
        )
        source = "repository" if spec.wheel is None or (has_commit and wheel_file is None) else "wheel"
    if source == "wheel":
        if spec.wheel is None:
            raise InvalidInput("spec has no wheel", where="upstream.wheel", hint="use --source repository")
        main = wheel_mount(spec.wheel, cache, wheel_file=wheel_file, progress=progress)
    else:
        if spec.commit is None:
            raise InvalidInput("spec has no commit", where="upstream.commit", hint="use --source wheel")
        main = repository_mount(spec.repository, spec.commit, cache, url=url, progress=progress)
    extra = [
        wheel_mount(wheel, cache, package=name, progress=progress)
        for name, wheel in sorted(spec.packages.items())
    ]
    return Upstream(spec.release, source, (main, *extra))


# --- the release wheel --------------------------------------------------------------------------------------


def wheel_mount(
    wheel: Wheel,
    cache: Path,
    *,
    package: str = "sglang",
    wheel_file: Path | None = None,
    progress: Progress = _silent,
) -> Mount:
    """A wheel's sources as a commit in the cache.

    Args:
        wheel: requirement and SHA-256.
        cache: the cache's directory.
        package: the import name; ``sglang`` lands at ``python/``, others at ``site-packages/``.
        wheel_file, progress: as in :func:`resolve_upstream`.

    Raises:
        InvalidInput: the file's SHA-256 is another, or it is not a sound wheel.
        Unavailable: it cannot be downloaded.
    """
    store = GitStore.create(cache / "wheels.git")
    reference = f"refs/wheels/{wheel.sha256}/{package}"
    commit = _imported(store, reference, wheel)
    if commit is None:
        with exclusive(cache / "wheels.lock", waiting=progress):
            commit = _imported(store, reference, wheel)
            if commit is None:
                store = _sound(store)
                path = wheel_file or download_wheel(wheel, cache, progress=progress)
                if wheel_file is not None:
                    check_wheel(wheel_file, wheel)
                progress(f"importing {path.name}")
                commit = _import_wheel(store, path, wheel, package)
                store.git("update-ref", reference, commit)
    return Mount("" if package == "sglang" else "site-packages/", store, commit)


def _imported(store: GitStore, reference: str, wheel: Wheel) -> str | None:
    """The commit that a wheel was imported as; None where there is none, or it is another wheel's."""
    try:
        found = store.git("cat-file", "--batch", stdin=f"{reference}\n".encode())
    except GitError:
        return None
    head, _, commit = found.partition(b"\n")
    return head.split()[0].decode() if f"\nwheel sha256:{wheel.sha256}\n".encode() in commit else None


def _sound(store: GitStore) -> GitStore:
    """The store, before it takes in something new; a damaged one is made anew."""
    return GitStore.renew(store.path) if store.is_damaged() else store


def _import_wheel(store: GitStore, path: Path, wheel: Wheel, package: str) -> str:
    """Import a wheel's sources with ``git fast-import``; the commit depends on the wheel alone."""
    prefix = "python/" if package == "sglang" else ""
    with tempfile.TemporaryFile() as stream:
        message = f"{wheel.requirement}\n\nwheel sha256:{wheel.sha256}\n".encode()
        stream.write(
            b"feature done\ncommit refs/overlay/import\ncommitter overlay <overlay@localhost> 0 +0000\n"
            + f"data {len(message)}\n".encode()
            + message
            + b"\n"
        )
        for file in read_wheel(path, package):
            is_source = file.path.startswith(f"{package}/")
            target = prefix + file.path if is_source else METADATA_PATH.replace("sglang", package)
            mode = "100755" if file.is_executable else "100644"
            stream.write(f"M {mode} inline {target}\ndata {len(file.data)}\n".encode())
            stream.write(file.data + b"\n")
        stream.write(b"done\n")
        stream.seek(0)
        store.git("fast-import", "--quiet", "--force", "--done", "--date-format=raw", stdin=stream)
    commit = store.resolve("refs/overlay/import")
    if commit is None:
        raise InvalidInput("wheel holds no sources", where=str(path))
    return commit


# --- the repository -----------------------------------------------------------------------------------------


def _repository_path(repository: str, cache: Path) -> Path:
    return cache / f"repository-{hashlib.sha256(repository.encode()).hexdigest()[:16]}.git"


def _is_cached(repository: str, commit: str, cache: Path) -> bool:
    path = _repository_path(repository, cache)
    return (path / "HEAD").exists() and GitStore(path).resolve(commit) is not None


def repository_mount(
    repository: str, commit: str, cache: Path, *, url: str | None = None, progress: Progress = _silent
) -> Mount:
    """A commit of the repository as a partial clone in the cache.

    Args:
        repository: the spec's repository; names the store.
        commit: 40 hex digits of a commit, or of an annotated tag (it is peeled).
        cache: the cache's directory.
        url: a mirror or local path to fetch from instead.
        progress: told what takes time.

    Raises:
        InvalidInput: the repository has no such commit.
        Unavailable: it cannot be reached.
    """
    address = fetch_address(url or repository)
    path = _repository_path(repository, cache)
    store = GitStore.create(path)
    found = store.resolve(commit)
    if found is None or not _fetches_from(store, address):
        with exclusive(path.with_suffix(".lock"), waiting=progress):
            found = store.resolve(commit)
            store = store if found else _sound(store)
            _set_origin(store, address)
            if found is None:
                progress(f"fetching {commit[:12]} from {without_secrets(address)}")
                found = _fetch_commit(store, address, commit)
    return Mount("", store, found, partial=True)


def fetch_address(address: str) -> str:
    """An address that git may fetch from, with the same meaning in every directory.

    Raises:
        InvalidInput: git may not fetch from there.
    """
    try:
        check_git_source(address)
    except ValueError as error:
        raise InvalidInput("not a place to fetch from", where=address, expected=str(error)) from error
    return absolute_address(address)


def absolute_address(address: str) -> str:
    """A repository's address that means the same in every directory: a path from where the command runs."""
    if "://" in address or not Path(address).expanduser().exists():
        return address
    return str(Path(address).expanduser().resolve())


def peeled(spec: UpstreamSpec, upstream: Upstream) -> UpstreamSpec:
    """The pin with the commit that its sources are of, where it names an annotated tag's object instead."""
    if upstream.kind != "repository" or spec.commit in (None, upstream.main.commit):
        return spec
    return spec.model_copy(update={"commit": upstream.main.commit})


def _fetches_from(store: GitStore, address: str) -> bool:
    """Whether blobs that are still missing would be asked of this address, and not of an earlier mirror."""
    return f"\turl = {address}\n" in (store.path / "config").read_text(errors="surrogateescape")


def _set_origin(store: GitStore, address: str) -> None:
    for key, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.url": address,
        "remote.origin.promisor": "true",
        "remote.origin.partialCloneFilter": "blob:none",
    }.items():
        store.git("config", key, value)


def _fetch_commit(store: GitStore, address: str, commit: str) -> str:
    fetch = ("fetch", "--quiet", "--no-tags", "--depth=1", "--filter=blob:none", "--no-write-fetch-head")
    try:
        store.git(*fetch, "origin", f"{commit}:refs/pins/{commit}")
    except GitError as error:
        raise _fetch_error(address, commit, error) from error
    found = store.resolve(commit)
    if found is None:
        raise InvalidInput("what was fetched is not a commit", where=address, found=commit)
    return found


def _fetch_error(address: str, commit: str, error: GitError) -> InvalidInput | Unavailable:
    """Tell a commit that is not there from a repository that is not."""
    said = without_secrets(error.stderr)
    if re.search(
        r"not our ref|unadvertised object|couldn't find remote ref|no such remote ref", said, re.IGNORECASE
    ):
        return InvalidInput(
            "the repository has no such commit",
            where=without_secrets(address),
            expected=commit,
            hint="check upstream.commit in the spec; a commit of a fork needs --upstream-url of that fork",
            details=said,
        )
    return Unavailable(
        "the repository cannot be fetched from",
        where=without_secrets(address),
        hint="check the network, name a mirror with --upstream-url, or use the release wheel: --source wheel",
        details=said,
    )


def fetch_blobs(store: GitStore, blobs: Sequence[str]) -> None:
    """Bring blobs into a partial clone in one request, unless this very set was brought before."""
    wanted = sorted(set(blobs))
    if not wanted:
        return
    done = store.path / "fetched" / hashlib.sha256("\n".join(wanted).encode()).hexdigest()
    if done.exists():
        return
    try:
        # No negotiation: who has the commit would be taken to have its blobs.
        negotiation = ("-c", "fetch.negotiationAlgorithm=noop")
        fetch = ("fetch", "--quiet", "--no-tags", "--filter=blob:none", "--no-write-fetch-head", "--stdin")
        store.git(*negotiation, *fetch, "origin", stdin="".join(f"{oid}\n" for oid in wanted).encode())
    except GitError as error:
        raise _fetch_error(
            store.git("config", "remote.origin.url").decode().strip(), wanted[0], error
        ) from error
    done.parent.mkdir(exist_ok=True)
    done.touch()
