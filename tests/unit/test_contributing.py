"""CONTRIBUTING names what is there: rooms, functions, the keeper of each promise, and what CI checks."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module

import pytest
import yaml

from tests.conftest import ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = {path.name for path in (ROOT / "builder").iterdir() if (path / "__init__.py").is_file()}
KEPT = CONTRIBUTING.partition("| promise | kept by |\n")[2].splitlines()[1:]
NAMES = sorted(
    {
        name.removeprefix("builder.")
        for name in re.findall(r"`((?:\w+\.)+\w+)`", CONTRIBUTING)
        if name.removeprefix("builder.").partition(".")[0] in ROOMS | {"errors", "printable"}
    }
)


def promises() -> list[str]:
    """The sentences of README's section."""
    text = (ROOT / "README.md").read_text().partition("## What it promises\n")[2].partition("\n## ")[0]
    plain = re.sub(r"^\d+\. ", "", text, flags=re.MULTILINE)
    return re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(plain.split()))


def is_there(name: str) -> bool:
    """Whether ``room.module`` or ``room.module.function``, below ``builder``, can be imported."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        module = ".".join(["builder", *words[:length]])
        try:
            found: object = import_module(module)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise
            continue
        for word in words[length:]:
            if not hasattr(found, word):
                return False
            found = getattr(found, word)
        return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_every_function_that_it_names_is_there(name: str) -> None:
    assert is_there(name)


def test_names_that_are_not_there_are_seen() -> None:
    assert len(NAMES) > 30
    assert not is_there("patch.apply.apply_serie")
    assert not is_there("patch.nothing.apply_series")


def test_every_promise_has_a_row_with_the_functions_that_keep_it() -> None:
    rows = [tuple(cell.strip() for cell in line.strip("|").rsplit("|", 1)) for line in KEPT]
    assert [promise for promise, _ in rows] == promises()
    assert len(rows) > 7
    assert [keeper for _, keeper in rows if not set(re.findall(r"`([\w.]+)`", keeper)) & set(NAMES)] == []


def test_the_picture_has_the_rooms_of_the_contract_in_its_order() -> None:
    layers = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    floors = [set(layer.split(" | ")) for layer in layers]
    picture = CONTRIBUTING.partition("```mermaid\n")[2].partition("```")[0]
    arrows = [re.match(r"  (\w+)(?:\[.*\])? --> (.*)", line) for line in picture.splitlines()[1:]]
    drawn = {(found[1], below) for found in arrows if found for below in found[2].split(" & ")}
    assert len(arrows) == len({above for above, _ in drawn})
    at = {room: number for number, floor in enumerate(floors) for room in floor}
    assert {name for pair in drawn for name in pair} == set(at)
    assert [pair for pair in drawn if at[pair[0]] >= at[pair[1]]] == []


def test_commits_are_checked_by_what_ci_runs() -> None:
    recipes = (ROOT / "Makefile").read_text()
    run = [
        line.strip().replace("$(BIN)", ".venv/bin")
        for target in ("lint", "types")
        for line in recipes.partition(f"\n{target}:")[2].partition("\n\n")[0].splitlines()[1:]
    ]
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert sorted(hook["entry"] for repo in config["repos"] for hook in repo["hooks"]) == sorted(run)
