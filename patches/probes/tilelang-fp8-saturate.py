"""What becomes of values beyond e4m3's range on their way into an fp8 cache and into its TileLang kernel?

Asked of the source alone: whether a plain cast saturates hangs on torch, whose casts made NaN up to 2.12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from support.tilelang import DTYPES, FP8, Dtype, Tensor, TileLang

from builder.probe.devices import GB10, cuda_device
from builder.probe.harness import Answer, CannotTell, Program, Tree, absent, defect, fixed, locate, unknown

KERNELS = ("python/sglang/kernels/ops/attention/dsa/tilelang_kernel.py",)
POOL = ("python/sglang/srt/mem_cache/memory_pool.py",)
LATENT, ROPE, HEADS = 512, 64, 32
CACHE, BF16 = DTYPES["float8_e4m3fn"], DTYPES["bfloat16"]
INT32, UINT8 = DTYPES["int32"], DTYPES["uint8"]
LARGEST, FIRST_NAN = 448.0, 464.0  # of e4m3; what lies between is rounded down
SAMPLES = (-1000.0, -465.0, -448.0, -3.0, 0.0, 0.5, 200.0, 448.0, 465.0, 1000.0)


class Sampled(Tensor):
    """A tensor of which some elements are known."""

    def __init__(
        self, shape: tuple[int, ...], dtype: Dtype, values: tuple[float, ...] = SAMPLES, cast: bool = False
    ) -> None:
        super().__init__(shape, dtype)
        self.values, self.cast = values, cast

    def _with(self, values: tuple[float, ...]) -> Sampled:
        return Sampled(self.shape, self.dtype, values, self.cast)

    def clamp(self, *bounds: Any, **named: Any) -> Sampled:
        low, high = (*bounds, None, None)[:2]
        low, high = named.get("min", low), named.get("max", high)
        floor = -math.inf if low is None else low
        ceiling = math.inf if high is None else high
        return self._with(tuple(v if math.isnan(v) else min(max(v, floor), ceiling) for v in self.values))

    clip = clamp

    def clamp_min(self, bound: float) -> Sampled:
        return self.clamp(bound, None)

    def clamp_max(self, bound: float) -> Sampled:
        return self.clamp(None, bound)

    def __mul__(self, factor: float) -> Sampled:
        return self._with(tuple(v * factor for v in self.values))

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Sampled:
        return self * (1 / divisor)

    def to(self, *wanted: object, dtype: Dtype | None = None, **other: object) -> Sampled:
        made = super().to(*wanted, dtype=dtype, **other)
        if made.dtype not in FP8 or self.dtype in FP8:
            return Sampled(made.shape, made.dtype, self.values, self.cast)
        rounded = (
            math.nan if abs(v) > FIRST_NAN else math.copysign(min(abs(v), LARGEST), v) for v in self.values
        )
        return Sampled(made.shape, made.dtype, tuple(rounded), cast=True)

    def type(self, dtype: Dtype) -> Sampled:
        return self.to(dtype)


def _keeps_values(name: str) -> Callable[..., Sampled]:
    reshape = getattr(Tensor, name)

    def method(self: Sampled, *arguments: Any) -> Sampled:
        made = reshape(self, *arguments)
        return Sampled(made.shape, made.dtype, self.values, self.cast)

    return method


for _name in ("unsqueeze", "squeeze", "contiguous", "view", "reshape", "__getitem__"):
    setattr(Sampled, _name, _keeps_values(_name))


def _saturating(tensor: Sampled) -> Sampled:
    """What a Triton kernel's cast to e4m3 gives: ``cvt.rn.satfinite``."""
    return tensor.clamp(-LARGEST, LARGEST).to(CACHE)


def _program(tree: Tree, tracer: TileLang, **more: object) -> Program:
    stubs = cuda_device(GB10) | tracer.stubs | {"is_hip": lambda: False, "fp8_dtype": CACHE} | more
    known: Any = stubs["torch.cuda.get_device_properties"]
    properties = SimpleNamespace(**vars(known()), multi_processor_count=48)
    stubs |= {
        "torch.cuda.get_device_properties": lambda *_: properties,
        "torch.clamp": lambda tensor, *bounds, **named: tensor.clamp(*bounds, **named),
        "torch.clip": lambda tensor, *bounds, **named: tensor.clamp(*bounds, **named),
    }
    return Program(tree, stubs)


def _queries(tree: Tree, path: str) -> Sampled | None:
    """The queries as the fp8 kernel gets them; None where no fp8 kernel is launched on CUDA."""
    tracer = TileLang()
    forward = _program(tree, tracer).module(path).tilelang_sparse_fwd
    q, cache = Sampled((4, HEADS, LATENT + ROPE), BF16), Tensor((4096, 1, LATENT + ROPE), CACHE)
    forward(q=q, kv=cache, indices=Tensor((4, 1, 2048), INT32), sm_scale=0.04, d_v=LATENT)
    readers = [launch for launch in tracer.launched if launch.kernel.loaded_as]
    if len(readers) != 1:
        raise CannotTell(f"tilelang_sparse_fwd launches {len(readers)} kernels that read the cache")
    if readers[0].wrongly_typed():
        return None
    got = readers[0].tensors[0]
    if not isinstance(got, Sampled):
        raise CannotTell("the kernel's first operand is not made of the queries")
    return got


def _rows(tree: Tree, path: str, rope: int) -> tuple[Sampled, ...]:
    """The two parts of a row as the pool of raw e4m3 rows writes them; the second only with RoPE."""
    written: list[tuple[Sampled, ...]] = []

    def plain(_: object, __: object, nope: Sampled, rest: Sampled | None = None, **___: object) -> None:
        if nope.dtype not in (CACHE, UINT8) or not nope.cast:
            raise CannotTell(f"a {nope.dtype.name} row is written into an fp8 pool")
        written.append(tuple(part for part in (nope, rest) if part is not None and part.numel()))

    def fused(_: object, __: object, nope: Sampled, rest: Sampled, ___: object, **____: object) -> None:
        written.append(tuple(_saturating(part) for part in (nope, rest) if part.numel()))

    more = {
        "set_mla_kv_buffer_triton": plain,
        "set_mla_kv_buffer_dcp_sharded_triton": plain,
        "set_mla_kv_buffer_triton_fp8_quant": fused,
        "get_parallel": lambda: SimpleNamespace(attn_dcp_size=1, attn_dcp_rank=0, dcp_enabled=False),
    }
    pools = _program(tree, TileLang(), **more).module(path).MLATokenToKVPool
    pool = pools.__new__(pools)
    pool.__dict__.update(
        use_dsa=True,
        dtype=CACHE,
        store_dtype=UINT8,
        dsa_kv_cache_store_fp8=False,
        kv_lora_rank=LATENT,
        qk_rope_head_dim=rope,
        kv_buffer=[Tensor((128, 1, LATENT + rope), UINT8)],
        start_layer=0,
        size=64,
        page_size=64,
        kernel_page_blocks=1,
    )
    parts = (Sampled((4, 1, LATENT), BF16), Sampled((4, 1, rope), BF16) if rope else None)
    if hasattr(pools, "_write_mla_kv_buffer"):
        pool._write_mla_kv_buffer(pool.kv_buffer[0], Tensor((4,), INT32), *parts)
    else:
        pool.set_mla_kv_buffer(SimpleNamespace(layer_id=0), Tensor((4,), INT32), *parts)
    if len(written) != 1 or len(written[0]) != (2 if rope else 1):
        raise CannotTell(f"a write into the pool with a RoPE part of {rope} is not one of the known kernels'")
    return written[0]


def _wrong(what: str, got: Sampled) -> str:
    """What is wrong with the values that arrive; empty when they are the samples within the range."""
    pairs = list(zip(SAMPLES, got.values, strict=True))
    spoilt = [f"{value:g}" for value, arrives in pairs if math.isnan(arrives)]
    if spoilt:
        return f"{what}: {', '.join(spoilt)} become NaN"
    wanted = [(v, math.copysign(min(abs(v), LARGEST), v)) for v in SAMPLES]
    changed = [
        f"{v:g} becomes {arrives:g}"
        for (v, right), arrives in zip(wanted, got.values, strict=True)
        if abs(arrives - right) > abs(right) / 16  # e4m3 keeps three bits
    ]
    return f"{what}: {', '.join(changed)}" if changed else ""


def probe(tree: Tree) -> Answer:
    kernels, pool = (
        locate(tree, KERNELS, b"def tilelang_sparse_fwd"),
        locate(tree, POOL, b"class MLATokenToKVPool"),
    )
    if kernels is None or pool is None:
        return unknown("the TileLang DSA kernel, or the pool of its rows, was not found")
    queries = _queries(tree, kernels)
    if queries is None:
        return absent(
            "on CUDA tilelang_sparse_fwd has no fp8 kernel: nothing is cast to the cache's type",
            f"{kernels}:tilelang_sparse_fwd",
        )
    nope, rotary = _rows(tree, pool, ROPE)
    (alone,) = _rows(tree, pool, 0)
    arriving = {"queries": queries, "keys": nope, "rotary keys": rotary, "keys without RoPE": alone}
    wrong = [fault for what, got in arriving.items() if (fault := _wrong(what, got))]
    if wrong:
        return defect(f"where torch's own cast does not saturate (up to 2.12): {'; '.join(wrong)}")
    return fixed(f"queries and keys beyond e4m3's range, with and without RoPE, arrive as ±{LARGEST:g}")
