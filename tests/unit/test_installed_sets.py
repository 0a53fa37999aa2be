"""Installed patch sets are read only: what was written there would go with the next upgrade."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from builder.author.series_directory import find_series_directory
from builder.author.skeleton import new_overlay
from builder.cli import cli
from builder.errors import InvalidInput
from builder.project.project import Root

HERE = Path(__file__).parents[2]
DAY = datetime.date(2026, 11, 29)


@pytest.fixture
def installed(tmp_path: Path) -> Root:
    """As after ``pip install``: locks go to the user's state directory."""
    for name in ("overlays", "patches"):
        shutil.copytree(HERE / name, tmp_path / "data" / name)
    shutil.copy(HERE / "Dockerfile.in", tmp_path / "data")
    return Root(tmp_path / "data", tmp_path / "state")


def contents(root: Root) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.path.rglob("*") if path.is_file()}


def test_no_overlay_is_written_there(installed: Root) -> None:
    before = contents(installed)
    with pytest.raises(InvalidInput, match="cannot be changed") as refused:
        new_overlay(installed, "mine", "glm53-flash-gb10", DAY)
    assert f"cp -r {installed.path} my-overlays" in (refused.value.hint or "")
    assert contents(installed) == before


def test_no_series_is_written_there(installed: Root) -> None:
    before = contents(installed)
    with pytest.raises(InvalidInput, match="cannot be changed"):
        find_series_directory(installed, "v0.5.20").write([])
    assert contents(installed) == before


def test_a_copy_can_be_written_to(installed: Root) -> None:
    copy = Root(installed.path, installed.overlays)
    assert new_overlay(copy, "mine", "glm53-flash-gb10", DAY) == "overlays/mine.yaml"


def test_rules_are_told_to_programs_too() -> None:
    result = CliRunner().invoke(cli, ["patch", "lint", "--rules", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.output)["status"].startswith("Upstream-Status")
