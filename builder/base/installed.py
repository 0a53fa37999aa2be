"""What is installed in an image: distributions by their metadata (PEP 376), and CUDA's version."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from builder.base.python_path import Distribution, distributions, find_interpreter, search_directories
from builder.errors import ImageMismatch
from builder.oci.rootfs import RootFS
from builder.project.requirements import ALTERNATIVES, CUDA, Installed

CUDA_FILE = "/usr/local/cuda/version.json"
CUDA_VARIABLE = "CUDA_VERSION"


def find_installed(
    rootfs: RootFS, names: Collection[str], environment: Mapping[str, str], *, working_dir: str
) -> tuple[Installed, tuple[str, ...]]:
    """The versions of some distributions, as the image's Python sees them, and of CUDA; and notes.

    Args:
        rootfs: the image's files.
        names: normalised (PEP 503); ``cuda`` is CUDA's.
        environment: of the image's config.
        working_dir: of its config.
    """
    versions: dict[str, str | None] = dict.fromkeys(sorted(set(names) - {CUDA}))
    if versions:
        try:
            interpreter = find_interpreter(rootfs, environment)
            places = search_directories(rootfs, interpreter, environment, working_dir)
        except ImageMismatch:
            places = []  # no Python: then nothing is installed for one
        versions |= _versions(distributions(rootfs, places, versions.keys()))
    if CUDA not in names:
        return versions, ()
    cuda, notes = _cuda(rootfs, environment)
    return {**versions, CUDA: cuda}, notes


def _versions(found: Iterable[Distribution]) -> dict[str, str]:
    """The version of each; every one where the directory that counts has several of a name."""
    there: dict[str, tuple[str, list[str]]] = {}
    for one in found:
        directory, versions = there.setdefault(one.normal_name, (one.directory, []))
        if one.directory == directory and one.version not in versions:
            versions.append(one.version)
    return {name: ALTERNATIVES.join(sorted(versions)) for name, (_, versions) in there.items()}


def _cuda(rootfs: RootFS, environment: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """CUDA's version: what the environment says, unless the toolkit that is there is another."""
    said = environment.get(CUDA_VARIABLE) or None
    there = _toolkit(rootfs)
    if said is None or there is None or _minor(said) == _minor(there):
        return said or there, ()
    return there, (f"the base says {CUDA_VARIABLE}={said}, and {CUDA_FILE}, which counts, says {there}",)


def _toolkit(rootfs: RootFS) -> str | None:
    found = rootfs.lookup(CUDA_FILE)
    try:
        value = json.loads((found and found.data) or b"null")
    except (ValueError, RecursionError):
        return None
    match value:
        case {"cuda": {"version": str(version)}}:
            return version
    return None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
