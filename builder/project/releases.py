"""The SGLang releases that can be named by version alone: wheel and, where known, commit of each.

They stand in ``releases.yaml`` beside this module, and in ``releases.yaml`` of a root, which adds to it.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from builder.errors import InvalidInput
from builder.project.spec import UpstreamSpec, Wheel

_SHIPPED = Path(__file__).with_name("releases.yaml")
_RELEASE = re.compile(r"v(\d+(?:\.\d+)*)(.*)\Z")


def release_upstream(release: str, root: Path | None = None) -> UpstreamSpec:
    """The pin of a release.

    Args:
        release: such as ``v0.5.20``.
        root: a directory whose ``releases.yaml`` is read as well.

    Raises:
        InvalidInput: the release is not in the table, with the nearest one; or a table is not of its form.
    """
    pins = known_releases(root)
    if release not in pins:
        near = get_close_matches(release, pins, n=1)
        raise InvalidInput(
            "there is no pin for this release",
            where="releases.yaml",
            expected=", ".join(pins),
            found=release,
            hint=f"did you mean {near[0]}? Otherwise add it to releases.yaml, or name REPOSITORY@REVISION"
            if near
            else "add it to releases.yaml, or name REPOSITORY@REVISION",
        )
    return pins[release]


def releases_after(release: str, root: Path | None = None) -> list[str]:
    """The known releases that are newer than ``release``, oldest first."""
    than = release_order(release)
    return sorted((name for name in known_releases(root) if release_order(name) > than), key=release_order)


def release_order(release: str) -> tuple[tuple[int, ...], bool, str]:
    """A key that sorts releases; ``v0.5.20rc1`` comes before ``v0.5.20``, and what is not a release first."""
    match = _RELEASE.match(release)
    if match is None:
        return ((), False, release)
    return (tuple(map(int, match[1].split("."))), match[2] == "" or match[2].startswith(".post"), match[2])


def known_releases(root: Path | None = None) -> dict[str, UpstreamSpec]:
    """Every release of the tables, in their order.

    Args:
        root: a directory whose ``releases.yaml``, where there is one, is read after the shipped one.

    Raises:
        InvalidInput: a table is not of its form.
    """
    tables = [_SHIPPED] + ([root / "releases.yaml"] if root and (root / "releases.yaml").is_file() else [])
    return {name: pin for table in tables for name, pin in _read_table(table).items()}


def _commit(row: dict[str, str]) -> str | None:
    return None if row.get("commit", "null") in ("null", "~", "") else row["commit"]


@lru_cache(maxsize=4)
def _read_table(path: Path) -> dict[str, UpstreamSpec]:
    import yaml
    from pydantic import ValidationError

    try:
        # Texts alone: a hash of nothing but digits is not a number. It makes only texts, so it is safe.
        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        rows = yaml.load(path.read_bytes(), Loader=loader) or {}  # noqa: S506
        pins = {}
        for name, row in rows.items():
            wheel = Wheel(requirement=f"sglang=={name.removeprefix('v')}", sha256=row["wheel"])
            pins[name] = UpstreamSpec(release=name, commit=_commit(row), wheel=wheel)
    except (yaml.YAMLError, ValidationError, AttributeError, KeyError, TypeError) as error:
        raise InvalidInput(
            "table of releases is not of its form",
            where=str(path),
            expected="lines such as v0.5.20: {commit: 40 hex digits or null, wheel: 64 hex digits}",
            found=str(error).splitlines()[0],
        ) from error
    return pins
