"""Documents made from code say what the code says."""

from __future__ import annotations

import importlib.util
import json
import unicodedata
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
import yaml

from benchmarks.readme import figures, read_figures

DOCS = Path(__file__).parents[2] / "docs"
OVERLAYS = sorted((DOCS.parent / "overlays").glob("*.yaml"))


def _generator() -> ModuleType:
    found = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "text"), _generator().documents().items())
def test_generated_documents_are_not_stale(name: str, text: str) -> None:
    assert (DOCS / name).read_text() == text, "run: make docs"


def test_help_and_documents_hold_no_control_characters() -> None:
    """Click's mark for lines to be kept as they are is a backspace; where it is misplaced, it is shown."""
    for name, text in _generator().documents().items():
        assert [line for line in text.splitlines() if not line.replace("\t", "").isprintable()] == [], name


def test_no_text_of_the_project_holds_characters_that_are_not_seen() -> None:
    """Such as a zero-width space in a message, which nobody can search for."""
    root = DOCS.parent
    texts = [*root.glob("*.md"), *DOCS.glob("*.md"), *(root / "builder").rglob("*.py"), *OVERLAYS]
    unseen = {
        f"{path.relative_to(root)}: {character!a}"
        for path in texts
        for character in path.read_text()
        if unicodedata.category(character) in ("Cf", "Co", "Zl", "Zp") or character == "\N{NO-BREAK SPACE}"
    }
    assert len(texts) > 200
    assert unseen == set()


def test_readme_has_the_figures_of_the_last_benchmark_run() -> None:
    assert read_figures(DOCS.parent / "README.md") == figures(DOCS / "benchmarks.json"), "run: make bench"


def test_every_manual_page_is_of_a_command() -> None:
    made = {name.removeprefix("man/") for name in _generator().documents() if name.startswith("man/")}
    assert {path.name for path in (DOCS / "man").iterdir()} == made
    assert {"overlay.1", "overlay-build.1", "overlay-build-all.1", "overlay-patch-import.1"} <= made


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
def test_every_shipped_spec_fits_the_published_schema(overlay: Path) -> None:
    schema = json.loads((DOCS / "spec.schema.json").read_text())
    value = json.loads(json.dumps(yaml.safe_load(overlay.read_text()), default=str))
    jsonschema.validate(value, schema)
