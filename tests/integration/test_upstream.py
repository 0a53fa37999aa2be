"""The pinned upstream: the repository and the wheel give the same files, once, and offline afterwards."""

from __future__ import annotations

import os
import subprocess
import zipfile
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

import pytest

from builder.errors import InvalidInput, Unavailable
from builder.project.spec import UpstreamSpec, Wheel
from builder.source.git import blob_id
from builder.source.upstream import Upstream, resolve_upstream

FILES = {
    "python/sglang/__init__.py": b"x = 1\n",
    "python/sglang/srt/a.py": b"a = 1\n",
    "python/sglang/srt/crlf.py": b"a = 1\r\n",
    "python/sglang/srt/bytes.py": b"# \xff\xfe\n",
}
PATHS = [*FILES, "python/sglang/none.py"]


def _git(directory: Path, *arguments: str) -> str:
    environment = os.environ | {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    done = subprocess.run(
        ["git", *arguments], cwd=directory, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    """A repository that holds more than the wheel, as the real one does, and serves partial clones."""
    path = tmp_path / "repository"
    path.mkdir()
    _git(path, "init", "--quiet")
    for name, data in {**FILES, "test/t.py": b"t\n", "README.md": b"r\n"}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    _git(path, "config", "uploadpack.allowFilter", "true")
    _git(path, "add", "-A")
    _git(path, "commit", "--quiet", "-m", "release")
    _git(path, "tag", "-a", "v1", "-m", "v1")
    return path, _git(path, "rev-parse", "HEAD")


@pytest.fixture
def wheel_file(tmp_path: Path) -> Path:
    path = tmp_path / "sglang-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in FILES.items():
            archive.writestr(name.removeprefix("python/"), data)
        archive.writestr("sglang/native.so", b"\x7fELF")
        archive.writestr(
            "sglang-1.0.dist-info/METADATA", b"Metadata-Version: 2.1\nName: sglang\nVersion: 1.0\n"
        )
        archive.writestr("sglang-1.0.dist-info/WHEEL", b"Wheel-Version: 1.0\nTag: py3-none-any\n")
    return path


def _wheel_spec(path: Path) -> UpstreamSpec:
    digest = sha256(path.read_bytes()).hexdigest()
    return UpstreamSpec(release="v1", wheel=Wheel(requirement="sglang==1.0", sha256=digest))


def _blobs(upstream: Upstream) -> dict[str, str]:
    return {path: source.blob for path, source in upstream.files(PATHS).items()}


def test_wheel_and_repository_give_the_same_blobs(
    tmp_path: Path, repository: tuple[Path, str], wheel_file: Path
) -> None:
    path, commit = repository
    wheel = resolve_upstream(_wheel_spec(wheel_file), tmp_path / "cache", wheel_file=wheel_file)
    spec = UpstreamSpec(repository=str(path), release="v1", commit=commit)
    cloned = resolve_upstream(spec, tmp_path / "cache")
    assert _blobs(wheel) == _blobs(cloned) == {name: blob_id(data) for name, data in FILES.items()}


def test_a_wheel_gives_the_same_commit_on_every_machine(tmp_path: Path, wheel_file: Path) -> None:
    commits = {
        resolve_upstream(_wheel_spec(wheel_file), tmp_path / cache, wheel_file=wheel_file).main.commit
        for cache in ("one", "two")
    }
    assert len(commits) == 1


def test_compiled_extensions_are_no_source(tmp_path: Path, wheel_file: Path) -> None:
    upstream = resolve_upstream(_wheel_spec(wheel_file), tmp_path, wheel_file=wheel_file)
    assert not [path for path in upstream.entries() if path.endswith(".so")]


def test_only_the_blobs_that_are_asked_for_are_fetched(tmp_path: Path, repository: tuple[Path, str]) -> None:
    path, commit = repository
    spec = UpstreamSpec(repository=path.as_uri(), release="v1", commit=commit)
    upstream = resolve_upstream(spec, tmp_path / "cache")
    upstream.files(["python/sglang/srt/a.py"])
    listing = upstream.main.store.git("cat-file", "--batch-check", "--batch-all-objects").decode()
    blobs = {line.split()[0] for line in listing.splitlines() if line.split()[1] == "blob"}
    assert blobs == {blob_id(FILES["python/sglang/srt/a.py"])}


def test_what_is_cached_needs_no_repository(tmp_path: Path, repository: tuple[Path, str]) -> None:
    path, commit = repository
    spec = UpstreamSpec(repository=path.as_uri(), release="v1", commit=commit)
    expected = _blobs(resolve_upstream(spec, tmp_path / "cache"))
    path.rename(tmp_path / "away")
    assert _blobs(resolve_upstream(spec, tmp_path / "cache")) == expected


def test_a_tag_object_is_peeled_to_its_commit(tmp_path: Path, repository: tuple[Path, str]) -> None:
    path, commit = repository
    tag = _git(path, "rev-parse", "v1")
    assert tag != commit
    spec = UpstreamSpec(repository=str(path), release="v1", commit=tag)
    assert resolve_upstream(spec, tmp_path / "cache").main.commit == commit


def test_a_mirror_serves_for_the_repository(tmp_path: Path, repository: tuple[Path, str]) -> None:
    path, commit = repository
    spec = UpstreamSpec(repository="https://repository.invalid/x", release="v1", commit=commit)
    assert len(_blobs(resolve_upstream(spec, tmp_path / "cache", url=str(path)))) == len(FILES)


def test_a_mirror_of_long_ago_is_not_asked_for_blobs(tmp_path: Path, repository: tuple[Path, str]) -> None:
    path, commit = repository
    mirror = tmp_path / "mirror"
    _git(tmp_path, "clone", "--quiet", "--bare", str(path), str(mirror))
    _git(mirror, "config", "uploadpack.allowFilter", "true")
    spec = UpstreamSpec(repository=str(path), release="v1", commit=commit)
    resolve_upstream(spec, tmp_path / "cache", url=str(mirror)).files(PATHS[:1])
    rmtree(mirror)
    assert len(resolve_upstream(spec, tmp_path / "cache").files(PATHS)) == len(FILES)


def test_a_damaged_wheel_of_the_cache_is_downloaded_again(
    tmp_path: Path, wheel_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel_file.parent))
    spec = _wheel_spec(wheel_file)
    cached = tmp_path / "cache" / "wheels" / str(spec.wheel and spec.wheel.sha256) / wheel_file.name
    cached.parent.mkdir(parents=True)
    cached.write_bytes(wheel_file.read_bytes()[:-1])
    upstream = resolve_upstream(spec, tmp_path / "cache")
    assert _blobs(upstream) == {name: blob_id(data) for name, data in FILES.items()}
    assert cached.read_bytes() == wheel_file.read_bytes()


def test_a_commit_that_is_not_there_is_invalid_input(tmp_path: Path, repository: tuple[Path, str]) -> None:
    spec = UpstreamSpec(repository=str(repository[0]), release="v1", commit="ab" * 20)
    with pytest.raises(InvalidInput) as caught:
        resolve_upstream(spec, tmp_path / "cache")
    assert caught.value.expected == "ab" * 20


def test_a_repository_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    spec = UpstreamSpec(repository="http://127.0.0.1:9/x", release="v1", commit="ab" * 20)
    with pytest.raises(Unavailable) as caught:
        resolve_upstream(spec, tmp_path / "cache")
    assert "--upstream-url" in str(caught.value.hint)


def test_a_password_in_an_address_is_not_shown(tmp_path: Path) -> None:
    spec = UpstreamSpec(release="v1", commit="ab" * 20)
    with pytest.raises(Unavailable) as caught:
        resolve_upstream(spec, tmp_path / "cache", url="http://user:secret@127.0.0.1:9/x")
    assert "secret" not in str(caught.value.as_json())


@pytest.mark.parametrize("url", ["ext::sh -c 'touch pwned'", "--upload-pack=touch pwned", "ftp://x/y"])
def test_an_address_that_would_run_something_is_refused(tmp_path: Path, url: str) -> None:
    spec = UpstreamSpec(release="v1", commit="ab" * 20)
    with pytest.raises(InvalidInput):
        resolve_upstream(spec, tmp_path / "cache", url=url)


def test_a_wheel_with_another_sha256_is_refused(tmp_path: Path, wheel_file: Path) -> None:
    spec = UpstreamSpec(release="v1", wheel=Wheel(requirement="sglang==1.0", sha256="ab" * 32))
    with pytest.raises(InvalidInput) as caught:
        resolve_upstream(spec, tmp_path / "cache", wheel_file=wheel_file)
    assert caught.value.expected == f"sha256 {'ab' * 32} (sglang==1.0)"


def test_a_pin_that_the_index_does_not_have_is_invalid_input(tmp_path: Path) -> None:
    spec = UpstreamSpec(release="v0.5.20", wheel=Wheel(requirement="sglang==0.5.20", sha256="ab" * 32))
    with pytest.raises(InvalidInput) as caught:
        resolve_upstream(spec, tmp_path / "cache")
    assert "ab" * 32 in str(caught.value.expected)


@pytest.mark.parametrize("name", ["sglang/../../x.py", "/sglang/x.py", "sglang//x.py", "sglang/.git/config"])
def test_a_wheel_cannot_name_a_path_outside(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sglang/__init__.py", b"")
        archive.writestr(name, b"x")
    with pytest.raises(InvalidInput, match="outside its package"):
        resolve_upstream(_wheel_spec(path), tmp_path / "cache", wheel_file=path)


def test_nobodys_git_configuration_is_read(
    tmp_path: Path, repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, commit = repository
    hostile = tmp_path / "gitconfig"
    hostile.write_text(
        '[core]\n\tautocrlf = true\n[url "http://127.0.0.1:9/"]\n\tinsteadOf = /\n[fetch]\n\tprune = true\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(hostile))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text(hostile.read_text())
    spec = UpstreamSpec(repository=str(path), release="v1", commit=commit)
    assert _blobs(resolve_upstream(spec, tmp_path / "cache")) == {n: blob_id(d) for n, d in FILES.items()}
