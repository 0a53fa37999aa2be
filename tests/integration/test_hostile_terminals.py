"""Whatever the terminal, the locale, the disk, the signal: no traceback, the right exit code, whole JSON."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from builder.cli.failure import told
from builder.printable import printable
from builder.source.git import GitError
from tests.projects.image import NAME, ImageProject

CLOSED_OUT, CLOSED_ERR, CLOSED_IN = ">&-", "2>&-", "<&-"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ImageProject:
    return ImageProject.create(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def base(world: ImageProject) -> str:
    return world.base().reference


def shell(
    world: ImageProject, words: Sequence[object], redirection: str
) -> subprocess.CompletedProcess[bytes]:
    """The command by a shell, which can close and redirect what Python would open."""
    line = ["bash", "-c", f'"$0" "$@" {redirection}', str(world.overlay.program), *map(str, words)]
    return subprocess.run(
        line, cwd=world.root, env=dict(world.overlay.environment), capture_output=True, check=False
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["build", NAME, "--no-such-option"], 2),
        (["build"], 2),
        (["bild"], 2),
        (["build", NAME, "--engine", "no-such-engine"], 2),
        (["base", "wheel"], 2),
        (["build", NAME], 2),
        (["show", "no-such-overlay"], 1),
        (["build", NAME, "--base", "x:latest", "--dry-run"], 1),
        (["list", "--root", os.fsdecode(b"/\xff")], 1),
    ],
)
def test_every_error_is_one_json_document_on_standard_output(
    words: list[str], code: int, world: ImageProject
) -> None:
    done = shell(world, [*words, "--json"], "")
    assert done.returncode == code, done.stderr
    error = json.loads(done.stdout.decode())["error"]
    assert error["exit_code"] == code
    assert error["what"]
    assert b"Traceback" not in done.stderr
    assert done.stderr


@pytest.mark.parametrize("redirection", [CLOSED_OUT, CLOSED_ERR, f"{CLOSED_IN} {CLOSED_OUT} {CLOSED_ERR}"])
def test_closed_streams_neither_stop_a_build_nor_end_up_in_a_file(
    redirection: str, world: ImageProject, base: str
) -> None:
    expected = world.overlay(*world.build(base, "--json", to="open")).check().json["digest"]
    done = shell(world, world.build(base, to="closed"), redirection)
    assert done.returncode == 0, done.stderr
    index = json.loads((world.directory / "closed/index.json").read_text())
    assert [entry["digest"] for entry in index["manifests"]] == [expected]


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["show", NAME]])
def test_a_full_disk_for_standard_output_is_exit_8(words: list[str], world: ImageProject) -> None:
    done = shell(world, words, ">/dev/full")
    assert done.returncode == 8
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_reader_who_left_is_not_told_that_all_was_done(world: ImageProject) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [world.overlay.program, "show", NAME],
        cwd=world.root,
        env=dict(world.overlay.environment),
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    "locale",
    [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
)
def test_a_locale_without_our_characters_gets_escapes_and_whole_json(
    locale: dict[str, str], world: ImageProject, base: str
) -> None:
    overlay = world.overlay.with_environment(**locale)
    text = overlay(*world.build(base)).check()
    assert "\\u2192" in text.out or "→" in text.out
    assert overlay(*world.build(base, "--json")).check().json["name"] == NAME


def test_a_directory_that_is_gone_is_said(world: ImageProject) -> None:
    done = shell(world, ["list"], "2>&1")
    assert done.returncode == 0
    line = f'mkdir gone && cd gone && rmdir ../gone && "{world.overlay.program}" list'
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=world.directory,
        env=dict(world.overlay.environment),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert b"not there any more" in done.stderr


@pytest.mark.parametrize(
    "places", [{"OVERLAY_CACHE": "/dev/null"}, {"OVERLAY_CACHE": "/proc/x"}, {"TMPDIR": "/dev/null"}]
)
def test_a_place_that_cannot_be_written_is_named(
    places: dict[str, str], world: ImageProject, base: str
) -> None:
    done = world.overlay.with_environment(**places)(*world.build(base, "--json"))
    if "TMPDIR" in places:  # Python takes the next one that works
        done.check()
        return
    error = done.check(8).json["error"]
    assert places["OVERLAY_CACHE"] in error["where"]
    assert "OVERLAY_CACHE" in error["hint"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_cleans_up_and_exits_as_a_shell_expects(number: signal.Signals, world: ImageProject) -> None:
    slow = world.directory / f"slow-{number}"
    slow.mkdir()
    (slow / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (slow / "git").chmod(0o755)
    cache = world.directory / f"cache-{number}"
    overlay = world.overlay.with_environment(
        PATH=f"{slow}:{os.environ['PATH']}", OVERLAY_CACHE=str(cache), TMPDIR=str(slow)
    )
    base = world.base(f"base-{number}").reference
    # Tests that run in the background (nohup, &) hand on that they ignore what a terminal sends.
    heard = functools.partial(signal.signal, number, signal.SIG_DFL)
    process = overlay.start("build", NAME, "--base", base, "--dry-run", "--json", preexec_fn=heard)
    deadline = time.monotonic() + 20
    while not cache.exists() or not list(cache.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert json.loads(out)["error"]["exit_code"] == 128 + number
    assert err.strip() == b"stopped"
    assert list(cache.iterdir()) == []
    assert [path.name for path in slow.iterdir()] == ["git"]


def test_what_steers_a_terminal_is_written_out() -> None:
    assert printable("\x1b]0;title\x07 \x1b[31mred\x1b[0m\r\u202e\udcff\n\ta→b") == (
        "\\x1b]0;title\\x07 \x1b[31mred\x1b[0m\\r\\u202e\\udcff\n\ta→b"
    )


def test_foreign_errors_say_what_where_and_what_to_do_and_hold_no_secret() -> None:
    full = told(OSError(28, "No space left on device"))
    assert (full.exit_code, full.what) == (8, "the disk is full")
    git = told(GitError(["--git-dir=/x", "fetch"], 128, "fatal: https://me:hunter2@host/x", Path("/x")))
    assert git.exit_code == 8
    assert git.what.startswith("git fetch ")
    assert "hunter2" not in str(git.as_json())
    crowded = told(GitError(["write-tree"], 128, "error: x: No space left on device", Path("/x")))
    assert (crowded.exit_code, crowded.what, crowded.where) == (8, "the disk is full", "/x")
    bug = told(TypeError("no such thing at https://me:hunter2@host/x"))
    assert (bug.exit_code, bug.kind) == (1, "bug")
    assert "hunter2" not in str(bug.as_json())


def test_a_mistake_of_ours_shows_its_traceback_only_when_asked_to() -> None:
    script = (
        "import builder.cli.listing as l, sys; from builder.cli import main\n"
        "l.command.callback = lambda **_: 1 // 0\nsys.argv = ['overlay', 'list', '--json']\nmain()"
    )
    for asked in ("", "1"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "OVERLAY_TRACEBACK": asked},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 1
        assert (b"Traceback" in done.stderr) == bool(asked)
        if not asked:
            assert json.loads(done.stdout)["error"]["kind"] == "bug"
            assert b"ZeroDivisionError" in done.stderr
