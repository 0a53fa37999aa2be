"""Write the documents that are made from the code. A test fails when one of them is stale."""

from __future__ import annotations

import json
from pathlib import Path

from builder import manifest, spec


def documents() -> dict[str, str]:
    """Every generated document, by its path below ``docs/``."""
    return {
        "manifest.schema.json": _json(manifest.json_schema()),
        "spec.schema.json": _json(spec.json_schema()),
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, text in documents().items():
        (Path(__file__).parent / name).write_text(text)
