"""With DeepGEMM off, which kernel does the GEMM before mHC's mapping, and is its result the one that is read?

``mhc_pre`` and ``mhc_fused_post_pre`` run with stand-ins for the kernels; buffers know who wrote them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from builder.probe.harness import (
    Answer,
    CannotTell,
    Opaque,
    Program,
    Tree,
    call,
    defect,
    environment,
    fixed,
    locate,
    unknown,
)

KERNELS = ["python/sglang/kernels/ops/layernorm/mhc.py", "python/sglang/srt/layers/mhc.py"]
STREAMS, HIDDEN = 4, 4096  # GLM-5.3-Flash
OUT = STREAMS * 2 + STREAMS * STREAMS
TOKENS = {"mhc_pre": (1, 2048, 2049), "mhc_fused_post_pre": (8, 2049)}
SETTING = "SGLANG_OPT_DEEPGEMM_HC_PRENORM"


class Buffer:
    """A tensor that is a shape, a type, and the name of the kernel that wrote it last."""

    def __init__(self, *shape: int, dtype: str = "float32") -> None:
        self.shape, self.dtype, self.device = shape, dtype, "cuda:0"
        self.written: list[str] = []

    def view(self, *shape: int) -> Buffer:
        count = 1
        for size in self.shape:
            count *= size
        known = 1
        for size in shape:
            known *= size if size > 0 else 1
        seen = Buffer(*(size if size > 0 else count // max(known, 1) for size in shape), dtype=self.dtype)
        seen.written = self.written
        return seen

    def squeeze(self, dim: int) -> Buffer:
        return self.view(*(size for place, size in enumerate(self.shape) if place != dim))

    def unsqueeze(self, dim: int) -> Buffer:
        return self.view(*self.shape[:dim], 1, *self.shape[dim:])

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return self.view(-1).shape[0]

    def is_contiguous(self) -> bool:
        return True

    def contiguous(self) -> Buffer:
        return self

    def new_empty(self, *size: Any, **_: Any) -> Buffer:
        return _made(*size)


def _made(*size: Any, dtype: str = "float32", **_: Any) -> Buffer:
    return Buffer(*(size[0] if size and isinstance(size[0], tuple | list) else size), dtype=dtype)


class Kernels:
    """Stands in for the kernels: who did the GEMM, and what the mapping then read."""

    def __init__(self) -> None:
        self.gemms: list[str] = []
        self.read: list[str] = []

    def gemm(self, name: str, mul: Buffer, sums: Buffer) -> None:
        self.gemms.append(name)
        mul.written.append(name)
        sums.written.append(name)

    def deep_gemm(self, x: Any, fn: Any, mul: Buffer, sums: Buffer, num_splits: int | None = None) -> None:
        self.gemm("DeepGEMM", mul, sums)
        if mul.shape[0] != num_splits:
            raise CannotTell(f"DeepGEMM is given {mul.shape[0]} splits and told {num_splits}")

    def tilelang(self, x: Any, fn: Any, mul: Buffer, sums: Buffer, *_: Any, **__: Any) -> None:
        self.gemm("TileLang", mul, sums)

    def both(self, comb: Any, residual: Any, post: Any, x: Any, fn: Any, *rest: Any, **_: Any) -> None:
        self.gemm("TileLang", rest[0], rest[1])

    def big_fuse(self, mul: Buffer, sums: Buffer, *rest: Any, **_: Any) -> None:
        splits, streams, last = rest[-3:]
        if (splits, last) != (mul.shape[0], mul.shape[-1]) or splits != sums.shape[0] or streams != STREAMS:
            self.read.append(f"{mul.shape} as {splits} splits of {last}")
        elif mul.written != sums.written or len(mul.written) != 1:
            self.read.append("what no GEMM wrote")
        else:
            self.read.append(mul.written[0])

    def stubs(self, *, enabled: bool) -> dict[str, object]:
        tl = SimpleNamespace(jit=lambda **_: lambda function: self.tilelang)
        return {
            **({"deep_gemm.tf32_hc_prenorm_gemm": self.deep_gemm} if enabled else {}),
            "ENABLE_JIT_DEEPGEMM": enabled,
            "use_symmetric_memory": lambda *_, **__: Opaque("symmetric memory"),
            "mhc_pre_gemm_sqrsum_splitk_kernel": lambda *_, **__: (self.tilelang, None),
            "mhc_pre_gemm_sqrsum_tilelang": self.tilelang,
            "_mhc_pre_gemm_sqrsum_dispatch": lambda: self.tilelang,
            "_load_tilelang": lambda: tl,
            "mhc_pre_big_fuse_tilelang": self.big_fuse,
            "mhc_pre_big_fuse_with_norm_tilelang": self.big_fuse,
            "mhc_post_tilelang": lambda *_, **__: None,
            "mhc_fused_post_pre_fma_tilelang": self.both,
            "_compute_num_split_for_mhc_pre": lambda *_: 3,
            "get_pdl_hooks": lambda: None,
            "is_hip": lambda: False,
            "_is_hip": False,
            "is_npu": lambda: False,
            "is_gfx1250_supported": lambda: False,
            "is_sm120_supported": lambda *_: True,
            "get_tp_group": lambda: None,
            "get_parallel": lambda: SimpleNamespace(tp_group=None, attn_tp_group=None),
            "is_allocation_symmetric": lambda: False,
            "torch.bfloat16": "bfloat16",
            "torch.float32": "float32",
            "torch.empty": _made,
            "torch.zeros": _made,
            "torch.empty_like": lambda other, **_: Buffer(*other.shape, dtype=other.dtype),
            "logger": Opaque("logger"),
        }


def _run(tree: Tree, path: str, function: str, tokens: int, *, enabled: bool, wanted: bool) -> Kernels | str:
    """The kernels after one call, or the error that came of it."""
    kernels = Kernels()
    module = Program(tree, kernels.stubs(enabled=enabled)).module(path)
    arguments = {
        "residual": Buffer(tokens, STREAMS, HIDDEN, dtype="bfloat16"),
        "x": Buffer(tokens, HIDDEN, dtype="bfloat16"),
        "post_layer_mix": Buffer(tokens, STREAMS),
        "comb_res_mix": Buffer(tokens, STREAMS, STREAMS),
        "fn": Buffer(OUT, STREAMS * HIDDEN),
        "hc_scale": Buffer(3),
        "hc_base": Buffer(OUT),
    }
    numbers = ("rms_eps", "hc_pre_eps", "hc_sinkhorn_eps", "hc_post_mult_value")
    with environment(**{SETTING: "1" if wanted else "0"}):
        try:
            call(getattr(module, function), **arguments, **dict.fromkeys(numbers, 1e-6), sinkhorn_repeat=3)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return kernels


def probe(tree: Tree) -> Answer:
    path = locate(tree, KERNELS, b"def mhc_pre(")
    if path is None:
        return unknown("the mapping of mHC was not found: nothing defines mhc_pre")
    functions = [name for name in TOKENS if f"def {name}(".encode() in tree.read(path)]
    for function in functions:
        for tokens in TOKENS[function]:
            fused = function == "mhc_fused_post_pre" and tokens <= 32
            for enabled, wanted in ((False, True), (True, True), (False, False), (True, False)):
                right = "DeepGEMM" if enabled and wanted and not fused else "TileLang"
                done = _run(tree, path, function, tokens, enabled=enabled, wanted=wanted)
                case = f"{function} of {tokens:,} tokens, DeepGEMM {'on' if enabled else 'off'}"
                case += "" if wanted else f", {SETTING}=0"
                if isinstance(done, str):
                    return defect(f"{case}: {done}")
                if done.gemms != [right] or done.read != [right]:
                    did = " and ".join(done.gemms) or "nobody"
                    return defect(f"{case}: {did} does the GEMM, {', '.join(done.read)} is read; not {right}")
    return fixed(
        f"{' and '.join(functions)}: TileLang's GEMM with DeepGEMM off or {SETTING}=0, else DeepGEMM's, "
        "and the mapping reads what it wrote"
    )
