"""Data files that something reads: JSON, TOML and YAML must parse as they did."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

LARGEST = 8 << 20
"""Bytes of a file that is looked at."""


def why_not_parsed(path: str, data: bytes) -> str | None:
    """Why a data file does not parse; None if it does, or is none."""
    parse = _PARSERS.get(PurePosixPath(path).suffix.lower())
    if parse is None or len(data) > LARGEST:
        return None
    try:
        parse(data)
    except (ValueError, RecursionError) as error:
        return " ".join(str(error).split())[:200] or "nested too deeply"
    return None


def _toml(data: bytes) -> None:
    tomllib.loads(data.decode("utf-8"))


def _yaml(data: bytes) -> None:
    """Its events alone: no alias is followed and no tag is obeyed."""
    import yaml

    try:
        for _ in yaml.parse(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            pass
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


_PARSERS: Mapping[str, Callable[[bytes], object]] = {
    ".json": json.loads,
    ".toml": _toml,
    ".yaml": _yaml,
    ".yml": _yaml,
}
