"""How much shared memory does the sparse attention kernel ask for, and does SM12x have that much?"""

from __future__ import annotations

from dataclasses import dataclass

from builder.probe.devices import GB10, HOPPER, SHARED_MEMORY, cuda_device
from builder.probe.harness import Answer, Program, Tree, defect, fixed, locate, unknown
from builder.probe.tilelang import DTYPES, Tensor, TileLang

KERNELS = ("python/sglang/kernels/ops/attention/dsa/tilelang_kernel.py",)
LATENT = 512
WIDTHS = (LATENT, LATENT + 64)  # without and with a RoPE tail
HEADS = (16, 32, 64)
TOPK = 2048
BF16, INT32 = DTYPES["bfloat16"], DTYPES["int32"]


@dataclass(frozen=True)
class Asked:
    """What one call asks for: bytes of shared memory, or why there is no kernel."""

    width: int
    heads: int
    bytes: int = 0
    exact: bool = True
    refusal: str = ""

    def __str__(self) -> str:
        model = "RoPE" if self.width > LATENT else "NoPE"
        asked = f"{'' if self.exact else 'about '}{self.bytes:,} B"
        return f"{self.refusal or asked} at {self.heads} heads ({model})"


def _ask(tree: Tree, path: str, gpu: tuple[int, int], width: int, heads: int) -> Asked:
    tracer = TileLang()
    program = Program(tree, cuda_device(gpu) | tracer.stubs | {"is_hip": lambda: False})
    forward = program.module(path).tilelang_sparse_fwd
    q = Tensor((4, heads, width), BF16)
    kv, indices = Tensor((4096, 1, width), BF16), Tensor((4, 1, TOPK), INT32)
    try:
        forward(q=q, kv=kv, indices=indices, sm_scale=width**-0.5, d_v=LATENT)
    except (ValueError, AssertionError) as refusal:
        return Asked(width, heads, refusal=f"refused ({' '.join(str(refusal).split())[:80]})")
    kernels = [launch.kernel for launch in tracer.launched]
    most = max(kernels, key=lambda kernel: kernel.shared, default=None)
    return Asked(width, heads, most.shared, not most.branches) if most else Asked(width, heads)


def probe(tree: Tree) -> Answer:
    path = locate(tree, KERNELS, b"def tilelang_sparse_fwd")
    if path is None:
        return unknown("the TileLang DSA kernel was not found: nothing defines tilelang_sparse_fwd")
    asked = {
        gpu: [_ask(tree, path, gpu, width, heads) for width in WIDTHS for heads in HEADS]
        for gpu in (GB10, HOPPER)
    }
    if any(a.bytes == 0 and not a.refusal for answers in asked.values() for a in answers):
        return unknown("tilelang_sparse_fwd launches no kernel with shared memory")
    limit = SHARED_MEMORY[GB10]
    over = [a for a in asked[GB10] if a.bytes > limit]
    served = [a for a in asked[GB10] if a.bytes and a.bytes <= limit]
    if over:
        return defect(f"{', '.join(map(str, over))}; SM12x has {limit:,} B")
    if not {16, 32} <= {a.heads for a in served}:
        return defect(
            f"{', '.join(str(a) for a in asked[GB10] if a.heads < 64)} although SM12x has {limit:,} B"
        )
    lost = [a for a in asked[HOPPER] if a.refusal or a.bytes > SHARED_MEMORY[HOPPER]]
    if lost:
        return unknown(f"not even 9.0 can run it: {', '.join(map(str, lost))}")
    refused = [str(a) for a in asked[GB10] if a.refusal]
    return fixed(f"{', '.join([*map(str, served), *refused])}; SM12x has {limit:,} B")
