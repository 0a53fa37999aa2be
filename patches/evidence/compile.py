"""What the compiler says that a tree's attention kernels ask for, on a machine without a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.probe.devices import GB10, SHARED_MEMORY, named
from builder.probe.harness import Tree
from builder.temporary import temporary_directory
from evidence.sources import carry
from evidence.worker import run_worker

LOWERING = "evidence.lowering"
TARGET = "sm_121a"
LATENT, ROPE, TOPK = 512, 64, 2048
HEADS = (16, 32, 64)
V1 = "sparse_attention_fwd_kernel_v1"
CACHES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}


@dataclass(frozen=True)
class Lowered:
    """One kernel.

    Args:
        heads: query heads a rank.
        tail: width of the RoPE part.
        cache: type of the KV cache, ``bf16`` or ``fp8``.
        factory: which kernel the tree builds; empty when it refuses.
        options: the tile.
        shared: bytes of dynamic shared memory a block; ``None`` when it does not lower.
        ptxas: registers a thread, bytes of static shared memory and bytes spilled, by nvcc; empty without.
        refusal: why there is no such kernel.
    """

    heads: int
    tail: int
    cache: str
    factory: str
    options: Mapping[str, Any]
    shared: int | None
    ptxas: Mapping[str, int]
    refusal: str

    @property
    def tile(self) -> str:
        """``block_I/num_stages/threads``, and the heads a block where the tree says how many."""
        defaults = {"block_I": 64, "num_stages": 2, "threads": 256} if self.factory == V1 else {}
        known = defaults | dict(self.options)
        text = "/".join(str(known[key]) for key in ("block_I", "num_stages", "threads") if key in known)
        shared_out = f"{known['heads_per_block']} heads a block, " if "heads_per_block" in known else ""
        return shared_out + text


@dataclass(frozen=True)
class CompileReport:
    """What the compiler said.

    Args:
        target: the architecture that was compiled for.
        limit: bytes of shared memory that a block of that GPU can have.
        versions: of tilelang, apache-tvm-ffi and torch.
        kernels: one row a kernel.
    """

    target: str
    limit: int
    versions: Mapping[str, str]
    kernels: tuple[Lowered, ...]

    @property
    def over(self) -> tuple[Lowered, ...]:
        """The kernels that cannot be launched on the GPU."""
        return tuple(k for k in self.kernels if k.shared is None or k.shared > self.limit)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"over": len(self.over)}

    def markdown(self) -> str:
        """The tables of ``docs/evidence.md``."""
        versions = ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))
        lines = [
            f"Lowered for {self.target} ({self.limit:,} B a block) with {versions}.",
            "",
            "| cache | heads | RoPE | kernel | tile | shared memory | fits | registers, static, spilled |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [self._row(kernel) for kernel in self.kernels]
        return "\n".join(lines) + "\n"

    def grid(self) -> str:
        """The same as one table of tiles by heads, for maps: what fits is set in bold."""
        tiles = list(dict.fromkeys(kernel.tile for kernel in self.kernels))
        heads = sorted({kernel.heads for kernel in self.kernels})
        asked = {(k.tile, k.heads): k.shared for k in self.kernels}
        lines = [
            f"| block_I/num_stages/threads | {' | '.join(f'{count} heads' for count in heads)} |",
            "|---|" + "---|" * len(heads),
        ]
        lines += [
            f"| {tile} | {' | '.join(self._cell(asked.get((tile, count))) for count in heads)} |"
            for tile in tiles
        ]
        return "\n".join(lines) + "\n"

    def _cell(self, shared: int | None) -> str:
        if shared is None:
            return "does not lower"
        return f"**{shared:,} B**" if shared <= self.limit else f"{shared:,} B"

    def _row(self, kernel: Lowered) -> str:
        asked = f"{kernel.shared:,} B" if kernel.shared is not None else kernel.refusal.replace("|", "/")
        fits = "yes" if kernel.shared is not None and kernel.shared <= self.limit else "no"
        said = kernel.ptxas
        ptxas = f"{said['registers']}, {said['static']} B, {said['spilled']} B" if said else ""
        cells = [kernel.cache, kernel.heads, kernel.tail, kernel.factory, kernel.tile, asked, fits, ptxas]
        return "| " + " | ".join(map(str, cells)) + " |"


def report(tree: Tree) -> CompileReport:
    """The kernels that the tree chooses on a GB10: bf16 and fp8 cache, 16 to 64 heads, with and without RoPE.

    Where nvcc is installed they are assembled too, for registers, static shared memory and spills.

    Raises:
        InvalidInput: the tree has no TileLang kernels.
        UsageError: the extra ``kernels`` is not installed.
        ProbeFailed: the compiler's process crashed.
    """
    wanted = [
        {"heads": heads, "tail": tail, "cache": cache, "dtype": CACHES[cache]}
        for cache in CACHES
        for tail in (0, ROPE)
        for heads in HEADS
    ]
    return _lower(tree, wanted, shutil.which("nvcc"))


def tile_map(tree: Tree) -> CompileReport:
    """Every tile of the v1 kernel in reach, whether or not the tree chooses it: heads without RoPE.

    Raises the same as :func:`report`.
    """
    wanted = [
        {
            "heads": heads,
            "tail": 0,
            "cache": "bf16",
            "factory": V1,
            "arguments": [heads, LATENT, 0, TOPK],
            "options": {"block_I": rows, "num_stages": stages, "threads": threads},
        }
        for heads in HEADS
        for rows in (16, 32, 64)
        for stages in (1, 2)
        for threads in (64, 128, 256)
    ]
    return _lower(tree, wanted, None)


def _lower(tree: Tree, wanted: list[dict[str, Any]], nvcc: str | None) -> CompileReport:
    limit = SHARED_MEMORY[GB10]
    job: dict[str, object] = {
        "target": TARGET,
        "shared": limit,
        "capability": GB10,
        "nvcc": nvcc,
        "kernels": wanted,
    }
    with temporary_directory("compile") as directory:
        facts = run_worker(LOWERING, job | {"package": str(carry(tree, Path(directory)))})
    kernels = tuple(
        Lowered(
            row["heads"],
            row["tail"],
            row["cache"],
            row.get("factory", ""),
            row.get("options", {}),
            row.get("shared"),
            row.get("ptxas", {}),
            row.get("refusal", ""),
        )
        for row in facts["rows"]
    )
    return CompileReport(f"{TARGET} (compute capability {named(GB10)})", limit, facts["versions"], kernels)
