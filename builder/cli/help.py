"""``overlay help``"""

from __future__ import annotations

import io
import sys

import click
from click.shell_completion import CompletionItem

from builder.cli import COMMANDS
from builder.cli.output import colors_wanted, json_option, print_json, print_line, print_table
from builder.errors import UsageError
from builder.project.project import documents_path


def complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Topics that start as the line does."""
    return [CompletionItem(topic) for topic in topics() if topic.startswith(incomplete)]


@click.command("help", epilog="Examples: overlay help; overlay help retirement")
@click.argument("topic", required=False, shell_complete=complete_topic)
@json_option
def command(topic: str | None, as_json: bool) -> None:
    """Show one of the documents; without TOPIC, list them.

    They come with the program and describe this version of it. A terminal shows them in a pager (PAGER), a
    pipe gets the Markdown as it is. Options of a command: overlay COMMAND --help.
    """
    if topic is None:
        _list(as_json)
        return
    text = read_topic(topic)
    if as_json:
        print_json({"topic": topic, "title": _title(text), "text": text})
    elif sys.stdout.isatty():
        click.echo_via_pager(_rendered(text))
    else:
        print_line(text.rstrip("\n"))


def topics() -> list[str]:
    """The names of all documents, sorted."""
    return sorted(path.stem for path in documents_path().glob("*.md"))


def read_topic(topic: str) -> str:
    """The Markdown of a document.

    Raises:
        UsageError: there is none of this name, with the nearest one, or the command of this name.
    """
    known = topics()
    name = topic.removeprefix("docs/").removesuffix(".md")
    if name in known:
        return (documents_path() / f"{name}.md").read_text(encoding="utf-8")
    if name in COMMANDS:
        hint = f"overlay {name} --help"
    else:
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=1)
        hint = f"overlay help {near[0]}" if near else f"overlay help, without a topic, lists {len(known)}"
    raise UsageError("there is no help topic of this name", found=topic, hint=hint)


def _list(as_json: bool) -> None:
    found = [(topic, _title(read_topic(topic))) for topic in topics()]
    if as_json:
        print_json([{"topic": topic, "title": title} for topic, title in found])
    else:
        print_table(("TOPIC", "TITLE"), found)


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _rendered(text: str) -> str:
    """Markdown as a terminal shows it: headings, tables and lists laid out."""
    from rich.console import Console
    from rich.markdown import Markdown

    page = io.StringIO()
    console = Console(file=page, force_terminal=colors_wanted(sys.stdout), width=min(Console().width, 110))
    console.print(Markdown(text, hyperlinks=False))
    return page.getvalue()
