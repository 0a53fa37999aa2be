"""The gate of a build: a patch goes in only where its probe says ``defect`` before and ``fixed`` after."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.apply import AppliedSeries
from builder.errors import ProbeFailed
from builder.lock import write_whole
from builder.probe import harness
from builder.probe.harness import Answer, Tree
from builder.upstream import Mount, Upstream

if TYPE_CHECKING:
    from builder.probe.run import Prober
    from builder.probe.trees import GitTree

_CODE = ("harness.py", "sandbox.py", "run.py", "trees.py", "devices.py", "messages.py")


@dataclass(frozen=True)
class Verdict:
    """What one probe said of the pristine and of the patched tree."""

    before: Answer
    after: Answer

    def __str__(self) -> str:
        return f"{self.before.state}->{self.after.state}"


def probe_series(applied: AppliedSeries, upstream: Upstream, probes: Path, cache: Path) -> dict[str, Verdict]:
    """Ask the probe of every patch that has one about both trees.

    Args:
        applied: the series, applied to ``upstream``.
        upstream: the pristine tree.
        probes: ``patches/probes``.
        cache: answers are kept here by the digests of probe, harness and trees.

    Returns:
        The verdicts by patch name; patches without a probe are not in it.
    """
    files = {name: probes / f"{name}.py" for name in applied.series.names}
    asked = {name: path for name, path in files.items() if path.is_file()}
    pristine_key = f"{upstream.main.commit}"
    patched_key = f"{upstream.main.commit}+{applied.tree}+{applied.patched_tree}"
    changed = {path: None if source is None else source.data for path, source in applied.after.items()}
    with _Session(upstream, changed, cache) as session:
        return {
            name: Verdict(
                session.ask(path, pristine_key, patched=False), session.ask(path, patched_key, patched=True)
            )
            for name, path in asked.items()
        }


def check_verdicts(verdicts: Mapping[str, Verdict], series: str) -> None:
    """Raise :class:`ProbeFailed` unless every verdict is ``defect->fixed``; it names them all."""
    bad = {name: v for name, v in verdicts.items() if (v.before.state, v.after.state) != ("defect", "fixed")}
    if not bad:
        return
    first, verdict = next(iter(bad.items()))
    lines = [
        line
        for name, v in bad.items()
        for line in (f"{name}: {v}", f"  before: {v.before.evidence}", f"  after:  {v.after.evidence}")
    ]
    raise ProbeFailed(
        f"{len(bad)} of {len(verdicts)} probes do not say defect before and fixed after; nothing was written",
        where=f"patches/{series}/{first}.patch",
        expected="defect->fixed",
        found=str(verdict),
        hint="a patch that is not needed goes: overlay diff; one that does not work is to be reworked",
        details="\n".join(lines),
        facts={"probes": {name: asdict(v) for name, v in bad.items()}},
    )


class _Session:
    """One prober and one pair of trees, opened only when an answer is not in the cache."""

    def __init__(self, upstream: Upstream, changed: Mapping[str, bytes | None], cache: Path) -> None:
        self._upstream = upstream
        self._changed = changed
        self._cache = cache / "probes"
        self._open: tuple[Prober, Tree, Tree] | None = None
        self._stack = ExitStack()
        self._code = _digest(*(Path(harness.__file__).with_name(name).read_bytes() for name in _CODE))

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ask(self, probe: Path, tree_key: str, *, patched: bool) -> Answer:
        source = probe.read_bytes()
        path = self._cache / f"{_digest(source, self._code.encode(), tree_key.encode())}.json"
        if (known := _read_answer(path)) is not None:
            return known
        prober, pristine, changed = self._opened()
        answer = prober.ask(probe, changed if patched else pristine)
        if answer.state != "unknown":
            write_whole(path, json.dumps(asdict(answer)).encode())
        return answer

    def _opened(self) -> tuple[Prober, Tree, Tree]:
        if self._open is None:
            from builder.probe.run import Prober
            from builder.probe.trees import MappingTree

            prober = self._stack.enter_context(Prober())
            pristine: Tree = self._stack.enter_context(source_tree(self._upstream.main))
            self._open = (prober, pristine, MappingTree(dict(self._changed), under=pristine))
        return self._open


def source_tree(mount: Mount) -> GitTree:
    """A mount as a tree that probes read; use as a context."""
    from builder.probe.trees import GitTree

    return GitTree(mount.store.path, mount.commit)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _read_answer(path: Path) -> Answer | None:
    """A cached answer; None when there is none, or it is damaged (it is then asked again)."""
    try:
        value = json.loads(path.read_bytes())
        return Answer(value["state"], value["evidence"], tuple(value["pins"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
