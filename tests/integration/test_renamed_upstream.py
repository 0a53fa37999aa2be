"""A release with other names and nothing fixed: no patch is called obsolete, and none is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.project.releases import release_upstream
from builder.source.git import GitStore, TreeEntry
from builder.source.upstream import resolve_upstream
from tests.conftest import Overlay
from tests.integration.test_diff_releases import CACHE

pytestmark = pytest.mark.integration

NAMES = {
    b"MessageQueue": b"RingOfMessages",
    b"tilelang_sparse_fwd": b"sparse_forward_by_tiles",
    b"_handle_max_mamba_cache": b"_size_state_cache",
    b"Glm4MoeLiteForCausalLM": b"Glm4LightMoeForCausalLM",
}


def renamed(directory: Path) -> Path:
    """A repository with one commit: v0.5.20, in which these names are others everywhere."""
    CACHE.mkdir(parents=True, exist_ok=True)
    mount = resolve_upstream(release_upstream("v0.5.20"), CACHE, source="wheel").main
    store = GitStore.create(directory / "renamed.git")
    (store.path / "objects/info/alternates").write_text(f"{mount.store.path / 'objects'}\n")
    words = [word for name in NAMES for word in ("-e", os.fsdecode(name))]
    found = store.git("grep", "-l", "-z", "-I", "-F", *words, mount.commit).split(b"\0")
    paths = [os.fsdecode(name).partition(":")[2] for name in found if name]
    entries = store.entries(mount.commit, paths)
    data = store.blobs(entry.blob for entry in entries.values())
    changed = []
    for entry in entries.values():
        text = data[entry.blob]
        for name, other in NAMES.items():
            text = text.replace(name, other)
        changed.append(text)
    blobs = store.write_blobs(changed)
    with store.index() as index:
        index.read_tree(mount.commit)
        rows = zip(entries.items(), blobs, strict=True)
        index.put({path: TreeEntry(entry.mode, blob) for (path, entry), blob in rows})
        tree = index.write_tree()
    who = {f"GIT_{who}_{what}": "t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    commit = store.git("commit-tree", tree, stdin=b"renamed\n", env=who).decode().strip()
    store.git("update-ref", "refs/heads/main", commit)
    return store.path


def test_names_that_are_not_found_are_no_defects_that_are_gone(overlay: Overlay, tmp_path: Path) -> None:
    cached = overlay.with_environment(OVERLAY_CACHE=str(CACHE))
    target = f"{renamed(tmp_path)}@main"
    report = cached("diff", "glm53-flash-gb10", "--upstream", target, "--json", timeout=600).check().json
    evaluations = report["reports"][0]["judgements"]
    assert {j["verdict"] for j in evaluations} <= {"carry", "rework", "unknown"}
    assert not [j["patch"] for j in evaluations if j["retirable"]]
    unknown = [j for j in evaluations if j["verdict"] == "unknown"]
    assert len(unknown) >= 4
    assert {j["evidence"]["behaviour"]["pristine"]["state"] for j in unknown} == {"unknown"}
