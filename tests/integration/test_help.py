"""``overlay help`` shows the documents of the program, wherever it runs."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, Overlay

DOCS = ROOT / "docs"
TITLES = {path.stem: path.read_text().partition("\n")[0].removeprefix("# ") for path in DOCS.glob("*.md")}


def test_topics_are_listed_with_their_titles(overlay: Overlay) -> None:
    listed = overlay("help").check().out.splitlines()[1:]
    assert dict(line.split(maxsplit=1) for line in listed) == TITLES
    facts = overlay("help", "--json").check().json
    assert {fact["topic"]: fact["title"] for fact in facts} == TITLES


@pytest.mark.parametrize("topic", ["retirement", "retirement.md", "docs/retirement.md"])
def test_a_document_is_shown_as_it_is_where_nobody_reads_along(overlay: Overlay, topic: str) -> None:
    assert overlay("help", topic).check().out == (DOCS / "retirement.md").read_text()
    assert overlay("help", topic, "--json").check().json["text"] == (DOCS / "retirement.md").read_text()


@pytest.mark.parametrize(
    ("topic", "hint"),
    [
        ("registrys", "overlay help registries"),
        ("build", "overlay build --help"),
        ("../README", "overlay help, without"),
        ("zzz", "overlay help, without"),
    ],
)
def test_an_unknown_topic_names_what_was_meant(overlay: Overlay, topic: str, hint: str) -> None:
    refused = overlay("help", topic).check(2)
    assert f"found:    {topic}" in refused.err
    assert f"try:      {hint}" in refused.err


def test_a_terminal_gets_a_pager_and_laid_out_tables(overlay: Overlay, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGED\nexec cat\n")
    pager.chmod(0o755)
    reading, writing = pty.openpty()
    environment = {**overlay.environment, "PAGER": str(pager), "NO_COLOR": "1", "TERM": "xterm"}
    process = subprocess.Popen(
        [overlay.program, "help", "install"], env=environment, stdin=writing, stdout=writing
    )
    os.close(writing)
    shown = b""
    with contextlib.suppress(OSError):  # how the end of a pseudo-terminal is told
        while part := os.read(reading, 4096):
            shown += part
    os.close(reading)
    assert process.wait() == 0
    assert shown.startswith(b"PAGED")
    assert b"|---" not in shown
