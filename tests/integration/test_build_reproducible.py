"""The same inputs give the same digest, whoever builds, wherever and whenever."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import Overlay, missing
from tests.integration.bases import Base
from tests.integration.conftest import needed_program, with_answers
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


ELSEWHERE = {
    "TZ": "Pacific/Chatham",
    "LC_ALL": "C",
    "LANG": "tr_TR.UTF-8",
    "PYTHONUTF8": "0",
    "PYTHONHASHSEED": "4242",
    "USER": "somebody",
    "LOGNAME": "somebody",
    "HOSTNAME": "elsewhere",
    "GIT_AUTHOR_DATE": "1 +0000",
    "GIT_COMMITTER_NAME": "x",
}


@pytest.mark.parametrize(("clock", "umask"), [("1999-12-31 23:59:50", "000"), ("2042-02-03 04:05:06", "077")])
def test_cache_zone_locale_seed_umask_and_clock_do_not_matter(
    clock: str,
    umask: str,
    overlay: Overlay,
    sources_cache: Path,
    small_base: Base,
    release: Path,
    expected: str,
    tmp_path: Path,
) -> None:
    cache = tmp_path / "a cache, \u00fcnusual in name"
    shutil.copytree(sources_cache / "probes", cache / "probes")
    changed = overlay.with_environment(**ELSEWHERE, OVERLAY_CACHE=str(cache))
    faketime = f"{needed_program('faketime')} -f '@{clock}'"
    wrapped = wrapper(changed, ["sh", "-c", f'umask {umask}; exec {faketime} "$@"', "sh"])
    assert digest_of(wrapped, small_base, "--wheel", release) == expected
    assert (cache / "wheels.git").is_dir(), "this was a build from that cache"


@pytest.fixture
def of_nobody() -> Iterator[Path]:
    """An empty directory of the user nobody, on a path that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="overlay-nobody-") as name:
        yield Path(name)


def test_user_does_not_matter(
    of_nobody: Path, sources_cache: Path, small_base: Base, release: Path, expected: str
) -> None:
    if os.geteuid() != 0:
        missing("only root can build as another user")
    overlay = with_answers(Overlay.prepare(of_nobody), sources_cache)
    # The right to read stays: the checkout and its Python may lie in a directory of root's own.
    user = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    read = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
    wrapped = wrapper(overlay, ["setpriv", *user, *read])
    for path in (of_nobody, *of_nobody.rglob("*")):
        os.chown(path, 65534, 65534)
    assert digest_of(wrapped, small_base, "--wheel", release) == expected
    assert (of_nobody / "image" / "index.json").stat().st_uid == 65534


def test_warm_cache_and_lock_do_not_matter(prepared: Overlay, small_base: Base, expected: str) -> None:
    assert digest_of(prepared, small_base) == expected
    locks = list((prepared.directory / "overlays").glob("*.lock"))
    assert locks
    assert digest_of(prepared, small_base) == expected  # recalled
    for built in (Path(prepared.environment["OVERLAY_CACHE"]) / "built").iterdir():
        built.unlink()
    assert digest_of(prepared, small_base) == expected  # baked, with the lock
    for lock in locks:
        lock.unlink()
    assert digest_of(prepared, small_base) == expected


def test_source_date_epoch_gives_one_other_digest(prepared: Overlay, small_base: Base, expected: str) -> None:
    dated = prepared.with_environment(SOURCE_DATE_EPOCH="1700000000")
    first = digest_of(dated, small_base)
    assert first == digest_of(dated.with_environment(TZ="Asia/Kolkata"), small_base)
    assert first != expected


def test_wheel_and_repository_of_the_same_tree_give_the_same(
    overlay: Overlay,
    sources_cache: Path,
    small_base: Base,
    release: Path,
    upstream_repository: Path,
    run_git: Git,
    tmp_path: Path,
) -> None:
    overlay = with_answers(overlay, sources_cache)
    commit = run_git("rev-parse", "HEAD", cwd=upstream_repository).decode().strip()
    pin_commit(overlay, commit)
    other = with_answers(Overlay.prepare(tmp_path / "other"), sources_cache)
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
    words = shlex.join([*command, str(overlay.program)])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)
    return Overlay(program, overlay.directory, overlay.environment)
