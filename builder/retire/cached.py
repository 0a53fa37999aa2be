"""What the sources alone say of a series on a target, kept in the user's cache.

Text, behaviour and what a patch breaks follow from the patches, the pin's sources, the target's sources, the
probes and this program: an entry is named after all of them. Verdicts are not kept: they are weighed anew
each time, with what repositories and people say.

An answer is not kept where a limit of time or memory ended the probe: a slow machine can be its reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from builder.patch.series import Series
from builder.probe.harness import Answer
from builder.probe.run import read_probe
from builder.project.cache import Store
from builder.project.program import git_identity, source_digest
from builder.retire.evidence import Behaviour, Dependency, TextEvidence
from builder.soundness.check import Flaw
from builder.source.upstream import Upstream

# All that decides what is found: another version of it finds it anew.
_ROOMS = ("retire", "soundness", "probe", "patch", "source", "project", ".")


@dataclass(frozen=True)
class ProbeAnswer:
    """What a patch's probe says, and the dependencies that its answer hangs on (see :func:`decide`)."""

    behaviour: Behaviour | None = None
    dependencies: tuple[Dependency, ...] = ()
    rolled_back: Answer | None = None

    @property
    def is_certain(self) -> bool:
        """Whether no probe was ended by a limit."""
        found = self.behaviour
        answers = (found.pin, found.pristine, found.carried) if found else ()
        return not any(a is not None and a.was_ended for a in (*answers, self.rolled_back))


@dataclass(frozen=True)
class Found:
    """What the sources say of one patch on one target; ``asked`` is None where that has to be asked anew.

    ``notes`` are of what could not be looked at, or was broken before (see :class:`Soundness`).
    """

    text: TextEvidence
    flaws: tuple[Flaw, ...]
    notes: tuple[str, ...]
    asked: ProbeAnswer | None

    @property
    def is_certain(self) -> bool:
        """Whether no probe was ended by a limit."""
        return self.asked is None or self.asked.is_certain


class KeptEvidence:
    """What was found for one series.

    Args:
        directory: where entries are kept; made when the first is written.
        series: the patches.
        drop: patterns of files that are left out of every patch.
        pin: the sources that the series was cut for.
        probes: ``patches/probes``.
    """

    def __init__(
        self, directory: Path, series: Series, drop: Sequence[str], pin: Upstream, probes: Path
    ) -> None:
        from pyflakes import __version__ as pyflakes

        self._kept = Store(directory)
        self._names = [patch.name for patch in series.patches]
        files = [probes / f"{name}.py" for name in self._names]
        parts = [source_digest(*_ROOMS), git_identity(), pyflakes, *drop, _identity(pin)]
        parts += [f"{patch.name} {_sha256(patch.data)}" for patch in series.patches]
        parts += [f"{path.name} {_sha256(read_probe(path))}" for path in files if path.is_file()]
        self._series = _sha256("\n".join(parts).encode("utf-8", "surrogateescape"))

    def get(self, target: Upstream) -> dict[str, Found] | None:
        """What is known of every patch on a target; None where nothing is, or it cannot be believed."""
        known = self._kept.get(self._key(target))
        return None if known is None else _decoded(dict[str, Found], json.loads(known))

    def put(self, target: Upstream, found: Mapping[str, Found]) -> None:
        """Keep what was found, whole or not at all."""
        rows = {name: asdict(row) for name, row in found.items()}
        for name, row in found.items():
            if not row.is_certain:
                rows[name]["asked"] = None
        self._kept.put(self._key(target), json.dumps(rows, separators=(",", ":")).encode())

    def _key(self, target: Upstream) -> str:
        return _sha256(f"{self._series}\n{_identity(target)}".encode())


def _identity(upstream: Upstream) -> str:
    """Names an upstream's sources, to the byte."""
    return " ".join(f"{mount.prefix}:{mount.commit}" for mount in upstream.mounts)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- values from JSON ---------------------------------------------------------------------------------------


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decoded(kind: Any, value: Any) -> Any:
    """A value of a type as ``json`` gives it: dataclasses, tuples, mappings, literals and plain values.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    if is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{field.name: _decoded(hints[field.name], value[field.name]) for field in fields(kind)})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError("no list")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_decoded(one, item) for one, item in zip(kinds, value, strict=True))
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"not one of {arguments}")
        return value
    if origin is not None and len(arguments) == 2 and NoneType not in arguments:
        return {str(key): _decoded(arguments[1], item) for key, item in value.items()}
    if NoneType in arguments:
        (inner,) = (one for one in arguments if one is not NoneType)
        return None if value is None else _decoded(inner, value)
    if not isinstance(value, kind):
        raise TypeError(f"no {kind}")
    return value
