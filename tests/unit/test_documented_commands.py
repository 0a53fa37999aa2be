"""Every ``overlay …`` line of the documents is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from builder.cli import cli
from builder.cli.build_all import command as build_all

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(path: Path) -> Iterator[str]:
    """Lines of code blocks with the command, continued ones joined; what follows two blanks explains."""
    for block in BLOCK.findall(path.read_text()):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            text = re.split(r"\s{2,}", line.strip().removeprefix("$ "))[0]
            if text.startswith("overlay ") and "[OPTIONS]" not in text:
                yield text


ALL = [(path.name, line) for path in DOCUMENTS for line in dict.fromkeys(commands(path))]


def words_of(line: str) -> list[str]:
    """The line's words, up to where a shell or the server's arguments go on."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>&;")
    lexer.whitespace_split = True
    found: list[str] = []
    for word in lexer:
        if word in ("|", ">", ">>", "&&", ";", "--") or word == "…":
            break
        found.append(word)
    return found[1:]


def options_of(command: click.Command) -> set[str]:
    found = {"-h", "--help"}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            found |= {*parameter.opts, *parameter.secondary_opts}
    return found


@pytest.mark.parametrize(("document", "line"), ALL, ids=[f"{name}: {line}"[:90] for name, line in ALL])
def test_documented_commands_exist(document: str, line: str) -> None:
    words = words_of(line)
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, line
        command = found
    if "--all" in words and command.name == "build":
        command = build_all
    known = options_of(command) | ({"--all"} if command is build_all else set())
    if command is cli:
        known |= {"--version"}
    said = [word.partition("=")[0] for word in words if word.startswith("-") and word != "-"]
    assert set(said) <= known, f"{document}: {line}"


def test_the_documents_were_found() -> None:
    assert len(ALL) > 60
