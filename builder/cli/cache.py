"""``overlay cache``"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from builder.cli.output import json_option, print_json, print_line, print_table
from builder.project.cache import Entry, damaged, list_entries, prune
from builder.project.project import cache_path, state_path

_DAY = 24 * 3600.0


@click.group("cache", epilog="Examples: overlay cache list; overlay cache prune --unused 0")
def command() -> None:
    """List or remove what overlay keeps on this machine; all of it can be made again."""


@command.command("list", epilog="Example: overlay cache list --json")
@json_option
def list_cache(as_json: bool) -> None:
    """List what is in the cache, its size, and when it was last used."""
    cache = cache_path()
    entries, wrong = list_entries(cache), set(damaged(cache))
    if as_json:
        print_json(
            {"path": str(cache), "size": _total(entries), "entries": [_facts(e, wrong) for e in entries]}
        )
        return
    print_table(
        ("SIZE", "USED", "WHAT", "NAME"),
        [
            (
                f"{entry.size:,}",
                _date(entry),
                entry.kind + (" (damaged)" if entry.path in wrong else ""),
                str(entry.path.relative_to(cache)),
            )
            for entry in entries
        ],
    )
    print_line(f"{_total(entries):,} bytes in {cache}")


@command.command("prune", epilog="Example: overlay cache prune --unused 30")
@click.option(
    "--unused",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="DAYS",
    help="Remove what was not used for so many days; 0 removes everything.",
)
@json_option
def prune_cache(unused: float, as_json: bool) -> None:
    """Remove what is damaged or was not used for a while; what an open work tree reads from stays."""
    gone = prune(cache_path(), older_than=unused * _DAY, state=state_path())
    if as_json:
        print_json({"removed": [str(entry.path) for entry in gone], "size": _total(gone)})
        return
    for entry in gone:
        print_line(f"removed   {entry.path}")
    print_line(f"{_total(gone):,} bytes freed")


def _total(entries: list[Entry]) -> int:
    return sum(entry.size for entry in entries)


def _date(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.used, UTC).strftime("%Y-%m-%d")


def _facts(entry: Entry, wrong: set[Path]) -> dict[str, object]:
    return {
        "path": str(entry.path),
        "kind": entry.kind,
        "size": entry.size,
        "used": _date(entry),
        "damaged": entry.path in wrong,
    }
