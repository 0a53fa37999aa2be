"""Change a spec's text without losing a comment: only the bytes of the value that changes are touched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from builder.errors import InvalidInput

_PLAIN = re.compile(r"[A-Za-z0-9_./@:=+-]*[A-Za-z0-9_./@=+-]\Z")
_NUMBER = re.compile(r"[-+.]?\d[\d_.eE+-]*\Z|\d{4}-\d\d-\d\d")
_BUMP = re.compile(r"(.*?)(\d+)(\D*)\Z", re.DOTALL)


class SpecText:
    """The text of ``overlays/NAME.yaml`` while it is changed.

    Args:
        path: for errors.
        text: what the file holds.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text

    def set(self, keys: Sequence[str], value: str) -> None:
        """Set a scalar; the key is added at the end of its mapping where it is missing.

        Raises:
            InvalidInput: there is no mapping to set it in.
        """
        found = self._find(keys)
        if found is None:
            self._add(keys, value)
            return
        _, node = found
        if not isinstance(node, yaml.ScalarNode):
            raise self._not_editable(keys, "a single value")
        dated = node.tag == "tag:yaml.org,2002:timestamp"
        written = _written(value, node.style) if not dated else value
        self._replace(node.start_mark.index, node.end_mark.index, written)

    def remove(self, keys: Sequence[str]) -> None:
        """Remove a key with its value, and the comment on its line; nothing happens where it is missing.

        Raises:
            InvalidInput: it stands in a mapping written in braces.
        """
        found = self._find(keys)
        if found is None:
            return
        key, node = found
        start = self.text.rfind("\n", 0, key.start_mark.index) + 1
        if self.text[start : key.start_mark.index].strip():
            raise self._not_editable(keys, "a key on a line of its own")
        end = _end(node)
        newline = self.text.find("\n", max(end - 1, start))
        self._replace(start, len(self.text) if newline < 0 else newline + 1, "")

    def remove_item(self, keys: Sequence[str], item: str) -> None:
        """Take an item out of a list, and the list with its last one; nothing happens where it is missing."""
        found = self._find(keys)
        if found is None or not isinstance(found[1], yaml.SequenceNode):
            return
        node = found[1]
        places = [n for n, entry in enumerate(node.value) if str(entry.value) == item]
        if not places:
            return
        if len(node.value) == len(places):
            self.remove(keys)
            return
        entry = node.value[places[0]]
        if node.flow_style:
            self._remove_flow_item(node, places[0])
        else:
            start = self.text.rfind("\n", 0, entry.start_mark.index) + 1
            newline = self.text.find("\n", entry.end_mark.index)
            self._replace(start, len(self.text) if newline < 0 else newline + 1, "")

    def get(self, keys: Sequence[str]) -> str | None:
        """A scalar as it is written; None where it is missing."""
        found = self._find(keys)
        return str(found[1].value) if found and isinstance(found[1], yaml.ScalarNode) else None

    def _remove_flow_item(self, node: yaml.SequenceNode, number: int) -> None:
        entries = node.value
        if number + 1 < len(entries):
            self._replace(entries[number].start_mark.index, entries[number + 1].start_mark.index, "")
        else:
            self._replace(entries[number - 1].end_mark.index, entries[number].end_mark.index, "")

    def _find(self, keys: Sequence[str]) -> tuple[yaml.Node, yaml.Node] | None:
        node = yaml.compose(self.text, Loader=yaml.SafeLoader)
        key: yaml.Node | None = None
        for name in keys:
            if not isinstance(node, yaml.MappingNode):
                return None
            pair = next(((k, v) for k, v in node.value if k.value == name), None)
            if pair is None:
                return None
            key, node = pair
        return None if key is None or node is None else (key, node)

    def add_lines(self, keys: Sequence[str], lines: Sequence[str]) -> None:
        """Add lines of YAML at the end of a mapping, indented as its keys are.

        Raises:
            InvalidInput: there is no such mapping with a line for each key.
        """
        found = self._find(keys)
        node = found[1] if found else None
        if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
            raise self._not_editable(keys, "a mapping with a line for each key")
        self._append(node, lines)

    def _append(self, node: yaml.MappingNode, lines: Sequence[str]) -> None:
        indent = " " * node.value[0][0].start_mark.column
        end = _end(node.value[-1][1])
        newline = self.text.find("\n", max(end - 1, 0))
        added = "".join(f"{indent}{line}\n" for line in lines)
        if newline < 0:
            self.text += "\n" + added
        else:
            self._replace(newline + 1, newline + 1, added)

    def _add(self, keys: Sequence[str], value: str) -> None:
        parent = self._find(keys[:-1]) if len(keys) > 1 else None
        node = parent[1] if parent else yaml.compose(self.text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
            raise self._not_editable(keys, "a mapping with a line for each key")
        self._append(node, [f"{keys[-1]}: {_written(value, None)}"])

    def _replace(self, start: int, end: int, text: str) -> None:
        self.text = self.text[:start] + text + self.text[end:]

    def _not_editable(self, keys: Sequence[str], expected: str) -> InvalidInput:
        return InvalidInput(
            "spec cannot be changed in place",
            where=f"{self.path}: {'.'.join(keys)}",
            expected=expected,
            hint="change it by hand",
        )


def bumped(version: str) -> str:
    """The next version: the last number in it plus one."""
    match = _BUMP.match(version)
    return f"{match[1]}{int(match[2]) + 1}{match[3]}" if match else f"{version}.1"


def _end(node: yaml.Node) -> int:
    """Where a node's own text ends: a block's end mark is behind the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and node.value and not node.flow_style:
        return _end(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and node.value and not node.flow_style:
        return _end(node.value[-1])
    return int(node.end_mark.index)


def _written(value: str, style: str | None) -> str:
    """A string as YAML, in the style that it had, quoted where it would be something else without."""
    if style == "'":
        return "'" + value.replace("'", "''") + "'"
    if style is None and _PLAIN.match(value) and not _NUMBER.match(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
