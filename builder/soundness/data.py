"""Data files that something reads: JSON, TOML and YAML must parse as they did, and say each thing once."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

LARGEST = 8 << 20
"""Bytes of a file that is looked at."""


def why_not_parsed(path: str, data: bytes) -> str | None:
    """Why a data file does not parse; None if it does, or is none, or is larger than :data:`LARGEST`."""
    parse = _PARSERS.get(PurePosixPath(path).suffix.lower())
    if parse is None or len(data) > LARGEST:
        return None
    try:
        parse(data)
    except (ValueError, RecursionError) as error:
        return " ".join(str(error).split())[:200] or "nested too deeply"
    return None


def is_data_file(path: str) -> bool:
    """Whether a file is one of those that are parsed."""
    return PurePosixPath(path).suffix.lower() in _PARSERS


def repeated_keys(path: str, data: bytes) -> frozenset[str]:
    """Keys that one mapping of a data file has twice: readers take the last, or refuse it.

    Args:
        path: of the file; its ending says what it is.
        data: its bytes; of what does not parse nothing is said.
    """
    parse = _PARSERS.get(PurePosixPath(path).suffix.lower())
    if parse is None or len(data) > LARGEST:
        return frozenset()
    try:
        return frozenset(parse(data))
    except (ValueError, RecursionError):
        return frozenset()


def _json(data: bytes) -> set[str]:
    repeated: set[str] = set()

    def note(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            repeated.update(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        return found

    json.loads(data, object_pairs_hook=note)
    return repeated


def _toml(data: bytes) -> set[str]:
    """TOML itself refuses a key that is there twice."""
    tomllib.loads(data.decode("utf-8"))
    return set()


def _yaml(data: bytes) -> set[str]:
    """Its events alone: no alias is followed and no tag is obeyed."""
    import yaml

    repeated: set[str] = set()
    anchors: set[str] = set()
    # The keys so far of each mapping that is open, and whether a key comes next; None for a sequence.
    opened: list[_Mapping | None] = []
    try:
        for event in yaml.parse(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.DocumentStartEvent):
                anchors.clear()
            elif isinstance(event, yaml.CollectionEndEvent):
                opened.pop()
            elif isinstance(event, yaml.NodeEvent):
                if isinstance(event, yaml.AliasEvent) and event.anchor not in anchors:
                    raise ValueError(f"nothing is called &{event.anchor} before *{event.anchor}")
                anchors.add(event.anchor or "")
                if opened and (mapping := opened[-1]) is not None:
                    mapping.take(event, repeated)
                if isinstance(event, yaml.CollectionStartEvent):
                    opened.append(_Mapping() if isinstance(event, yaml.MappingStartEvent) else None)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return repeated


@dataclass
class _Mapping:
    """A mapping of a YAML file that is being read."""

    keys: set[tuple[str, bool]] = field(default_factory=set)
    is_key_next: bool = True

    def take(self, event: Any, repeated: set[str]) -> None:
        """One node more of it: a key, or the value of the one before."""
        if self.is_key_next and (text := getattr(event, "value", None)) not in (None, "<<"):
            key = (text, event.style is None)
            if key in self.keys:
                repeated.add(text)
            self.keys.add(key)
        self.is_key_next = not self.is_key_next


_PARSERS: Mapping[str, Callable[[bytes], set[str]]] = {
    ".json": _json,
    ".toml": _toml,
    ".yaml": _yaml,
    ".yml": _yaml,
}
