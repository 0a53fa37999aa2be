"""The same inputs give the same digest, whoever builds, wherever and whenever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import Overlay, missing
from tests.integration.bases import Base
from tests.integration.conftest import needed_program
from tests.integration.judge import OVERLAY, Git
from tests.integration.layouts import Layout


@pytest.fixture(scope="module")
def release(wheel: Callable[[str], Path]) -> Path:
    return wheel("0.5.20")


@pytest.fixture(scope="module")
def expected(small_base: Base, release: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest that an ordinary build comes to."""
    return digest_of(Overlay.prepare(tmp_path_factory.mktemp("plain")), small_base, "--wheel", release)


def digest_of(overlay: Overlay, base: Base, *options: object) -> str:
    """Build into a layout beside the project; what is in it must be what was said."""
    out = overlay.directory.parent / "image"
    command = ("build", OVERLAY, "--base", base.reference, "--output", f"oci:{out}", "--json", *options)
    digest = str(overlay(*command).check().json["digest"])
    assert Layout(out).single() == digest
    return digest


SURROUNDINGS = {
    "time zone": {"TZ": "Pacific/Chatham"},
    "locale": {"LC_ALL": "C", "LANG": "tr_TR.UTF-8", "PYTHONUTF8": "0"},
    "hash seed": {"PYTHONHASHSEED": "4242"},
    "names": {"USER": "somebody", "LOGNAME": "somebody", "HOSTNAME": "elsewhere", "EMAIL": "some@body.org"},
    "git": {"GIT_AUTHOR_DATE": "1 +0000", "GIT_COMMITTER_NAME": "x", "GIT_CONFIG_COUNT": "zero"},
}


@pytest.mark.parametrize("what", SURROUNDINGS)
def test_environment_does_not_matter(
    what: str, overlay: Overlay, small_base: Base, release: Path, expected: str
) -> None:
    elsewhere = overlay.with_environment(**SURROUNDINGS[what])
    assert digest_of(elsewhere, small_base, "--wheel", release) == expected


def test_cache_directory_does_not_matter(
    overlay: Overlay, small_base: Base, release: Path, expected: str, tmp_path: Path
) -> None:
    elsewhere = overlay.with_environment(OVERLAY_CACHE=str(tmp_path / "a cache with ünusual name"))
    assert digest_of(elsewhere, small_base, "--wheel", release) == expected
    assert (tmp_path / "a cache with ünusual name").is_dir()


def test_warm_cache_and_lock_do_not_matter(
    overlay: Overlay, small_base: Base, release: Path, expected: str
) -> None:
    assert digest_of(overlay, small_base, "--wheel", release) == expected
    assert digest_of(overlay, small_base) == expected
    for lock in (overlay.directory / "overlays").glob("*.lock"):
        lock.unlink()
    assert digest_of(overlay, small_base) == expected


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_umask_does_not_matter(
    umask: int, overlay: Overlay, small_base: Base, release: Path, expected: str
) -> None:
    wrapped = wrapper(overlay, ["sh", "-c", f'umask {umask:04o}; exec "$@"', "sh"])
    assert digest_of(wrapped, small_base, "--wheel", release) == expected


@pytest.mark.parametrize("clock", ["1999-12-31 23:59:50", "2042-02-03 04:05:06"])
def test_clock_does_not_matter(
    clock: str, overlay: Overlay, small_base: Base, release: Path, expected: str
) -> None:
    wrapped = wrapper(overlay, [needed_program("faketime"), "-f", f"@{clock}"])
    assert digest_of(wrapped, small_base, "--wheel", release) == expected


def test_user_does_not_matter(overlay: Overlay, small_base: Base, release: Path, expected: str) -> None:
    if os.geteuid() != 0:
        missing("only root can build as another user")
    for path in (overlay.directory.parent, *overlay.directory.parent.rglob("*")):
        os.chown(path, 65534, 65534)
    # The right to read stays: the checkout and its Python may lie in a directory of root's own.
    user = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    read = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
    wrapped = wrapper(overlay, ["setpriv", *user, *read])
    assert digest_of(wrapped, small_base, "--wheel", release) == expected
    assert (overlay.directory.parent / "image" / "index.json").stat().st_uid == 65534


def test_source_date_epoch_gives_one_other_digest(
    overlay: Overlay, small_base: Base, release: Path, expected: str
) -> None:
    dated = overlay.with_environment(SOURCE_DATE_EPOCH="1700000000")
    first = digest_of(dated, small_base, "--wheel", release)
    assert first == digest_of(dated.with_environment(TZ="Asia/Kolkata"), small_base)
    assert first != expected


def test_wheel_and_repository_of_the_same_tree_give_the_same(
    overlay: Overlay, small_base: Base, release: Path, upstream_repository: Path, run_git: Git, tmp_path: Path
) -> None:
    commit = run_git("rev-parse", "HEAD", cwd=upstream_repository).decode().strip()
    pin_commit(overlay, commit)
    other = Overlay.prepare(tmp_path / "other")
    pin_commit(other, commit)
    from_wheel = digest_of(overlay, small_base, "--source", "wheel", "--wheel", release)
    url = ("--upstream-url", upstream_repository)
    assert digest_of(other, small_base, "--source", "repository", *url) == from_wheel


def pin_commit(overlay: Overlay, commit: str) -> None:
    path = overlay.directory / "overlays" / f"{OVERLAY}.yaml"
    spec = yaml.safe_load(path.read_text())
    spec["upstream"]["commit"] = commit
    path.write_text(yaml.safe_dump(spec))


def wrapper(overlay: Overlay, command: list[str]) -> Overlay:
    """The command run by another one, such as ``faketime -f @…``."""
    program = overlay.directory.parent / "wrapped"
    words = " ".join(f"'{word}'" for word in [*command, str(overlay.program)])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)
    return Overlay(program, overlay.directory, overlay.environment)
