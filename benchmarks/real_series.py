"""A series of real one-file changes of upstream, to judge on every later release.

    python -m benchmarks.real_series DIRECTORY

Each patch is what one later release did to one file of the oldest release known, cut against that. So each is
merged in some releases and changed since in others, and none has a probe: what people bring who start from
patches of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from builder.project.project import cache_path
from builder.project.releases import known_releases, release_upstream, releases_after
from builder.source.git import GitStore
from builder.source.upstream import resolve_upstream

NAME = "real"
PATCHES = 31
MOST_LINES = 60
"""Lines that a patch adds and removes at most."""


def oldest_release() -> str:
    """The release that the series is cut for."""
    return next(name for name in known_releases() if len(releases_after(name)) == len(known_releases()) - 1)


def write_root(directory: Path, cache: Path, patches: int = PATCHES) -> None:
    """A root with one overlay, ``real``, on the oldest release; its wheels are brought into the cache.

    Args:
        directory: where it is made; it must not exist.
        cache: the cache's directory.
        patches: how many.
    """
    pin = oldest_release()
    base = release_upstream(pin)
    mount = resolve_upstream(base, cache, source="wheel").main
    series = directory / "patches" / pin
    for made in (directory / "overlays", directory / "patches" / "probes", series):
        made.mkdir(parents=True)
    (directory / "Dockerfile.in").write_text("FROM {{ base }}\n")
    later = releases_after(pin)
    taken: set[str] = set()
    names: list[str] = []
    for number, release in enumerate(later):
        commit = resolve_upstream(release_upstream(release), cache, source="wheel").main.commit
        wanted = patches * (number + 1) // len(later) - len(names)
        for path in _spread(_small_changes(mount.store, mount.commit, commit, taken), wanted):
            taken.add(path)
            stem = Path(path).stem.strip("_").replace("_", "-").lower()
            name = f"{release.replace('.', '-')}-{stem}-{len(names)}"
            names.append(name)
            (series / f"{name}.patch").write_bytes(_patch(mount.store, mount.commit, commit, path, name))
    (series / "series").write_text("".join(f"{name}.patch\n" for name in names))
    wheel = base.wheel
    if wheel is None:
        raise ValueError(f"{pin} has no wheel")
    pinned = f"wheel: {{requirement: {wheel.requirement}, sha256: {wheel.sha256}}}"
    (directory / "overlays" / f"{NAME}.yaml").write_text(
        f"name: {NAME}\nversion: '1'\ndate: 2026-12-01\nsummary: real changes of upstream\n"
        f"upstream:\n  release: {pin}\n  {pinned}\n"
        f"base: {{image: registry.example/sglang}}\npatches: {{series: {pin}}}\n"
    )


def _small_changes(store: GitStore, old: str, new: str, taken: set[str]) -> list[str]:
    """Python files that both have, of which a few lines changed."""
    out = store.git("diff-tree", "-r", "--no-renames", "--diff-filter=M", "--numstat", "-z", old, new)
    found = []
    for row in filter(None, out.split(b"\0")):
        added, removed, path = os.fsdecode(row).split("\t")
        if not path.endswith(".py") or path in taken or added == "-":
            continue
        if int(added) and int(added) + int(removed) <= MOST_LINES:
            found.append(path)
    return sorted(found)


def _spread(paths: Sequence[str], count: int) -> Iterator[str]:
    """``count`` of them, evenly over the whole list."""
    for number in range(count):
        yield paths[number * len(paths) // count]


def _patch(store: GitStore, old: str, new: str, path: str, name: str) -> bytes:
    diff = store.git("diff-tree", "-p", "--full-index", "--no-renames", old, new, "--", path)
    head = (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: T <t@example.org>\n"
        f"Date: Tue, 01 Dec 2026 00:00:00 +0000\nSubject: {name}\n\nAs upstream did.\n\n"
        "Upstream-Status: Backport [upstream]\n---\n\n"
    )
    return head.encode() + diff


def main(arguments: Sequence[str]) -> int:
    (directory,) = arguments
    write_root(Path(directory), cache_path())
    print(f"overlay diff {NAME} --root {directory} --upstream all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
