"""git works for us alone: nobody's configuration, environment or prompt reaches it."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import InvalidInput, Unavailable
from builder.source.files import SourceFile
from builder.source.git import (
    GitError,
    GitStore,
    TreeEntry,
    blob_id,
    git_environment,
    is_object_id,
    run_git,
    tree_id,
)
from tests.examples import examples
from tests.projects.trees import shared_judge


@pytest.fixture
def store(tmp_path: Path) -> GitStore:
    return GitStore.create(tmp_path / "store.git")


@given(st.binary(max_size=200))
@settings(max_examples=examples(10), deadline=None)
def test_blob_ids_are_the_ones_git_gives(data: bytes) -> None:
    assert blob_id(data) == shared_judge().git("hash-object", "--stdin", stdin=data).decode().strip()


@given(
    st.dictionaries(
        st.lists(st.sampled_from(["a", "a.b", "a-b", "a0", "ü", "Z", "\udcff"]), min_size=1, max_size=4).map(
            "/".join
        ),
        st.tuples(st.sampled_from(["100644", "100755", "120000"]), st.sampled_from([b"", b"x"])),
        max_size=6,
    )
)
@settings(max_examples=examples(20), deadline=None)
def test_tree_ids_are_the_ones_git_gives(files: dict[str, tuple[str, bytes]]) -> None:
    files = {
        path: file
        for path, file in files.items()
        if not any(other.startswith(path + "/") for other in files)  # no file and directory of one name
    }
    entries = {path: TreeEntry(mode, blob_id(data)) for path, (mode, data) in files.items()}
    judged = {path: SourceFile(mode, data) for path, (mode, data) in files.items()}
    assert tree_id(entries) == shared_judge().tree(judged)


def test_blobs_come_back_byte_for_byte(store: GitStore) -> None:
    contents = [b"", b"no newline", b"a\r\nb\n", bytes(range(256)) * 50, b"\n\n"]
    ids = store.write_blobs(contents)
    assert ids == [blob_id(data) for data in contents]
    assert store.blobs(ids) == dict(zip(ids, contents, strict=True))


def test_missing_blob_is_an_error_and_not_empty(store: GitStore) -> None:
    with pytest.raises(GitError, match="not a blob"):
        store.blobs(["1" * 40])


def test_hostile_configuration_and_environment_change_nothing(
    store: GitStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = tmp_path / "gitconfig"
    hostile.write_text("[core]\n\tautocrlf = true\n\thooksPath = /nowhere\n[diff]\n\tnoprefix = true\n")
    for key, value in {
        "GIT_CONFIG_GLOBAL": str(hostile),
        "GIT_DIR": "/nowhere",
        "GIT_OBJECT_DIRECTORY": "/nowhere",
        "GIT_INDEX_FILE": "/nowhere",
        "GIT_EXTERNAL_DIFF": "false",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.autocrlf",
        "GIT_CONFIG_VALUE_0": "true",
        "LC_ALL": "de_DE.UTF-8",
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(key, value)
    (oid,) = store.write_blobs([b"a\r\n"])
    assert oid == blob_id(b"a\r\n")
    assert store.git("config", "--get", "core.autocrlf").strip() == b"false"
    with pytest.raises(GitError):
        store.git("config", "--get", "diff.noprefix")


def test_no_secret_helper_or_prompt_is_ever_asked() -> None:
    environment = git_environment()
    assert environment["GIT_TERMINAL_PROMPT"] == "0"
    assert environment["GIT_CONFIG_GLOBAL"] == os.devnull


def test_helper_transports_are_refused(store: GitStore, tmp_path: Path) -> None:
    with pytest.raises(GitError):
        store.git("fetch", f"ext::sh -c 'touch {tmp_path}/owned'", "main")
    assert not (tmp_path / "owned").exists()


def test_names_that_are_options_are_refused(store: GitStore) -> None:
    with pytest.raises(InvalidInput):
        store.resolve("--output=/tmp/x")


def test_index_applies_without_fuzz_and_writes_trees(store: GitStore) -> None:
    (oid,) = store.write_blobs([b"a\nb\nc\n"])
    diff = b"diff --git a/d/x b/d/x\n--- a/d/x\n+++ b/d/x\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
    with store.index() as index:
        index.put({"d/x": TreeEntry("100755", oid)})
        index.apply(diff)
        assert index.entries() == {"d/x": TreeEntry("100755", blob_id(b"a\nB\nc\n"))}
        tree = index.write_tree()
        with pytest.raises(GitError):
            index.apply(diff)
        assert index.write_tree() == tree
    assert store.read(tree, "d/x") == b"a\nB\nc\n"
    assert store.read(tree, "d/y") is None


def test_paths_of_any_bytes_are_listed_as_they_are(store: GitStore) -> None:
    (oid,) = store.write_blobs([b"x"])
    names = ["ü.py", "a b", 'q"', "new\nline", os.fsdecode(b"\xff")]
    with store.index() as index:
        index.put({name: TreeEntry("100644", oid) for name in names})
        tree = index.write_tree()
    assert set(store.entries(tree)) == set(names)
    assert list(store.entries(tree, ["a b", "none"])) == ["a b"]


def test_two_creators_of_one_store_both_get_it(tmp_path: Path) -> None:
    made: list[str] = []

    def create() -> None:
        made.extend(GitStore.create(tmp_path / "new" / "store.git").write_blobs([b"x"]))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [blob_id(b"x")] * 4
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["store.git"]


def test_git_that_does_not_end_is_stopped(store: GitStore) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as pipe, pytest.raises(Unavailable, match="in time"):
        run_git(["hash-object", "--stdin"], cwd=store.path, stdin=pipe, timeout=0.2)
    os.close(write)


def test_missing_git_says_how_to_get_it(store: GitStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable) as caught:
        store.git("version")
    assert "install" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "is_one"), [("a" * 40, True), ("A" * 40, False), ("a" * 39, False), ("", False)]
)
def test_only_full_lower_case_ids_are_ids(text: str, is_one: bool) -> None:
    assert is_object_id(text) is is_one


def test_judge_and_store_use_the_same_git(store: GitStore) -> None:
    assert store.git("version") == subprocess.run(["git", "version"], capture_output=True, check=True).stdout
