"""What this machine's GPU computes with a tree's attention kernels: the kernel gate's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.probe.harness import Tree
from builder.temporary import temporary_directory
from evidence.sources import carry
from evidence.worker import run_worker

GATE = "evidence.kernel_gate"


@dataclass(frozen=True)
class Comparison:
    """One kernel against the float32 reference; see :mod:`evidence.kernel_gate` for the bounds.

    Args:
        path: ``bf16``, ``fp8``, ``write`` (of a raw fp8 row) or ``flashmla`` (Triton, DeepSeek-V4's cache).
        heads: query heads a rank.
        topk: columns of the index table.
        tail: width of the RoPE part.
        shared: bytes of shared memory that the device was said to have; 0 for what it has.
        scale: factor on the queries.
        tile: what was launched.
        worst: largest error over its bound; at most 1 is right.
        error: relative L2 error of a row, as root mean square.
        bound: what that may be.
        unquantised: the same against attention over the values before they were made e4m3, if that is asked.
        problem: what went wrong otherwise.
        right: whether all is within its bounds.
    """

    path: str
    heads: int
    topk: int
    tail: int
    shared: int
    scale: float
    tile: str
    worst: float
    error: float
    bound: float
    unquantised: float | None
    problem: str
    right: bool

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Comparison:
        return cls(**facts["case"], **{name: value for name, value in facts.items() if name != "case"})


@dataclass(frozen=True)
class GpuReport:
    """What ran where, and how far off it was.

    Args:
        gpu: its name.
        capability: compute capability.
        shared_memory: bytes that a block can have.
        versions: of torch, triton and tilelang.
        results: one comparison a case.
        times: microseconds a call by heads and tokens; empty when something was wrong.
    """

    gpu: str
    capability: tuple[int, int]
    shared_memory: int
    versions: Mapping[str, str]
    results: tuple[Comparison, ...]
    times: tuple[Mapping[str, Any], ...]

    @property
    def failed(self) -> tuple[Comparison, ...]:
        return tuple(result for result in self.results if not result.right)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"failed": len(self.failed)}

    def markdown(self) -> str:
        """The tables of ``docs/evidence.md``."""
        versions = ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))
        major, minor = self.capability
        right = len(self.results) - len(self.failed)
        lines = [
            f"{self.gpu}, compute capability {major}.{minor}, {self.shared_memory:,} B of shared memory a "
            f"block; {versions}. {right} of {len(self.results)} within their bounds.",
            "",
            "| path | heads | top-k | RoPE | told | tile | worst / bound | L2 error | may be | unquantised |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [_row(result) for result in self.results]
        if self.times:
            names = [name for name in self.times[0] if name not in ("heads", "tokens")]
            lines += ["", f"| heads | tokens | {' | '.join(f'{name}, µs' for name in names)} |"]
            lines += ["|---|---|" + "---|" * len(names)]
            lines += [
                f"| {row['heads']} | {row['tokens']} | {' | '.join(str(row[name]) for name in names)} |"
                for row in self.times
            ]
        return "\n".join(lines) + "\n"


def _row(result: Comparison) -> str:
    if result.problem:
        figures = [f"**{result.problem}**", "", "", ""]
    else:
        far = "" if result.unquantised is None else f"{result.unquantised:.1e}"
        figures = [f"{result.worst:.2f}", f"{result.error:.1e}", f"{result.bound:.1e}", far]
    path = result.path if result.scale == 1 else f"{result.path}, queries times {result.scale:g}"
    told = f"{result.shared:,} B" if result.shared else "its own"
    cells = [path, result.heads or "", result.topk or "", result.tail, told, result.tile, *figures]
    return "| " + " | ".join(map(str, cells)) + " |"


def report(tree: Tree) -> GpuReport:
    """Run the kernel gate on a tree's kernels; takes minutes, most of them in nvcc.

    Raises:
        InvalidInput: the tree has no TileLang kernels.
        UsageError: no GPU, or torch, triton or tilelang is not installed.
        ProbeFailed: the process with the kernels crashed. A wrong result is in the report.
    """
    with temporary_directory("gpu") as directory:
        facts = run_worker(GATE, {"package": str(carry(tree, Path(directory)))})
    return GpuReport(
        facts["gpu"],
        tuple(facts["capability"]),
        facts["shared_memory"],
        facts["versions"],
        tuple(Comparison.read(result) for result in facts["results"]),
        tuple(facts["times"]),
    )
