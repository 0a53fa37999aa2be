"""A patch is shown as it is, with its place in the series; colors are for terminals alone."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.conftest import ROOT
from tests.projects.series import SeriesProject, workshop

__all__ = ["workshop"]

DEMO = "python/sglang/demo.py"


@pytest.fixture
def shop(workshop: SeriesProject) -> SeriesProject:
    workshop.add("one", (DEMO, "b = 2", "b = 3"))
    workshop.add("two", (DEMO, "b = 3", "b = 4"), trailers="Upstream-Status: Pending\nOverlay-Depends: one")
    return workshop


def test_patch_is_shown_byte_for_byte_with_its_place(shop: SeriesProject) -> None:
    ran = shop("show", "demo", "one")
    assert ran.out == "# 1 of 2 in demo, needed by two\n" + shop.path("one").read_text()


def test_json_has_the_same_facts(shop: SeriesProject) -> None:
    facts = json.loads(shop("show", "demo", "two", "--json").out)
    assert facts["place"] == {
        "series": "demo", "number": 2, "of": 2, "before": ["one"], "after": [], "needed_by": [],
    }  # fmt: skip
    assert facts["text"] == shop.path("two").read_text()


def test_unknown_patch_gets_the_nearest_name(shop: SeriesProject) -> None:
    ran = shop("show", "demo", "tow")
    assert (ran.code, "two" in str(ran.error.hint)) == (1, True)  # type: ignore[union-attr]


def test_terminals_get_colors_and_all_of_the_text(shop: SeriesProject) -> None:
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "OVERLAY_ROOT": str(shop.root),
        "TERM": "xterm-256color",
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "builder", "show", "demo", "one"]
    process = subprocess.Popen(command, stdout=theirs, stdin=theirs, env=environment, cwd=shop.directory)
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    assert process.wait() == 0
    assert b"\x1b[" in shown
    plain = "".join(
        part.partition("m")[2] if n else part for n, part in enumerate(shown.decode().split("\x1b["))
    )
    words = " ".join(plain.split())
    assert "- b = 2 + b = 3" in words
    assert "Upstream-Status: Pending" in words


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:
        return b""  # the other side closed the terminal


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["show", "d"], {"demo"}),
        (["show", "demo", ""], {"one", "two"}),
        (["patch", "lint", ""], {"demo"}),
        (["patch", "refresh", "demo", "t"], {"two"}),
        (["patch", "edit", "demo", "o"], {"one"}),
        (["new", "x", "--from", "d"], {"demo"}),
        (["probe", "overlay:d"], {"overlay:demo"}),
        (["help", "re"], {"registries", "retirement"}),
        (["probe", "v0.5.1"], {"v0.5.16", "v0.5.17", "v0.5.18", "v0.5.19"}),
    ],
)
def test_shells_complete_overlays_series_and_patches(
    shop: SeriesProject, shell: str, line: list[str], expected: set[str]
) -> None:
    *words, incomplete = line
    environment = {
        **os.environ,
        "OVERLAY_ROOT": str(shop.root),
        "PYTHONPATH": str(ROOT),
        "_OVERLAY_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(["overlay", *words, incomplete]),
        "COMP_CWORD": incomplete if shell == "fish" else str(len(words) + 1),
    }
    code, out, err = forked.run("overlay", [], cwd=shop.directory, environment=environment, timeout=60)
    assert code == 0, err
    if shell == "zsh":
        lines = out.decode().splitlines()
        offered = set(lines[1::3])
    else:
        offered = {entry.split(",")[1].split("\t")[0] for entry in out.decode().splitlines() if "," in entry}
    assert offered == expected


def test_completion_that_cannot_work_offers_nothing(workshop: SeriesProject, tmp_path: Path) -> None:
    environment = {
        **os.environ, "OVERLAY_ROOT": str(tmp_path / "nowhere"), "PYTHONPATH": str(ROOT),
        "_OVERLAY_COMPLETE": "bash_complete", "COMP_WORDS": "overlay show demo ", "COMP_CWORD": "3",
    }  # fmt: skip
    code = "from builder.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
