"""The pinned upstream as git objects in the user's cache: a commit of the repository, or a release wheel.

Both give the same blob ids for the files of one release. A wheel's ``sglang/…`` is imported as
``python/sglang/…``, without compiled extensions, as one deterministic commit; of the repository, a
partial clone fetches the commit's trees, and then only the blobs that are asked for.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from builder.apply import SourceFile
from builder.errors import InvalidInput, Unavailable
from builder.gitstore import GitError, GitStore, TreeEntry
from builder.spec import UpstreamSpec, Wheel, check_git_source

MAX_WHEEL_BYTES = 2 << 30
MAX_WHEEL_FILES = 200_000
DOWNLOAD_TIMEOUT = 600.0
SGLANG_PREFIX = "python/sglang"
METADATA_PATH = "python/sglang.dist-info/METADATA"

Progress = Callable[[str], None]

# The tags SGLang's release wheels are built for. A wheel is only unpacked, so they need not fit this machine.
_WHEEL_TAGS = (
    "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "abi3", "--abi", "none",
    "--platform", "any", "--platform", "manylinux_2_34_x86_64", "--platform", "manylinux_2_28_x86_64",
    "--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64",
)  # fmt: skip


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
            url is not None or _repository_store(spec, cache).resolve(spec.commit) is not None
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
        InvalidInput: the file's SHA-256 is another, or it is no sound wheel.
        Unavailable: it cannot be downloaded.
    """
    store = GitStore.create(cache / "wheels.git")
    reference = f"refs/wheels/{wheel.sha256}/{package}"
    commit = store.resolve(reference)
    if commit is None:
        with FileLock(cache / "wheels.lock", timeout=DOWNLOAD_TIMEOUT):
            commit = store.resolve(reference)
            if commit is None:
                path = wheel_file or download_wheel(wheel, cache, progress=progress)
                _check_sha256(path, wheel)
                progress(f"importing {path.name}")
                commit = _import_wheel(store, path, wheel, package)
                store.git("update-ref", reference, commit)
    return Mount("" if package == "sglang" else "site-packages/", store, commit)


def download_wheel(wheel: Wheel, cache: Path, *, progress: Progress = _silent) -> Path:
    """The wheel's file, from the cache or the package index that pip is set up for.

    Raises:
        InvalidInput: the index has the release, but no file with this SHA-256.
        Unavailable: the index does not answer, or has no such release.
    """
    directory = cache / "wheels" / wheel.sha256
    there = sorted(directory.glob("*.whl")) if directory.is_dir() else []
    if there:
        return there[0]
    progress(f"downloading {wheel.requirement}")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".new-") as new:
        pinned = Path(new) / "requirements.txt"
        pinned.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
        (Path(new) / "out").mkdir()
        arguments = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-input", *_WHEEL_TAGS]
        _pip([*arguments, "--dest", str(Path(new) / "out"), "--require-hashes", "-r", str(pinned)], wheel)
        if not directory.exists():
            (Path(new) / "out").rename(directory)
    return next(iter(sorted(directory.glob("*.whl"))))


def _pip(arguments: Sequence[str], wheel: Wheel) -> None:
    """Run pip of this Python, else one on the PATH."""
    command = [sys.executable, "-m", "pip"]
    if subprocess.run([*command, "--version"], capture_output=True, check=False).returncode:
        found = shutil.which("pip3") or shutil.which("pip")
        if found is None:
            raise Unavailable(
                "there is no pip to download the wheel with",
                where=wheel.requirement,
                hint="install pip, or give the wheel's file with --wheel FILE",
            )
        command = [found]
    try:
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            check=False,
            timeout=DOWNLOAD_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            "the package index did not answer in time",
            where=wheel.requirement,
            expected=f"a download within {DOWNLOAD_TIMEOUT:.0f} s",
            hint="check the network; or give the wheel's file with --wheel FILE",
        ) from error
    if done.returncode == 0:
        return
    said = _without_secrets(done.stderr.decode(errors="replace"))
    if "DO NOT MATCH THE HASHES" in said or "HASHES" in said.upper():
        raise InvalidInput(
            "the package index has another file than the spec pins",
            where=f"upstream.wheel {wheel.requirement}",
            expected=f"sha256 {wheel.sha256}",
            hint="check the sha256 in the spec against the index's own page of the release",
            details=said,
        )
    raise Unavailable(
        "the wheel cannot be downloaded",
        where=wheel.requirement,
        hint="check the network and pip's index settings; or give the wheel's file with --wheel FILE",
        details=said,
    )


def _without_secrets(text: str) -> str:
    """Text with credentials in URLs taken out, and only its last lines."""
    return "\n".join(re.sub(r"://[^/@\s]+@", "://***@", text).strip().splitlines()[-8:])


def _check_sha256(path: Path, wheel: Wheel) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != wheel.sha256:
        raise InvalidInput(
            "wheel is not the one the spec pins",
            where=str(path),
            expected=f"sha256 {wheel.sha256}",
            found=f"sha256 {digest.hexdigest()}",
            hint="give the right file, or let overlay download it",
        )


def _import_wheel(store: GitStore, path: Path, wheel: Wheel, package: str) -> str:
    """Import a wheel's sources with ``git fast-import``; the commit depends on the wheel alone."""
    prefix = "python" if package == "sglang" else ""
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryFile() as stream:
        message = f"{wheel.requirement}\n\nwheel sha256:{wheel.sha256}\n".encode()
        stream.write(
            b"feature done\ncommit refs/overlay/import\ncommitter overlay <overlay@localhost> 0 +0000\n"
            + f"data {len(message)}\n".encode()
            + message
            + b"\n"
        )
        for info in _members(archive, path, package):
            name = info.filename if not info.filename.endswith(".dist-info/METADATA") else None
            target = f"{prefix}/{name}".lstrip("/") if name else METADATA_PATH.replace("sglang", package)
            executable = stat.S_IMODE(info.external_attr >> 16) & 0o111
            data = archive.read(info)
            stream.write(
                f"M {'100755' if executable else '100644'} inline {target}\ndata {len(data)}\n".encode()
            )
            stream.write(data + b"\n")
        stream.write(b"done\n")
        stream.seek(0)
        store.git("fast-import", "--quiet", "--force", "--done", "--date-format=raw", stdin=stream)
    commit = store.resolve("refs/overlay/import")
    if commit is None:
        raise InvalidInput("wheel holds no sources", where=str(path))
    return commit


def _members(archive: zipfile.ZipFile, path: Path, package: str) -> list[zipfile.ZipInfo]:
    """The wheel's source files, checked: sizes, names, nothing outside the package."""
    infos = archive.infolist()
    if len(infos) > MAX_WHEEL_FILES or sum(info.file_size for info in infos) > MAX_WHEEL_BYTES:
        raise InvalidInput(
            "wheel is too large",
            where=str(path),
            expected=f"at most {MAX_WHEEL_FILES} files and {MAX_WHEEL_BYTES} bytes",
        )
    taken: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename
        if info.is_dir() or name.endswith((".so", ".pyd", ".dylib")):
            continue
        parts = name.split("/")
        if (
            any(part in ("", ".", "..", ".git") for part in parts)
            or '"' in name
            or "\n" in name
            or "\\" in name
        ):
            raise InvalidInput("wheel names a path outside its package", where=str(path), found=repr(name))
        is_metadata = len(parts) == 2 and parts[0].endswith(".dist-info") and parts[1] == "METADATA"
        if parts[0] == package or is_metadata:
            taken[name] = info
    if not any(name.startswith(f"{package}/") for name in taken):
        raise InvalidInput("wheel does not hold the package", where=str(path), expected=f"{package}/…")
    return [taken[name] for name in sorted(taken)]


# --- the repository -----------------------------------------------------------------------------------------


def _repository_store(spec: UpstreamSpec, cache: Path) -> GitStore:
    key = hashlib.sha256(spec.repository.encode()).hexdigest()[:16]
    return GitStore.create(cache / f"repository-{key}.git")


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
    address = url or repository
    try:
        check_git_source(address)
    except ValueError as error:
        raise InvalidInput("not a place to fetch from", where=address, expected=str(error)) from error
    if "://" not in address and Path(address).exists():
        address = str(Path(address).resolve())
    key = hashlib.sha256(repository.encode()).hexdigest()[:16]
    store = GitStore.create(cache / f"repository-{key}.git")
    found = store.resolve(commit)
    if found is None:
        with FileLock(cache / f"repository-{key}.lock", timeout=DOWNLOAD_TIMEOUT):
            found = store.resolve(commit)
            if found is None:
                progress(f"fetching {commit[:12]} from {_without_secrets(address)}")
                found = _fetch_commit(store, address, commit)
    return Mount("", store, found, partial=True)


def _fetch_commit(store: GitStore, address: str, commit: str) -> str:
    for key, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.url": address,
        "remote.origin.promisor": "true",
        "remote.origin.partialCloneFilter": "blob:none",
    }.items():
        store.git("config", key, value)
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
    said = _without_secrets(error.stderr)
    if re.search(
        r"not our ref|unadvertised object|couldn't find remote ref|no such remote ref", said, re.IGNORECASE
    ):
        return InvalidInput(
            "the repository has no such commit",
            where=_without_secrets(address),
            expected=commit,
            hint="check upstream.commit in the spec; a commit of a fork needs --upstream-url of that fork",
            details=said,
        )
    return Unavailable(
        "the repository cannot be fetched from",
        where=_without_secrets(address),
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
