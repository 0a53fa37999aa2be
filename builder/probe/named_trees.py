"""The trees that probes are asked about, by what people call them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from builder.errors import InvalidInput
from builder.patch.apply import AppliedSeries, apply_series
from builder.patch.series import chosen_series
from builder.probe.harness import Tree
from builder.probe.trees import DirectoryTree, GitTree, MappingTree
from builder.project.project import Root
from builder.project.releases import release_upstream
from builder.project.spec import read_spec
from builder.source.upstream import Upstream, fetch_blobs, resolve_upstream

_RELEASE = re.compile(r"v\d+\.\d+\.\d+[A-Za-z0-9.]*\Z")
_OVERLAY = "overlay:"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class NamedTree:
    """A tree, how it is called, and what it is exactly (for the record)."""

    name: str
    origin: str
    tree: Tree


def pristine_tree(upstream: Upstream) -> GitTree:
    """The pinned upstream as it is."""
    mount = upstream.main
    tree = GitTree(mount.store.path, mount.commit)
    if mount.partial:
        # A probe may read any source file: one request for all of them, not one for each.
        entries = mount.store.entries(mount.commit)
        sources = [path for path in entries if path.startswith("python/sglang/") and path.endswith(".py")]
        fetch_blobs(mount.store, [entries[path].blob for path in sources])
    return tree


def patched_tree(pristine: Tree, applied: AppliedSeries) -> MappingTree:
    """The pinned upstream with a series applied."""
    after = {path: None if source is None else source.data for path, source in applied.after.items()}
    return MappingTree(after, under=pristine)


def find_tree(name: str, root: Root, cache: Path, progress: Progress) -> NamedTree:
    """The tree that a command line names.

    Args:
        name: ``overlay:NAME`` (its pin with its series applied), a release (``v0.5.20``), a directory
            with ``python/sglang`` in it, or ``DIRECTORY@REVISION`` of a git repository.
        root: where overlays are.
        cache: where upstream sources are kept.
        progress: told what takes time.

    Raises:
        InvalidInput: there is no such tree.
        PatchConflict: the overlay's series does not apply.
        Unavailable: the release cannot be fetched.
    """
    if name.startswith(_OVERLAY):
        return _overlay_tree(name, root, cache, progress)
    directory = Path(name).expanduser()
    if directory.is_dir():
        if not (directory / "python" / "sglang").is_dir():
            raise InvalidInput(
                "the directory holds no SGLang source", where=name, expected="a directory python/sglang in it"
            )
        return NamedTree(name, str(directory.resolve()), DirectoryTree(directory))
    place, at, revision = name.rpartition("@")
    if at and Path(place).expanduser().is_dir():
        tree = GitTree(Path(place).expanduser(), revision)
        return NamedTree(name, f"git tree {tree.tree_id}", tree)
    if _RELEASE.match(name):
        return _release_tree(name, cache, progress)
    raise InvalidInput(
        "there is no such tree",
        where=name,
        expected="overlay:NAME, a release such as v0.5.20, a directory, or DIRECTORY@REVISION",
        hint=f"did you mean overlay:{name}?" if name in root.names() else "overlay list shows the overlays",
    )


def _overlay_tree(name: str, root: Root, cache: Path, progress: Progress) -> NamedTree:
    spec = read_spec(root.spec_path(name.removeprefix(_OVERLAY)))
    series = chosen_series(root.patches, spec.patches)
    upstream = resolve_upstream(spec.upstream, cache, progress=progress)
    sources = upstream.files(series.paths)
    applied = apply_series(series, sources, upstream.main.store, drop=spec.patches.drop)
    origin = f"{spec.upstream.release} with {series.name} ({series.digest})"
    return NamedTree(name, origin, patched_tree(pristine_tree(upstream), applied))


def _release_tree(release: str, cache: Path, progress: Progress) -> NamedTree:
    upstream = resolve_upstream(release_upstream(release), cache, progress=progress)
    return NamedTree(release, f"{release} ({upstream.kind})", pristine_tree(upstream))
