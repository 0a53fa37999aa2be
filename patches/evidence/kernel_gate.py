"""The kernel gate: run a tree's attention kernels on this GPU and compare with a float32 reference.

Runs as a process (see :mod:`evidence.gpu`): a job as JSON on standard input, the result as the last
line of standard output. Needs torch with a CUDA device, tilelang and triton.

The bounds follow from the formats. With ``u`` the largest relative rounding error of a format (bf16: 2^-8,
e4m3: 2^-4 and 2^-10 below its normal numbers), ``p`` the softmax and ``v`` the values, a kernel that rounds
its probabilities once and its output once is off by at most ``u * sum(p |v|)`` and ``u * |out|``, plus what
accumulating products costs. Roundings are independent, so the L2 error of one query's row of values is also
near what ``u / sqrt(3)`` in quadrature gives, and at most ``sqrt(3)`` times that where one entry has all the
weight. With bf16 this shows one wrong entry among 2048 in a single row.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from evidence import sources
from evidence.worker import lacks

LATENT, ROPE = 512, 64
ROWS = 8192
TOKENS = 33
SM12X_SHARED = 101_376
U_BF16, U_E4M3 = 2.0**-8, 2.0**-4
SUBNORMAL_E4M3 = 2.0**-10
# Tensor cores add 16 (bf16) or 32 (e4m3) products at a time to a sum that keeps so many bits.
ADDED = {"bf16": (16, 2.0**-22), "e4m3": (32, 2.0**-13)}
E4M3_MAX = 448.0


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        path: ``bf16``, ``fp8``, ``flashmla``, ``write``.
        heads: query heads a rank.
        topk: columns of the index table, masked ones included.
        tail: width of the RoPE part.
        shared: bytes of shared memory that the device is said to have; 0 for what it really has.
        scale: factor on the queries; above 448 / 5 some are out of e4m3's range.
    """

    path: str
    heads: int
    topk: int
    tail: int = 0
    shared: int = 0
    scale: float = 1.0


@dataclass(frozen=True)
class Result:
    """What came out.

    Args:
        tile: what was launched.
        worst: largest error of a value, or of a row's L2 norm, over its bound; at most 1 is right.
        error: relative L2 error of a row against the float32 reference, as root mean square over all rows.
        bound: what that may be.
        unquantised: the same against attention over the values before they were made e4m3.
        problem: what went wrong otherwise.
    """

    case: Case
    tile: str = ""
    worst: float = math.inf
    error: float = math.inf
    bound: float = 0.0
    unquantised: float | None = None
    problem: str = ""

    @property
    def right(self) -> bool:
        return not self.problem and self.worst <= 1 and self.error <= self.bound


# --- reference ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """Attention in float32 and the sums that bounds are made of, each ``[tokens, heads, values]``."""

    out: Any
    weighed: Any  # sum(p |v|)
    variance: Any  # sum(p^2 v^2)
    floor: Any  # sum(|v|) / sum(exp(s - max s)), over what is not masked
    size: Any  # largest sum(|q| |k|) * scale, [tokens, heads, 1]
    spread: Any  # largest sqrt(sum(q^2 k^2)) * scale, [tokens, heads, 1]


def attend(torch: Any, q: Any, rows: Any, valid: Any, scale: float, values: int) -> Attention:
    """Sparse attention of ``q`` ``[tokens, heads, width]`` over ``rows`` ``[tokens, topk, width]``."""
    q, rows = q.float(), rows.float() * valid.unsqueeze(-1)
    logits = torch.einsum("shw,skw->shk", q, rows) * scale
    logits = logits.masked_fill(~valid.unsqueeze(1), -math.inf)
    top = logits.amax(-1, keepdim=True)
    weights = torch.exp(logits - torch.where(top.isfinite(), top, 0.0))
    total = weights.sum(-1, keepdim=True)
    p = weights / total.clamp(min=1e-30)
    v = rows[..., :values]
    size = torch.einsum("shw,skw->shk", q.abs(), rows.abs()).amax(-1, keepdim=True) * scale
    spread = torch.einsum("shw,skw->shk", q * q, rows * rows).amax(-1, keepdim=True).sqrt() * scale
    return Attention(
        torch.einsum("shk,skv->shv", p, v),
        torch.einsum("shk,skv->shv", p, v.abs()),
        torch.einsum("shk,skv->shv", p * p, v * v),
        v.abs().sum(1).unsqueeze(1) / total.clamp(min=1.0),
        size,
        spread,
    )


def judge(torch: Any, case: Case, got: Any, ref: Attention, kind: str, tile: str) -> Result:
    """Compare with the bounds of the module's docstring; ``kind`` is the format of the probabilities."""
    if not bool(torch.isfinite(got).all()):
        return Result(case, tile, problem=f"{int((~torch.isfinite(got)).sum())} values are not finite")
    u, least = (U_E4M3, SUBNORMAL_E4M3 / E4M3_MAX) if kind == "e4m3" else (U_BF16, 0.0)
    step, unit = ADDED[kind]
    additions = (LATENT + case.tail) / step
    adding = (2 * additions * ref.size + 64 / step) * unit + 2.0**-18
    bound = (u + adding) * ref.weighed + least * ref.floor
    bound = bound + U_BF16 * (ref.out.abs() + 2 * bound) + 1e-30
    off = (got.float() - ref.out).abs()
    adding = (2 * additions**0.5 * ref.spread + 64 / step) * unit + 2.0**-18
    likely = ((u**2 + adding**2 + U_BF16**2) * ref.variance + U_BF16**2 * ref.out**2) / 3
    likely = likely + (least * ref.floor) ** 2 / case.topk
    rows = norms(ref.out).clamp(min=1e-30)
    of_rows = norms(off) / norms(likely.sqrt()).clamp(min=1e-30)
    worst = max(float((off / bound).max()), float(of_rows.max()) / math.sqrt(3))
    return Result(case, tile, worst, mean_square(norms(off) / rows), mean_square(norms(likely.sqrt()) / rows))


def norms(values: Any) -> Any:
    """The L2 norm of each query's row."""
    return (values**2).sum(-1).sqrt()


def mean_square(ratios: Any) -> float:
    """The root mean square."""
    return float((ratios**2).mean().sqrt())


# --- TileLang -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """Queries, a pool and an index table with every kind of masking but an empty row."""

    q: Any
    pool: Any
    indices: Any

    @property
    def valid(self) -> Any:
        return self.indices >= 0

    def rows(self, pool: Any) -> Any:
        return pool[self.indices.clamp(min=0).long()]


def inputs(torch: Any, case: Case) -> Inputs:
    """Random ones, the same for the same case: half of the queries give a flat softmax, half a peaked one."""
    make = torch.Generator(device="cuda").manual_seed(case.heads * 10_000 + case.topk + case.tail)
    on = {"device": "cuda", "generator": make}
    width = LATENT + case.tail
    q = torch.randn(TOKENS, case.heads, width, **on)
    q[::2] *= 4
    pool = torch.randn(ROWS, width, **on)
    indices = torch.randint(0, ROWS, (TOKENS, case.topk), **on)
    indices[torch.rand(TOKENS, case.topk, **on) < 0.25] = -1
    indices[0] = torch.randint(0, ROWS, (case.topk,), **on)  # nothing masked
    indices[1, 1:] = -1  # one entry left
    indices[1, 0] = 7
    indices[2, case.topk // 3 :] = -1  # whole blocks masked at the end
    indices[3, : case.topk // 2] = -1  # and at the start
    return Inputs((q * case.scale).bfloat16(), pool.bfloat16(), indices.int())


class TileLangKernels:
    """A tree's TileLang module, told what the device has; notes which tiles it builds."""

    def __init__(self, torch: Any, package: Path, shared: int) -> None:
        real = torch.cuda.get_device_properties(0)
        self.shared = shared or real.shared_memory_per_block_optin
        told = SimpleNamespace(
            shared_memory_per_block_optin=self.shared, multi_processor_count=real.multi_processor_count
        )
        self.module = sources.load(package, sources.TILELANG_KERNELS, f"tilelang_kernels_{self.shared}")
        self.module.torch = sources.TorchOn(torch, told, (real.major, real.minor))

    def tile(self, case: Case, wide: int) -> str:
        """What the dispatcher takes for this case, in words."""
        if case.path == "fp8":
            return "fp8 partial"
        pick = getattr(self.module, "_pick_v1_tile", None)
        if pick is None:
            return "default"
        tile = pick(case.heads, wide, "cuda:0")
        heads = min(max(1 << (case.heads - 1).bit_length(), 16), tile["heads_per_block"])
        return f"{heads} heads, {tile['block_I']}/{tile['num_stages']}/{tile['threads']}"


def run_tilelang(torch: Any, kernels: TileLangKernels, case: Case) -> Result:
    given, width = inputs(torch, case), LATENT + case.tail
    scale = width**-0.5
    q, pool = given.q, given.pool
    indices = given.indices.clone()
    if case.path == "fp8":
        pool = pool.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        indices[4] = -1  # this path gives zeros for an empty row; the bf16 ones give NaN, here and upstream
    given = Inputs(q, pool, indices)
    tile = kernels.tile(case, width)
    got = kernels.module.tilelang_sparse_fwd(
        q=q, kv=pool.unsqueeze(1), indices=indices.unsqueeze(1), sm_scale=scale, d_v=LATENT
    )
    got = got.reshape(TOKENS, case.heads, LATENT)
    seen = q.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn) if case.path == "fp8" else q
    read = pool.float()
    ref = attend(torch, seen, given.rows(read), given.valid, scale, LATENT)
    result = judge(torch, case, got, ref, "e4m3" if case.path == "fp8" else "bf16", tile)
    if case.path != "fp8" or result.problem or case.scale != 1.0:
        return result
    plain = inputs(torch, case)
    exact = attend(torch, plain.q, given.rows(plain.pool.float()), given.valid, scale, LATENT).out
    served = given.valid.any(-1)
    far = mean_square(norms(got.float() - exact)[served] / norms(exact)[served])
    return Result(case, tile, result.worst, result.error, result.bound, far)


def run_write(torch: Any, package: Path, case: Case) -> Result:
    """The fused write of a raw fp8 row, with values beyond e4m3's range: equal to the last bit."""
    if not (package / sources.POOL_WRITES).is_file():
        return Result(case, problem="this tree has no such kernel")
    write = sources.load(package, sources.POOL_WRITES, "pool_writes").set_mla_kv_buffer_triton_fp8_quant
    make = torch.Generator(device="cuda").manual_seed(case.tail)
    rows = (torch.randn(TOKENS, 1, LATENT + case.tail, device="cuda", generator=make) * 300).bfloat16()
    buffer = torch.zeros(ROWS, 1, LATENT + case.tail, device="cuda", dtype=torch.uint8)
    loc = torch.randperm(ROWS - 1, device="cuda", generator=make)[:TOKENS] + 1
    write(buffer, loc, rows[..., :LATENT], rows[..., LATENT:], torch.float8_e4m3fn)
    wanted = rows.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    wrong = int((buffer[loc] != wanted).sum())
    stray = int(buffer.count_nonzero()) - int(buffer[loc].count_nonzero())
    if wrong or stray:
        return Result(case, problem=f"{wrong} bytes differ, {stray} are written elsewhere")
    return Result(case, "one row a program", 0.0, 0.0, 0.0)


# --- FlashMLA in Triton -------------------------------------------------------------------------------


def run_flashmla(torch: Any, package: Path, case: Case) -> Result:
    """The Triton decode kernel for DeepSeek-V4's paged cache, against the tree's own torch code too."""
    if not (package / sources.FLASHMLA_TRITON).is_file():
        return Result(case, problem="this tree has no such kernel")
    paths = sources.load(package, sources.FLASHMLA, "flashmla")
    triton_path = sources.load(package, sources.FLASHMLA_TRITON, "flashmla_triton")
    make = torch.Generator(device="cuda").manual_seed(case.topk)
    on = {"device": "cuda", "generator": make}
    pages, page, nope, rope = 32, 256, 448, 64
    page_bytes = -(-page * 584 // 576) * 576
    raw = torch.zeros(pages, page_bytes, device="cuda", dtype=torch.uint8)
    tokens = raw[:, : page * 576].view(pages, page, 576)
    tokens[..., :nope] = torch.randn(pages, page, nope, **on).to(torch.float8_e4m3fn).view(torch.uint8)
    tokens[..., nope:] = torch.randn(pages, page, rope, **on).bfloat16().view(torch.uint8)
    raw[:, page * 576 : page * 584] = torch.randint(125, 129, (pages, page * 8), **on).to(torch.uint8)
    cache = raw.view(torch.float8_e4m3fn).as_strided((pages, page, 1, 584), (page_bytes, 584, 584, 1))
    q = torch.randn(TOKENS, 1, case.heads, nope + rope, **on).bfloat16()
    indices = torch.randint(0, pages * page, (TOKENS, 1, case.topk), **on).int()
    indices[torch.rand(TOKENS, 1, case.topk, **on) < 0.25] = -1
    indices[:, :, 0] = 5
    length = torch.randint(1, case.topk + 1, (TOKENS,), **on).int()
    scale = (nope + rope) ** -0.5
    asked = (q, cache, indices, length, None, nope + rope, scale)
    got = triton_path.flash_mla_sparse_decode_triton(*asked)[0]
    own = paths._sm120_sparse_decode_fwd(*asked)[0]
    rows = paths._gather_and_dequant(cache, indices.clamp(min=0), page)[:, 0]
    valid = (indices[:, 0] >= 0) & (torch.arange(case.topk, device="cuda") < length.unsqueeze(1))
    ref = attend(torch, q[:, 0], rows, valid, scale, nope + rope)
    shape = (TOKENS, case.heads, nope + rope)
    result = judge(torch, case, got.reshape(shape), ref, "bf16", "Triton")
    reference = judge(torch, case, own.reshape(shape), ref, "bf16", "torch")
    if not reference.right:
        return Result(case, problem=f"the tree's own reference is off by {reference.error:.2e}")
    return result


# --- times --------------------------------------------------------------------------------------------


def _attending(forward: Callable[..., Any], q: Any, kv: Any) -> Callable[[Any], Any]:
    """A kernel on these queries and this cache, as a function of the table alone."""
    return lambda table: forward(q, kv, table, LATENT**-0.5)


def time_of(torch: Any, call: Callable[[Any], Any], tables: list[Any]) -> float:
    """Microseconds a call, replayed from a CUDA graph over several tables: the median of seven."""
    call(tables[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(table) for table in tables]
    graph.replay()
    times = []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(tables))
    del kept
    return float(sorted(times)[3])


def times(torch: Any, by_limit: dict[int, TileLangKernels], heads: Iterable[int]) -> list[dict[str, object]]:
    """The device's own tile, SM12x's tile and the fp8 path over a pool that no cache holds, top-k 2048."""
    rows, measured = 1 << 20, []
    pool = torch.randn(rows, 1, LATENT, device="cuda", dtype=torch.bfloat16)
    quantised = pool.to(torch.float8_e4m3fn)
    for count in heads:
        for tokens in (1, 8, 66, 1056):
            q = torch.randn(tokens, count, LATENT, device="cuda", dtype=torch.bfloat16)
            sets = 8 if tokens < 1000 else 2
            tables = [
                torch.randint(0, rows, (tokens, 1, 2048), device="cuda", dtype=torch.int32)
                for _ in range(sets)
            ]
            row: dict[str, object] = {"heads": count, "tokens": tokens}
            for what, kernels, kv in (
                ("own tile", by_limit[0], pool),
                ("SM12x tile", by_limit[SM12X_SHARED], pool),
                ("fp8", by_limit[0], quantised),
            ):
                run = _attending(kernels.module.tilelang_sparse_fwd, q, kv)
                row[what] = round(time_of(torch, run, tables), 1)
            measured.append(row)
    return measured


# --- the process --------------------------------------------------------------------------------------


def cases() -> list[Case]:
    """Every combination that the overlay promises, and the neighbours that would break first."""
    made = [
        Case("bf16", heads, topk, shared=shared)
        for heads in (16, 32, 64)
        for topk in (192, 2048)
        for shared in (0, SM12X_SHARED)
    ]
    made += [Case("fp8", heads, topk) for heads in (16, 32, 64) for topk in (192, 2048)]
    made += [Case("bf16", 32, 2048, tail=ROPE, shared=SM12X_SHARED), Case("fp8", 32, 2048, tail=ROPE)]
    made += [Case("bf16", heads, 192, shared=SM12X_SHARED) for heads in (8, 24, 40, 128)]  # no multiple of 16
    made += [Case("bf16", 32, 192, shared=65_536)]  # the last tile of the list
    made += [Case("fp8", 8, 192), Case("fp8", 32, 192, scale=200.0)]  # queries beyond e4m3's range
    made += [Case("write", 0, 0, tail=tail) for tail in (0, ROPE)]
    return made + [Case("flashmla", 64, topk) for topk in (192, 512)]


def run_case(torch: Any, package: Path, by_limit: dict[int, TileLangKernels], case: Case) -> Result:
    try:
        if case.path == "write":
            return run_write(torch, package, case)
        if case.path == "flashmla":
            return run_flashmla(torch, package, case)
        return run_tilelang(torch, by_limit[case.shared], case)
    except Exception as error:  # whatever a kernel does is the result of its case
        return Result(case, problem=f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}")


def needs() -> Any:
    """torch, when all that the gate needs is there; otherwise the process ends saying what is not."""
    hint = "pip install 'sglang-overlay[kernels]' beside a CUDA build of torch, or run it inside the image"
    found = {}
    for name in ("torch", "triton", "tilelang"):
        try:
            found[name] = __import__(name)
        except ImportError as error:
            lacks(
                f"{name} cannot be imported", expected="torch, triton, tilelang", found=str(error), hint=hint
            )
    torch = found["torch"]
    if not torch.cuda.is_available():
        lacks("torch sees no GPU", expected="an NVIDIA GPU", found=f"torch {torch.__version__}", hint=hint)
    return torch


def main() -> None:
    job = json.load(sys.stdin)
    torch = needs()
    torch.backends.cuda.matmul.allow_tf32 = False
    package = Path(job["package"])
    device = torch.cuda.get_device_properties(0)
    wanted = cases()
    by_limit = {
        shared: TileLangKernels(torch, package, shared) for shared in sorted({case.shared for case in wanted})
    }
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # most of the time is nvcc's
        results = list(pool.map(lambda case: run_case(torch, package, by_limit, case), wanted))
    measured = times(torch, by_limit, (16, 32, 64)) if all(r.right for r in results) else []
    print(
        json.dumps(
            {
                "gpu": device.name,
                "capability": [device.major, device.minor],
                "shared_memory": device.shared_memory_per_block_optin,
                "versions": {name: sys.modules[name].__version__ for name in ("torch", "triton", "tilelang")},
                "results": [asdict(result) | {"right": result.right} for result in results],
                "times": measured,
            }
        )
    )


if __name__ == "__main__":
    main()
