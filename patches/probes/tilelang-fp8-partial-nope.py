"""Can the fp8 sparse attention kernel be built for a model without a RoPE tail, and are both kinds right?"""

from __future__ import annotations

from support.attention import Case
from support.tilelang import DTYPES, Kernel, Tensor, TileLang

from builder.probe.devices import GB10, cuda_device
from builder.probe.harness import Answer, Program, Tree, call, defect, fixed, locate, unknown

KERNELS = ("python/sglang/kernels/ops/attention/dsa/tilelang_kernel.py",)
FACTORY = "sparse_mla_fwd_decode_partial_fp8"
LATENT, ROPE = 512, 64
FP8 = DTYPES["float8_e4m3fn"]


def _built(tree: Tree, path: str, case: Case) -> tuple[Kernel, Tensor] | str:
    """The kernel, and what it makes of one group of indices; or why the source refuses to build it."""
    tracer = TileLang()
    stubs = cuda_device(GB10) | tracer.stubs | {"is_hip": lambda: False}
    factory = getattr(Program(tree, stubs).module(path), FACTORY)
    sizes = {"num_heads": case.heads, "d_v": case.latent, "d_tail": case.tail, "topk": case.topk}
    try:
        launch = call(factory, **sizes, sm_scale=case.scale, block_I=case.topk, inner_iter=1)
    except (ValueError, AssertionError) as refusal:
        return f"refused: {' '.join(str(refusal).split())[:80]}"
    (kernel,) = tracer.built
    if _cannot_lower(kernel):  # and so cannot run
        return kernel, Tensor((), FP8)
    out, _ = launch(*(tensor.unsqueeze(0) for tensor in case.tensors(FP8)))
    return kernel, out


def _cannot_lower(kernel: Kernel) -> str:
    if any(gemm.depth == 0 for gemm in kernel.products):
        return f"{FACTORY} multiplies over 0 columns, which does not lower"
    return f"{FACTORY} has {sorted(kernel.empty)[0]}" if kernel.empty else ""


def probe(tree: Tree) -> Answer:
    path = locate(tree, KERNELS, f"def {FACTORY}".encode())
    if path is None:
        return unknown(f"{FACTORY} was not found: nothing defines it")
    for tail, model in ((ROPE, f"with a RoPE tail of {ROPE}"), (0, "without a RoPE tail")):
        case = Case(16, LATENT, tail, 64, tokens=1)
        made = _built(tree, path, case)
        if isinstance(made, str):
            return defect(f"{model}: {made}")
        kernel, out = made
        if refused := _cannot_lower(kernel):
            return defect(f"{model}, {refused}")
        if wrong := case.wrong(*case.tensors(FP8), out):
            return defect(f"{model}, {wrong}")
    return fixed(f"right over {LATENT} columns without a RoPE tail, and over {LATENT + ROPE} with one")
