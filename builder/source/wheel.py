"""A release wheel: brought by pip, held to its SHA-256, and what it holds as source (PEP 427)."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.errors import InvalidInput, Unavailable
from builder.project.spec import Wheel
from builder.temporary import temporary_directory

MAX_BYTES = 2 << 30
MAX_FILES = 200_000
DOWNLOAD_TIMEOUT = 600.0

Progress = Callable[[str], None]

_COMPILED = (".so", ".pyd", ".dylib")
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
# The tags SGLang's release wheels are built for. A wheel is only unpacked, so they need not fit this machine.
_WHEEL_TAGS = (
    "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "abi3", "--abi", "none",
    "--platform", "any", "--platform", "manylinux_2_34_x86_64", "--platform", "manylinux_2_28_x86_64",
    "--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64",
)  # fmt: skip


@dataclass(frozen=True)
class WheelFile:
    """A file of a wheel: its path in it, whether it is executable, its bytes."""

    path: str
    is_executable: bool
    data: bytes = field(repr=False)


# --- what is in it ------------------------------------------------------------------------------------------


def read_wheel(path: Path, package: str) -> Iterator[WheelFile]:
    """The sources of a wheel, one at a time: first its ``METADATA``, then ``PACKAGE/…`` by path.

    Compiled extensions are for one platform, and are left out.

    Args:
        path: the wheel's file.
        package: an import name, such as ``sglang``.

    Raises:
        InvalidInput: it is not a wheel of this package, damaged, too large, or names a path outside of it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for info in _members(archive, path, package):
                is_executable = bool(stat.S_IMODE(info.external_attr >> 16) & 0o111)
                yield WheelFile(info.filename, is_executable, archive.read(info))
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInput("the wheel cannot be read", where=str(path), found=str(error)) from error


def _members(archive: zipfile.ZipFile, path: Path, package: str) -> list[zipfile.ZipInfo]:
    """The wheel's metadata and source files, checked: sizes, names, nothing outside the package."""
    infos = [info for info in archive.infolist() if not info.is_dir()]
    unpacked = sum(info.file_size for info in infos)
    if len(infos) > MAX_FILES or unpacked > MAX_BYTES:
        raise InvalidInput(
            "wheel is too large",
            where=str(path),
            expected=f"at most {MAX_FILES} files and {MAX_BYTES} bytes",
            found=f"{len(infos)} files and {unpacked} bytes",
        )
    for info in infos:
        if _leaves_the_tree(info.filename):
            raise InvalidInput(
                "wheel names a path outside its package", where=str(path), found=repr(info.filename)
            )
    metadata = [info for info in infos if _METADATA.fullmatch(info.filename)]
    if len(metadata) != 1:
        raise InvalidInput(
            "not a wheel",
            where=str(path),
            expected="one *.dist-info/METADATA",
            found=f"{len(metadata)} of them",
        )
    # A name that stands twice is its last member, as for every reader of zip files.
    sources = {info.filename: info for info in infos if info.filename.startswith(f"{package}/")}
    if not sources:
        raise InvalidInput("wheel does not hold the package", where=str(path), expected=f"{package}/…")
    return metadata + [sources[name] for name in sorted(sources) if not name.endswith(_COMPILED)]


def _leaves_the_tree(name: str) -> bool:
    """Also names that git or a tar would take for something else."""
    return any(part in ("", ".", "..", ".git") for part in name.split("/")) or any(c in name for c in '"\n\\')


# --- where it comes from ------------------------------------------------------------------------------------


def check_wheel(path: Path, wheel: Wheel) -> None:
    """A file must be the wheel that a spec pins.

    Raises:
        InvalidInput: its SHA-256 is another.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise InvalidInput(
            "wheel is not the one that is pinned",
            where=str(path),
            expected=f"sha256 {wheel.sha256} ({wheel.requirement})",
            found=f"sha256 {digest}",
            hint="give the right file, or none; remove it if it lies in the cache: it is downloaded again",
        )


def download_wheel(wheel: Wheel, cache: Path, *, progress: Progress) -> Path:
    """The wheel's file, from the cache or the package index that pip is set up for.

    Args:
        wheel: requirement and SHA-256.
        cache: the cache's directory.
        progress: told what takes time.

    Raises:
        InvalidInput: the index has the release, but no file with this SHA-256.
        Unavailable: the index does not answer, or has no such release.
    """
    directory = cache / "wheels" / wheel.sha256
    if path := _downloaded(directory, wheel):
        return path
    progress(f"downloading {wheel.requirement}")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory("wheel", directory.parent) as new:
        pinned, out = new / "requirements.txt", new / "out"
        pinned.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
        out.mkdir()
        _run_pip(["--dest", str(out), "--require-hashes", "-r", str(pinned)], wheel)
        if os.path.lexists(directory):
            directory.rename(new / "damaged")
        out.rename(directory)
    (path,) = directory.glob("*.whl")
    return path


def _downloaded(directory: Path, wheel: Wheel) -> Path | None:
    """The wheel that was downloaded before; None where there is none, or it is not the one."""
    paths = list(directory.glob("*.whl"))
    if len(paths) != 1 or not paths[0].is_file():
        return None
    with paths[0].open("rb") as file:
        return paths[0] if hashlib.file_digest(file, "sha256").hexdigest() == wheel.sha256 else None


def _run_pip(arguments: Sequence[str], wheel: Wheel) -> None:
    """Have pip download a wheel."""
    options = ("download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-input", *_WHEEL_TAGS)
    try:
        done = subprocess.run(
            [*_pip(wheel), *options, *arguments],
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
    said = without_secrets(done.stderr.decode(errors="replace"))
    if b"DO NOT MATCH THE HASHES" in done.stderr:
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


def _pip(wheel: Wheel) -> list[str]:
    """This Python's pip, else one on the PATH."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0:
        return own
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise Unavailable(
            "there is no pip to download the wheel with",
            where=wheel.requirement,
            hint="install pip, or give the wheel's file with --wheel FILE",
        )
    return [found]


def without_secrets(text: str) -> str:
    """Text with credentials in URLs taken out, and only its last lines."""
    return "\n".join(re.sub(r"://[^/\s]+@", "://***@", text).strip().splitlines()[-8:])
