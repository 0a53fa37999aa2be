"""What a wheel brings beside the program: manual pages, and completion that asks the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, Overlay
from tests.integration.conftest import needed_program, run_program

COMPLETION = ROOT / "completion"


def test_the_wheel_holds_manual_pages_completion_and_data(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    listed = run_program(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT
    ).splitlines()
    for name in listed:
        if (ROOT / name).is_file() and not name.startswith(("tests/", "benchmarks/")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir", str(tmp_path)]
    run_program([sys.executable, "-m", "pip", "wheel", *options, str(tree)])
    (wheel,) = tmp_path.glob("*.whl")
    names = {name.partition(".data/data/")[2] or name for name in zipfile.ZipFile(wheel).namelist()}
    assert {
        "share/man/man1/overlay.1",
        "share/man/man1/overlay-build.1",
        "share/bash-completion/completions/overlay",
        "share/zsh/site-functions/_overlay",
        "share/fish/vendor_completions.d/overlay.fish",
        "builder/data/Dockerfile.in",
        "builder/data/overlays/glm53-flash-gb10.yaml",
        "builder/data/patches/v0.5.20/series",
    } <= names


@pytest.fixture
def environment(overlay: Overlay) -> dict[str, str]:
    return {**overlay.environment, "PATH": f"{overlay.program.parent}:{os.environ['PATH']}"}


def shell(words: list[str], environment: dict[str, str], directory: Path) -> list[str]:
    done = subprocess.run(
        words, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def test_bash_completes_commands_and_overlays(overlay: Overlay, environment: dict[str, str]) -> None:
    for words, expected in [("overlay bui", "build"), ("overlay build glm", "glm53-flash-gb10")]:
        script = f"""
            source {COMPLETION / "overlay.bash"}
            COMP_WORDS=({words}) COMP_CWORD={len(words.split()) - 1}
            _overlay overlay
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        assert expected in shell(["bash", "-c", script], environment, overlay.directory)


def test_fish_completes_commands_and_overlays(overlay: Overlay, environment: dict[str, str]) -> None:
    fish = needed_program("fish")
    for words, expected in [("overlay bui", "build"), ("overlay build glm", "glm53-flash-gb10")]:
        script = f"source {COMPLETION / 'overlay.fish'}; complete --do-complete '{words}'"
        found = shell([fish, "--no-config", "--command", script], environment, overlay.directory)
        assert expected in [line.partition("\t")[0] for line in found]


def test_zsh_completes_commands_and_overlays(overlay: Overlay, environment: dict[str, str]) -> None:
    zsh = needed_program("zsh")
    for words, expected in [("overlay bui", "build"), ("overlay build glm", "glm53-flash-gb10")]:
        # What zsh's own completion functions would be given.
        script = f"""
            compdef() {{ :; }}
            compadd() {{ print -r -- "$@[-1]"; }}
            _describe() {{ print -rl -- "${{described[@]%%:*}}"; }}
            source {COMPLETION / "_overlay"}
            words=({words}) CURRENT={len(words.split())}
            _overlay
        """
        found = shell([zsh, "--no-rcs", "-c", script], environment, overlay.directory)
        assert expected in found


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "man").glob("*.1")), ids=lambda path: path.stem)
def test_man_shows_every_page_without_complaint(page: Path) -> None:
    command = [needed_program("man"), "--warnings", "--local-file", str(page)]
    done = subprocess.run(
        command,
        env={**os.environ, "LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert not done.stderr
    assert "EXIT STATUS" in done.stdout
