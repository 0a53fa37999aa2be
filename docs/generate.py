"""Write the documents that are made from the code. A test fails when one of them is stale."""

from __future__ import annotations

import json
from pathlib import Path

from builder.cli.reference import man_pages, markdown, read_pages
from builder.project import spec
from builder.record import manifest


def documents() -> dict[str, str]:
    """Every generated document, by its path below ``docs/``."""
    pages = read_pages()
    return {
        "commands.md": markdown(pages),
        "manifest.schema.json": _json(manifest.json_schema()),
        "spec.schema.json": _json(spec.json_schema()),
    } | {f"man/{name}": text for name, text in man_pages(pages).items()}


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    here = Path(__file__).parent
    for page in (here / "man").glob("*.1"):
        page.unlink()  # of commands that are gone
    for name, text in documents().items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
