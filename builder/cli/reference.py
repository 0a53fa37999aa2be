"""The command reference, made from the commands themselves: Markdown, and manual pages (man(7))."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from builder import __version__
from builder.cli import cli
from builder.cli.build_all import command as build_all

EXIT_CODES = (
    ("0", "done"),
    ("1", "invalid input"),
    ("2", "usage"),
    ("3", "a patch conflicts"),
    ("4", "patches can be retired (with --exit-code)"),
    ("5", "the base or an image is not what it should be"),
    ("6", "not reproducible"),
    ("7", "a probe failed"),
    ("8", "registry, network, engine or disk"),
)
ENVIRONMENT = (
    ("OVERLAY_ROOT", "directory with overlays/ and patches/, as --root"),
    ("OVERLAY_CACHE", "what can be made again is kept here (default: the user's cache directory)"),
    ("OVERLAY_UPSTREAM_URL", "mirror or local repository of the upstream, as --upstream-url"),
    ("OVERLAY_TRACEBACK", "1: show where in overlay an unexpected error came from"),
    ("OVERLAY_REQUIRE_SANDBOX", "1: run no probe where the kernel cannot hold it, as --require-sandbox"),
    ("OVERLAY_INSECURE_REGISTRIES", "registries to reach over http, HOST:PORT separated by commas"),
    ("OVERLAY_RETRY_ATTEMPTS, OVERLAY_RETRY_WAIT", "tries of one request; seconds before the second one"),
    ("SOURCE_DATE_EPOCH", "time of everything new in an image, in seconds since 1970"),
    ("NO_COLOR", "no colors on terminals"),
)


@dataclass(frozen=True)
class Block:
    """A paragraph of help, or lines to be shown as they are."""

    text: str
    is_verbatim: bool


@dataclass(frozen=True)
class Entry:
    """An option: how it is written, and what it does."""

    written: str
    help: str


@dataclass(frozen=True)
class Page:
    """What the reference says of one command."""

    name: str
    summary: str
    usage: str
    body: tuple[Block, ...]
    options: tuple[Entry, ...]
    examples: tuple[Block, ...]


def read_pages() -> list[Page]:
    """A page for each command and sub-command, in the order of ``overlay --help``."""
    context = click.Context(cli, info_name="overlay")
    return list(_pages(cli, context))


def markdown(pages: list[Page]) -> str:
    """``docs/commands.md``."""
    lines = [
        "# Commands",
        "",
        "Made from the commands' own help by `make docs`; a test fails when it is stale.",
        "",
    ]
    lines += [f"- [`{page.name}`](#{page.name.replace(' ', '-')}): {page.summary}" for page in pages[1:]]
    for page in pages[1:]:
        lines += ["", f"## {page.name}", "", "```", page.usage, "```"]
        lines += _markdown_blocks(page.body)
        if page.options:
            lines += ["", "| option | |", "|---|---|"]
            lines += [f"| `{_cell(entry.written)}` | {_cell(entry.help)} |" for entry in page.options]
        lines += _markdown_blocks(page.examples)
    lines += ["", "## Exit codes", "", "| code | |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES]
    lines += ["", "## Environment", "", "| variable | |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in ENVIRONMENT]
    return "\n".join(lines) + "\n"


def man_pages(pages: list[Page]) -> dict[str, str]:
    """Manual pages by file name: ``overlay.1`` and one for each command."""
    return {page.name.replace(" --", "-").replace(" ", "-") + ".1": _man_page(page, pages) for page in pages}


def _pages(command: click.Command, context: click.Context) -> Iterator[Page]:
    yield _page(command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is None or child.hidden:
                continue
            yield from _pages(child, click.Context(child, info_name=name, parent=context))
            if context.parent is None and name == "build":
                yield _page(build_all, click.Context(build_all, info_name="build --all", parent=context))


def _page(command: click.Command, context: click.Context) -> Page:
    body = _blocks(command.help or "")
    options = [
        Entry(", ".join(record[0].split(", ")), record[1])
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context))
    ]
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    return Page(
        context.command_path,
        command.get_short_help_str(limit=120),
        usage,
        tuple(body),
        tuple(options),
        tuple(_blocks(command.epilog or "")),
    )


def _blocks(text: str) -> list[Block]:
    """Click's help text: paragraphs, of which those after a line ``\\b`` keep their lines."""
    blocks = []
    for paragraph in text.strip("\n").split("\n\n"):
        lines = [line.rstrip() for line in paragraph.splitlines() if line.strip()]
        if not lines:
            continue
        if lines[0].strip() == "\b":
            blocks.append(Block("\n".join(lines[1:]), is_verbatim=True))
        else:
            blocks.append(Block(" ".join(line.strip() for line in lines), is_verbatim=False))
    return blocks


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _markdown_blocks(blocks: tuple[Block, ...]) -> Iterator[str]:
    for block in blocks:
        yield from ("", "```", block.text, "```") if block.is_verbatim else ("", block.text)


# --- man(7) -------------------------------------------------------------------------------------------------


def _man_page(page: Page, pages: list[Page]) -> str:
    name = page.name.replace(" --", "-").replace(" ", "-")
    lines = [f'.TH {_roff(name.upper())} 1 "" "overlay {__version__}" "overlay"']
    lines += [".SH NAME", f"{_roff(name)} \\- {_roff(page.summary)}"]
    lines += [".SH SYNOPSIS", f".B {_roff(page.usage)}", ".SH DESCRIPTION", *_man_blocks(page.body)]
    if page is pages[0]:
        lines.append(".SH COMMANDS")
        for other in pages[1:]:
            lines += [".TP", f".B {_roff(other.name)}", _roff(other.summary)]
    if page.options:
        lines.append(".SH OPTIONS")
        for entry in page.options:
            lines += [".TP", f".B {_roff(entry.written)}", _roff(entry.help)]
    if page.examples and page is not pages[0]:
        lines += [".SH EXAMPLES", *_man_blocks(page.examples)]
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_CODES:
        lines += [".TP", f".B {code}", _roff(meaning)]
    lines.append(".SH ENVIRONMENT")
    for variable, meaning in ENVIRONMENT:
        lines += [".TP", f".B {variable}", _roff(meaning)]
    return "\n".join(lines) + "\n"


def _man_blocks(blocks: tuple[Block, ...]) -> Iterator[str]:
    for block in blocks:
        lines = [_roff(line) for line in block.text.splitlines()]
        yield from (".PP", ".nf", *lines, ".fi") if block.is_verbatim else (".PP", *lines)


def _roff(text: str) -> str:
    """Text that man(7) shows as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped
