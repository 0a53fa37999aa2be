"""Evidence by behaviour: what probes say of trees, asked once and remembered."""

from __future__ import annotations

from pathlib import Path

from builder.probe.cached import Memory
from builder.probe.harness import Answer, Tree
from builder.probe.run import TIMEOUT, Prober, read_probe


class CachedProber:
    """Asks the probes of patches about trees. Use as a context; not to be shared between threads.

    Args:
        probes: ``patches/probes``.
        cache: the cache's directory; answers are kept there.
        timeout: seconds for one probe on one tree; None for the usual bound.
    """

    def __init__(self, probes: Path, cache: Path, *, timeout: float | None = None) -> None:
        self._probes = probes
        self._memory = Memory(cache / "probes")
        self._prober = Prober(timeout=timeout or TIMEOUT)

    def __enter__(self) -> CachedProber:
        self._prober.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._prober.__exit__(*error)

    def has_probe(self, patch: str) -> bool:
        """Whether the patch has a probe."""
        return (self._probes / f"{patch}.py").is_file()

    def ask(self, patch: str, tree: Tree) -> Answer:
        """What the patch's probe says of a tree; the remembered answer where there is one.

        Args:
            patch: its name; it has a probe.
            tree: the source tree.

        Raises:
            InvalidInput: the probe cannot be read.
        """
        path = self._probes / f"{patch}.py"
        source = read_probe(path)
        fingerprint: str | None = getattr(tree, "fingerprint", None)
        known = None if fingerprint is None else self._memory.get(source, fingerprint)
        if known is not None:
            return known
        answer = self._prober.ask(path, tree)
        if fingerprint is not None:
            self._memory.put(source, fingerprint, answer)
        return answer
