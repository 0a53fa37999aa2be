"""What a wheel brings beside the program: manual pages, and completion that asks the program."""

from __future__ import annotations

import json
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
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
IMPORT_ALL = """
import importlib, pkgutil, builder
for module in pkgutil.walk_packages(builder.__path__, "builder."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def interpreters() -> list[str]:
    """Each supported Python that is on PATH or below pyenv's directory, by version, and runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for version in SUPPORTED:
        own = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
        for path in filter(None, [shutil.which(f"python{version}"), *own]):
            asked = subprocess.run([path, "-m", "venv", "--help"], capture_output=True, check=False)
            if asked.returncode == 0:
                found.append(path)
                break
    return found


@pytest.fixture(scope="module")
def own_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this work tree."""
    directory = tmp_path_factory.mktemp("wheel")
    tree = directory / "tree"
    listed = run_program(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT
    ).splitlines()
    for name in listed:
        if (ROOT / name).is_file() and not name.startswith(("tests/", "benchmarks/")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir", str(directory)]
    run_program([sys.executable, "-m", "pip", "wheel", *options, str(tree)])
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.mark.parametrize("python", interpreters())
def test_the_wheel_runs_on_each_python_that_is_here(python: str, own_wheel: Path, tmp_path: Path) -> None:
    run_program([python, "-m", "venv", str(tmp_path / "venv")])
    programs = tmp_path / "venv" / "bin"
    options = ["--quiet", "--disable-pip-version-check"]
    run_program([str(programs / "python"), "-m", "pip", "install", *options, str(own_wheel)])
    environment = {"OVERLAY_CACHE": str(tmp_path / "cache"), "OVERLAY_ROOT": str(ROOT)}
    overlays = json.loads(run_program([str(programs / "overlay"), "list", "--json"], environment=environment))
    assert "glm53-flash-gb10" in {overlay["name"] for overlay in overlays}
    page = run_program([str(programs / "overlay"), "help", "install"], cwd=tmp_path)
    assert page == (ROOT / "docs" / "install.md").read_text()
    run_program([str(programs / "python"), "-c", IMPORT_ALL], cwd=tmp_path)


def test_the_wheel_says_which_pythons_it_is_for(own_wheel: Path) -> None:
    with zipfile.ZipFile(own_wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        said = archive.read(name).decode().partition("\n\n")[0].splitlines()
    assert {f"Classifier: Programming Language :: Python :: {version}" for version in SUPPORTED} <= set(said)
    labels = {line.partition(": ")[2].partition(",")[0] for line in said if line.startswith("Project-URL")}
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= labels


def test_the_wheel_holds_manual_pages_completion_and_data(own_wheel: Path) -> None:
    names = {name.partition(".data/data/")[2] or name for name in zipfile.ZipFile(own_wheel).namelist()}
    assert {
        "share/man/man1/overlay.1",
        "share/man/man1/overlay-build.1",
        "share/bash-completion/completions/overlay",
        "share/zsh/site-functions/_overlay",
        "share/fish/vendor_completions.d/overlay.fish",
        "builder/data/Dockerfile.in",
        "builder/data/overlays/glm53-flash-gb10.yaml",
        "builder/data/patches/v0.5.20/series",
        *(f"builder/data/docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
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
