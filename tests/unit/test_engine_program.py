"""Which client builds with BuildKit, told from ones that only look as if they could; what engines say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.publish.docker_engine.bake import _failed_line, named_images, pushed_digest
from builder.publish.docker_engine.program import BuildProgram, find_build_program


def client(directory: Path, *, version: str, buildx: bool) -> Path:
    """A program that answers as a docker client of this version does."""
    directory.mkdir()
    path = directory / "docker"
    answer = "exit 0" if buildx else "echo \"docker: 'buildx' is not a docker command\" >&2; exit 1"
    path.write_text(
        f"#!/bin/sh\ncase $1 in\nbuildx) {answer};;\n--version) echo version {version}, build;;\nesac\n"
    )
    path.chmod(0o755)
    return path


def test_a_new_client_without_buildx_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = client(tmp_path / "new", version="28.2.2", buildx=False)
    old = client(tmp_path / "old", version="20.10.24+dfsg1", buildx=False)
    monkeypatch.setenv("PATH", f"{new.parent}:{old.parent}:/bin:/usr/bin")
    assert find_build_program() == BuildProgram(str(old), buildx=False)


def test_buildx_is_taken_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = client(tmp_path / "new", version="28.2.2", buildx=True)
    monkeypatch.setenv("PATH", f"{new.parent}:/bin")
    assert find_build_program() == BuildProgram(str(new), buildx=True)
    command = BuildProgram(str(new), buildx=True).command("unix:///x", "result")
    assert command[1:] == [
        "--host",
        "unix:///x",
        "buildx",
        "build",
        "--load",
        "--metadata-file",
        "result",
        "--progress=plain",
    ]


def test_no_client_that_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = client(tmp_path / "new", version="28.2.2", buildx=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", f"{new.parent}:{tmp_path / 'bin'}")
    assert find_build_program() is None


DOCKERFILE = '# a comment\nFROM x\n\nCOPY ["a", "/b/"]\nRUN false\n'


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("#5 ERROR\n------\n > [2/2] RUN false:\n------\nexecutor failed running", 5),
        ("------\nDockerfile:4\n--------------------\n   3 |\n   4 | >>> COPY", 4),
        ("failed to create LLB definition: dockerfile parse error line 5: unknown instruction: RUNN", 5),
        ('Step 1/3 : FROM x\nStep 2/3 : COPY ["a", "/b/"]\nCOPY failed: no such file', 4),
        ("no space left on device", None),
    ],
)
def test_the_dockerfiles_line_is_found_in_what_an_engine_says(said: str, line: int | None) -> None:
    assert _failed_line(DOCKERFILE, said) == line


def test_what_buildx_and_the_older_client_say_that_they_made() -> None:
    config, manifest = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
    metadata = {"containerimage.config.digest": config, "containerimage.digest": manifest, "image.name": "x"}
    buildx, older = BuildProgram("docker", buildx=True), BuildProgram("docker", buildx=False)
    assert named_images(buildx, json.dumps(metadata)) == [manifest, config]
    assert named_images(older, config) == [config]
    assert named_images(older, "") == []


_DIGEST = "sha256:" + "c0a73942" * 8


@pytest.mark.parametrize(
    "event",
    [
        # Docker Engine 20.10 and others with layers unpacked.
        {"progressDetail": {}, "aux": {"Tag": "x", "Digest": _DIGEST, "Size": 3831}},
        # Docker Engine 26.1 with containerd's store.
        {"status": f"v0.5.20-glm53_flash.x: digest: {_DIGEST} size: 3831"},
    ],
)
def test_the_digest_of_a_push_is_found_where_each_store_says_it(event: dict[str, object]) -> None:
    assert pushed_digest(event) == _DIGEST


@pytest.mark.parametrize(
    "event",
    [
        {"status": "Mounted from base", "progressDetail": {}, "id": _DIGEST[7:19]},
        {"status": f"x: digest: {_DIGEST[:-1]} size: 3831"},
        {"status": f"Pushed by x: digest: {_DIGEST} size: 3831"},
        {"aux": {"Digest": "latest"}},
        {"aux": "text"},
        {"aux": None, "status": None},
    ],
)
def test_no_other_event_of_a_push_says_a_digest(event: dict[str, object]) -> None:
    assert pushed_digest(event) is None
