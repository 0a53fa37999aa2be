"""Every link of the documents leads somewhere, and every document is named by another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.cli.help import topics
from tests.conftest import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [
    *PAGES,
    ROOT / "Dockerfile.in",
    *(path for room in ("builder", "benchmarks") for path in sorted((ROOT / room).rglob("*.py"))),
    *(
        path
        for room in ("patches", "overlays")
        for path in sorted((ROOT / room).rglob("*"))
        if path.is_file() and path.suffix in {".py", ".yaml", ".patch", ""}
    ),
]
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The files of this repository that a page links to, each with its anchor."""
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if not re.match(r"[a-z]+:", target):
            name, _, anchor = target.partition("#")
            yield ((page.parent / name).resolve() if name else page), anchor


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings: lower case, without punctuation, blanks as hyphens."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    broken = [
        f"{name_of(target) if target.is_relative_to(ROOT) else target}#{anchor}"
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert broken == []


def test_every_page_is_linked_from_another_one() -> None:
    linked = {target for page in PAGES for target, _ in links(page) if target != page}
    assert [name_of(page) for page in PAGES if page not in linked and page.name != "README.md"] == []


def test_every_document_and_topic_that_code_and_pages_name_is_there() -> None:
    known = set(topics())
    missing = {
        f"{name_of(path)}: {found[0]}"
        for path in SOURCES
        for found in re.finditer(
            r"\bdocs/([a-z][\w.-]*\.(?:md|json|sh|yml|png|py))|overlay help ([a-z][\w-]*)", path.read_text()
        )
        if (not (ROOT / "docs" / found[1]).exists() if found[1] else found[2] not in known)
    }
    assert missing == set()


def test_every_file_of_code_that_pages_name_is_there() -> None:
    named = re.compile(r"`((?:builder|tests|benchmarks|patches|\.github)/[a-z0-9_./-]+\.(?:py|yml|yaml|in))`")
    found = {(name_of(page), path) for page in PAGES for path in named.findall(page.read_text())}
    assert len(found) > 5
    assert [pair for pair in sorted(found) if not (ROOT / pair[1]).exists()] == []


def printed(path: Path) -> Iterator[str]:
    """A module's texts but for its docstrings."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_what_is_printed_names_topics_which_are_there_wherever_overlay_is_installed() -> None:
    texts = {name_of(path): list(printed(path)) for path in sorted((ROOT / "builder").rglob("*.py"))}
    texts["docs/commands.md"] = [(ROOT / "docs" / "commands.md").read_text()]
    pages = re.compile(r"\bdocs/[a-z-]+\.md")
    assert {name: text for name, all_ in texts.items() for text in all_ if pages.search(text)} == {}
