"""Can the fp8 sparse attention kernel be built for a model that has no RoPE tail?"""

from __future__ import annotations

from builder.probe.devices import GB10, cuda_device
from builder.probe.harness import (
    Answer,
    CannotTell,
    Program,
    Tree,
    call,
    defect,
    fixed,
    locate,
    unknown,
)
from builder.probe.tilelang import Kernel, TileLang

KERNELS = ("python/sglang/kernels/ops/attention/dsa/tilelang_kernel.py",)
FACTORY = "sparse_mla_fwd_decode_partial_fp8"
LATENT, ROPE = 512, 64
HEADS = 32


def _build(tree: Tree, path: str, tail: int) -> Kernel | str:
    """The kernel for a tail of this width, or why the source refuses to build it."""
    tracer = TileLang()
    stubs = cuda_device(GB10) | tracer.stubs | {"is_hip": lambda: False}
    factory = getattr(Program(tree, stubs).module(path), FACTORY)
    known = {"num_heads": HEADS, "d_v": LATENT, "d_tail": tail, "topk": 2048, "sm_scale": LATENT**-0.5}
    try:
        call(factory, **known)
    except (ValueError, AssertionError) as refusal:
        return f"refused: {' '.join(str(refusal).split())[:80]}"
    (kernel,) = tracer.built
    return kernel


def _depth_of_scores(kernel: Kernel) -> int:
    """Columns of a query row that reach the scores: the depth of all products but those with V.

    The source multiplies a row piece by piece; products with V have the latent's columns on the right,
    and are over the block of keys.
    """
    scores = [gemm for gemm in kernel.products if gemm.columns == kernel.arguments["block_I"]]
    return sum(gemm.depth for gemm in scores)


def probe(tree: Tree) -> Answer:
    path = locate(tree, KERNELS, f"def {FACTORY}".encode())
    if path is None:
        return unknown(f"{FACTORY} was not found: nothing defines it")
    rope, nope = _build(tree, path, ROPE), _build(tree, path, 0)
    if isinstance(rope, str):
        return unknown(f"with a RoPE tail of {ROPE}: {rope}")
    if (depth := _depth_of_scores(rope)) != LATENT + ROPE:
        return unknown(f"with a RoPE tail of {ROPE}, scores are over {depth} columns, not {LATENT + ROPE}")
    if isinstance(nope, str):
        return defect(f"without a RoPE tail: {nope}")
    if any(gemm.depth == 0 for gemm in nope.products):
        return defect(f"without a RoPE tail, {FACTORY} multiplies over 0 columns, which does not lower")
    if nope.empty:
        return defect(f"without a RoPE tail, {FACTORY} has {sorted(nope.empty)[0]}")
    if (depth := _depth_of_scores(nope)) != LATENT:
        raise CannotTell(f"without a RoPE tail, scores are over {depth} columns, not {LATENT}")
    return fixed(f"scores over {LATENT} columns without a RoPE tail, over {LATENT + ROPE} with one")
