"""Is everything there that overlay needs: git, a cache, registries and their logins, a Docker Engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import OverlayError
from builder.project.cache import damaged, list_entries

if TYPE_CHECKING:
    from builder.oci.reference import Reference
    from builder.oci.registry.client import Network

OLDEST_GIT = (2, 39)
LITTLE_SPACE = 1 << 30  # bytes
_ASK_TIMEOUT = 20.0  # seconds


class State(StrEnum):
    """How a thing is: a build works without what is ``missing``, and does not with what is ``broken``."""

    GOOD = "good"
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """What was found of one thing, and what to do about it."""

    name: str
    state: State
    text: str
    hint: str | None = None


def check_git() -> Finding:
    """git, and whether it is new enough."""
    program = shutil.which("git")
    if program is None:
        return Finding("git", State.BROKEN, "not on PATH", "install git 2.39 or newer")
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("git", State.BROKEN, f"{program} does not run: {error}")
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_GIT:
        return Finding(
            "git", State.BROKEN, f"{done.stdout.strip()} at {program}", "install git 2.39 or newer"
        )
    return Finding("git", State.GOOD, f"{done.stdout.strip()} at {program}")


def check_cache(cache: Path) -> Finding:
    """The cache: whether it can be written, how large it is, and what of it is damaged."""
    above = next(path for path in (cache, *cache.parents) if path.exists())
    if not os.access(above, os.W_OK):
        return Finding("cache", State.BROKEN, f"{above} cannot be written", "name another one: OVERLAY_CACHE")
    try:
        entries, wrong = list_entries(cache), damaged(cache)
    except OverlayError as error:
        return Finding("cache", State.BROKEN, f"{error.what}: {error.found}")
    text = f"{sum(entry.size for entry in entries):,} bytes in {cache}"
    if wrong:
        names = ", ".join(path.name[:24] for path in wrong[:3])
        return Finding(
            "cache", State.MISSING, f"{text}; {len(wrong)} damaged: {names}", "overlay cache prune"
        )
    free = shutil.disk_usage(above).free
    if free < LITTLE_SPACE:
        return Finding(
            "cache", State.MISSING, f"{text}; {free:,} bytes free", "overlay cache prune --unused 0"
        )
    return Finding("cache", State.GOOD, text)


def check_sandbox() -> Finding:
    """What keeps a probe, which runs code of the tree it is asked about, in its process."""
    from builder.probe.confinement import FULL, SECCOMP
    from builder.probe.run import sandbox_limits

    held = sandbox_limits()
    lacking = [limit for limit in FULL if limit not in held]
    text = ", ".join(held) + (f"; this machine does not give {', '.join(lacking)}" if lacking else "")
    if SECCOMP in held:
        return Finding("sandbox", State.GOOD, text)
    hint = "without a filter of system calls ask about trees that you trust alone: overlay help probes"
    return Finding("sandbox", State.MISSING, text, hint)


def check_engine() -> Iterator[Finding]:
    """A Docker Engine, and a client for BuildKit; only --engine docker, --load and containers need them."""
    from builder.publish.docker_engine.connection import connect
    from builder.publish.docker_engine.program import find_build_program

    try:
        with connect() as engine:
            store = "images as blobs" if engine.stores_blobs else "images as layers"
            yield Finding("engine", State.GOOD, f"Docker Engine {engine.version()} at {engine.host}, {store}")
    except OverlayError as error:
        hint = "needed for --engine docker, --load and containers alone"
        yield Finding("engine", State.MISSING, f"{error.what} at {error.where}", hint)
    program = find_build_program()
    if program is None:
        text = "no docker client that can use BuildKit: --engine docker takes the classic builder"
        yield Finding("buildkit", State.MISSING, text, "install docker's buildx plugin")
    else:
        yield Finding("buildkit", State.GOOD, program.path + (" buildx" if program.buildx else ""))


def check_registries(references: Sequence[Reference], network: Network) -> Iterator[Finding]:
    """Whether each repository answers us, and with which login.

    Args:
        references: with a digest or tag that should be there, or neither.
        network: the registries.
    """
    from builder.oci.registry.credentials import config_files, find_login

    for reference in references:
        heard: list[str] = []
        try:
            login = find_login(reference.registry, config_files(), heard.append)
            who = f"as {login}" if login else "without a login"
            network.registry(reference.registry).ping()
            if reference.tag or reference.digest:
                found = network.repository(reference).head_manifest(reference.identifier)
                who += ", the image is there" if found else ", but the image is not there"
        except OverlayError as error:
            text = f"{error.what}: {error.found or error.where}"
            yield Finding(reference.name, State.BROKEN, text, error.hint)
            continue
        yield Finding(reference.name, State.GOOD, f"answers {who}", "; ".join(heard) or None)
