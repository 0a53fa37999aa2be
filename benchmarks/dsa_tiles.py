"""Time every tile of the sparse attention kernel that SM12x can hold, on the GPU of this machine.

    python -m benchmarks.dsa_tiles DIRECTORY > table.md

DIRECTORY holds ``python/sglang`` with the patch ``dsa-tilelang-smem``; its choice of tile rests on this
table. Needs the extra ``kernels`` and a GPU; takes some minutes, most of them in nvcc. The times are medians
of CUDA graph replays over index tables that point into a pool larger than any cache, at top-k 2048.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evidence import sources
from evidence.kernel_gate import LATENT, SM12X_SHARED, needs, time_of

from builder.probe.trees import DirectoryTree

TOPK = 2048
ROWS = 1 << 20
HEADS = (16, 32, 64)
TOKENS = (1, 8, 66, 1056)


@dataclass(frozen=True)
class Tile:
    """What the kernel factory takes, and the model of what it asks for."""

    heads_per_block: int
    block_I: int  # noqa: N815 - the factory's name
    num_stages: int
    threads: int

    def __str__(self) -> str:
        return f"{self.heads_per_block} heads, {self.block_I}/{self.num_stages}/{self.threads}"

    @property
    def shared(self) -> int:
        rows = self.heads_per_block + self.num_stages * self.block_I
        return 2 * (rows * LATENT + self.heads_per_block * self.block_I) + 8 * self.threads


def in_reach(heads: int) -> list[Tile]:
    """The default tile, and every tile that lowers and that SM12x can hold."""
    tiles = [
        Tile(share, rows, stages, threads)
        for share in (16, 32, 64)
        for rows in (16, 32, 64)
        for stages in (1, 2, 3)
        for threads in (64, 128, 256)
        if share <= heads
    ]
    default = Tile(heads, 64, 2, 256)
    return [default, *(tile for tile in tiles if tile.shared <= SM12X_SHARED and tile != default)]


def build(module: Any, heads: int, tile: Tile) -> Any:
    """The kernel, or ``None`` where tilelang has no layout for this tile (it names no class for that)."""
    try:
        return module.sparse_attention_fwd_kernel_v1(
            heads, LATENT, 0, TOPK, sm_scale=LATENT**-0.5, **vars(tile)
        )
    except Exception as error:
        print(f"left out {tile}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        return None


def measured(torch: Any, module: Any, heads: int, pool: Any) -> dict[Tile, list[float]]:
    """Microseconds by tile, one for each of :data:`TOKENS`."""
    tiles = in_reach(heads)
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        kernels = dict(zip(tiles, workers.map(lambda tile: build(module, heads, tile), tiles), strict=True))
    times: dict[Tile, list[float]] = {tile: [] for tile, kernel in kernels.items() if kernel}
    for tokens in TOKENS:
        q = torch.randn(1, tokens, heads, LATENT, device="cuda", dtype=torch.bfloat16)
        shape = (1, tokens, 1, TOPK)
        sets = 8 if tokens < 1000 else 2
        tables = [torch.randint(0, ROWS, shape, device="cuda", dtype=torch.int32) for _ in range(sets)]
        for tile, row in times.items():
            row.append(time_of(torch, partial(kernels[tile], q, pool), tables))
    return times


def main() -> None:
    torch = needs()
    with tempfile.TemporaryDirectory() as directory:
        package = sources.carry(DirectoryTree(Path(sys.argv[1])), Path(directory))
        module = sources.load(package, sources.TILELANG_KERNELS, "tilelang_kernels")
        pool = torch.randn(1, ROWS, 1, LATENT, device="cuda", dtype=torch.bfloat16)
        print(f"{torch.cuda.get_device_name()}, times in units of the default tile's.\n")
        print(f"| heads | tile | shared memory | {' | '.join(f'{n} tokens' for n in TOKENS)} |")
        print("|---|---|---|" + "---|" * len(TOKENS))
        for heads in HEADS:
            times = measured(torch, module, heads, pool)
            default = Tile(heads, 64, 2, 256)
            for tile, row in sorted(times.items(), key=lambda item: item[1][1]):
                cells = [f"{time / base:.2f}" for time, base in zip(row, times[default], strict=True)]
                print(f"| {heads} | {tile} | {tile.shared:,} B | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
