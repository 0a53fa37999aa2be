"""A tree answers the same whether it is in memory, in a directory or in git; nothing leads out of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.errors import InvalidInput, Unavailable
from builder.probe.harness import Tree
from builder.probe.trees import DirectoryTree, GitTree, MappingTree
from builder.source.git import git_environment

FILES = {
    "python/sglang/a.py": b"class A: pass\n",
    "python/sglang/srt/b.py": b"x = 1\n\xff",
    "python/sglang/srt/class A: odd.txt": b"class A again\n",
    "README.md": b"class A\n",
}


def git(directory: Path, *arguments: str) -> str:
    names = {f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=directory, env=git_environment(names), capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    for path, data in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    (root / "python/sglang/out.py").symlink_to(tmp_path / "secret.py")
    (tmp_path / "secret.py").write_text("class A secret\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "one")
    git(root, "tag", "v1")
    return root


KINDS: dict[str, Callable[[Path], Tree]] = {
    "memory": lambda root: MappingTree(FILES),
    "layered": lambda root: MappingTree(
        {"README.md": b"class A\n"}, MappingTree({**FILES, "README.md": b"old"})
    ),
    "directory": DirectoryTree,
    "commit": lambda root: GitTree(root, "HEAD"),
    "tag": lambda root: GitTree(root / ".git", "v1"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tree_answers_the_same(kind: str, repository: Path) -> None:
    tree = KINDS[kind](repository)
    for path, data in FILES.items():
        assert path in tree
        assert tree.read(path) == data
    assert [path for path in tree.paths() if path in tree] == sorted(FILES)
    assert list(tree.paths("python/sglang/srt/")) == [
        "python/sglang/srt/b.py",
        "python/sglang/srt/class A: odd.txt",
    ]
    assert tree.grep(b"class A", "python/") == ["python/sglang/a.py", "python/sglang/srt/class A: odd.txt"]
    assert tree.grep(b"class A", "python/sglang/a") == ["python/sglang/a.py"]
    assert tree.grep(b"nowhere") == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "path",
    [
        "nowhere.py",
        "",
        "/etc/passwd",
        "../secret.py",
        "python/../../secret.py",
        "python/sglang/out.py",
        "python",
        "a\nb",
    ],
)
def test_what_is_not_a_file_of_the_tree_is_not_there(kind: str, path: str, repository: Path) -> None:
    tree = KINDS[kind](repository)
    assert path not in tree
    with pytest.raises(KeyError):
        tree.read(path)


def test_hidden_file_is_gone() -> None:
    tree = MappingTree({"a": None, "b": b"2"}, MappingTree({"a": b"1", "c": b"3"}))
    assert "a" not in tree
    assert tree.paths() == ["b", "c"]
    assert tree.grep(b"1") == []
    with pytest.raises(KeyError):
        tree.read("a")


@pytest.mark.parametrize("name", ["--help", "nowhere", "HEAD:python/sglang/a.py"])
def test_unknown_revision_is_an_error(name: str, repository: Path) -> None:
    with pytest.raises(InvalidInput):
        GitTree(repository, name)


def test_file_that_git_lost_is_an_error_and_not_absent(repository: Path) -> None:
    tree = GitTree(repository, "HEAD")
    blob = git(repository, "rev-parse", "HEAD:python/sglang/a.py")
    (repository / ".git/objects" / blob[:2] / blob[2:]).unlink()
    assert "python/sglang/a.py" in tree
    with pytest.raises(Unavailable, match="cannot read"):
        tree.read("python/sglang/a.py")


def test_fingerprint_follows_the_contents(repository: Path) -> None:
    base = GitTree(repository, "HEAD")
    same = MappingTree({"x": b"1"}, base).fingerprint
    assert same == MappingTree({"x": b"1"}, GitTree(repository, "v1")).fingerprint
    others = [MappingTree({"x": b"2"}, base), MappingTree({"x": None}, base), MappingTree({"x": b"1"}), base]
    assert len({same, *(tree.fingerprint for tree in others)}) == 5
    assert MappingTree({}, DirectoryTree(repository)).fingerprint is None


def test_two_threads_can_read_one_tree(tmp_path: Path) -> None:
    files = {f"f{number}": bytes([number % 251]) * (number * 97 + 1) for number in range(400)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    tree = GitTree(tmp_path, git(tmp_path, "write-tree"))
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(tree.read, [*files, *reversed(files)]))
    assert read == [*files.values(), *reversed(files.values())]
