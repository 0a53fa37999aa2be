"""Does the sparse attention kernel fit into SM12x's shared memory, and is every head of each token right?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from support.attention import Case
from support.tilelang import DTYPES, Kernel, Tensor, TileLang

from builder.probe.devices import GB10, HOPPER, SHARED_MEMORY, cuda_device, named
from builder.probe.harness import Answer, Program, Tree, defect, fixed, locate, unknown

KERNELS = ("python/sglang/kernels/ops/attention/dsa/tilelang_kernel.py",)
LATENT, ROPE, TOPK = 512, 64, 2048
HEADS = (16, 24, 32, 64, 128)
SERVED = {16, 24, 32}
BF16, INT32 = DTYPES["bfloat16"], DTYPES["int32"]
SMALL = {"latent": 16, "tail": 8, "topk": 64}  # what LATENT, ROPE and TOPK are where numbers are computed
SMALL_LIMITS = (6000, 7000, 8000, 12_000)  # bytes; one of them leads to the tile of the real sizes
COMPUTED = ((GB10, 24, 0), (GB10, 24, ROPE), (GB10, 64, 0), (HOPPER, 128, 0))


@dataclass(frozen=True)
class Asked:
    """What one call asks for: bytes of shared memory, or why there is no kernel."""

    tail: int
    heads: int
    kernels: tuple[Kernel, ...] = ()
    refusal: str = ""

    @property
    def bytes(self) -> int:
        return max((kernel.shared for kernel in self.kernels), default=0)

    @property
    def said(self) -> str:
        exact = not any(kernel.branches for kernel in self.kernels if kernel.shared == self.bytes)
        return self.refusal or f"{'' if exact else 'about '}{self.bytes:,} B"


def _told(asked: Sequence[Asked]) -> str:
    """``84,992 B at 16, 24 heads (NoPE)``: head counts of which the same is to be said, together."""
    heads: dict[tuple[str, str], list[str]] = {}
    for a in asked:
        heads.setdefault((a.said, "RoPE" if a.tail else "NoPE"), []).append(str(a.heads))
    return ", ".join(f"{said} at {', '.join(h)} heads ({model})" for (said, model), h in heads.items())


class Site:
    """``tilelang_sparse_fwd`` on GPUs that give a block so and so much shared memory."""

    def __init__(self, tree: Tree, path: str) -> None:
        self._tree, self._path = tree, path
        self._made: dict[tuple[tuple[int, int], int], tuple[TileLang, Any]] = {}

    def call(self, gpu: tuple[int, int], limit: int, **arguments: Any) -> tuple[Tensor, tuple[Kernel, ...]]:
        """What it gives back, and the kernels that it launched."""
        if (gpu, limit) not in self._made:
            tracer = TileLang()
            device = cuda_device(gpu)
            properties = SimpleNamespace(major=gpu[0], minor=gpu[1], shared_memory_per_block_optin=limit)
            device["torch.cuda.get_device_properties"] = lambda *_: properties
            program = Program(self._tree, device | tracer.stubs | {"is_hip": lambda: False})
            self._made[gpu, limit] = tracer, program.module(self._path).tilelang_sparse_fwd
        tracer, forward = self._made[gpu, limit]
        tracer.launched.clear()
        out = forward(**arguments)
        return out, tuple(launch.kernel for launch in tracer.launched)


def _ask(site: Site, gpu: tuple[int, int], tail: int, heads: int, limit: int | None = None) -> Asked:
    width = LATENT + tail
    q = Tensor((4, heads, width), BF16)
    kv, indices = Tensor((4096, 1, width), BF16), Tensor((4, 1, TOPK), INT32)
    known = {"q": q, "kv": kv, "indices": indices, "sm_scale": Case.scale, "d_v": LATENT}
    try:
        _, kernels = site.call(gpu, limit or SHARED_MEMORY[gpu], **known)
    except (ValueError, AssertionError) as refusal:
        return Asked(tail, heads, refusal=f"refused ({' '.join(str(refusal).split())[:80]})")
    return Asked(tail, heads, kernels)


def _too_much_of_less(site: Site, asked: Asked) -> str:
    """What is asked for where the device has a byte less; empty if that fits, or the source goes by other."""
    most, less = 1 << 30, asked.bytes - 1
    if not asked.bytes or _ask(site, GB10, asked.tail, asked.heads, most).bytes == asked.bytes:
        return ""  # it goes by something else
    instead = _ask(site, GB10, asked.tail, asked.heads, less)
    return f"{_told([instead])} where a block may have {less:,} B" if instead.bytes > less else ""


def _same_way(real: Sequence[Kernel], small: Sequence[Kernel]) -> bool:
    """Whether small sizes lead to the same kernels with the same tiles as the real ones do."""
    sizes = {(LATENT, SMALL["latent"]), (ROPE, SMALL["tail"]), (TOPK, SMALL["topk"])}
    return [kernel.name for kernel in real] == [kernel.name for kernel in small] and all(
        pair[0] == pair[1] or pair in sizes
        for one, other in zip(real, small, strict=True)
        for pair in ((value, other.arguments.get(name)) for name, value in one.arguments.items())
    )


def _wrong_numbers(site: Site, gpu: tuple[int, int], asked: Asked) -> str:
    """What of the kernel's result is wrong; empty where nothing is.

    Computed with small sizes where they lead to the same tile, else with the real ones and few indices.
    """
    small = Case(asked.heads, SMALL["latent"], SMALL["tail"] if asked.tail else 0, SMALL["topk"])
    real = Case(asked.heads, LATENT, asked.tail, SMALL["topk"])
    limits = (SHARED_MEMORY[gpu], *SMALL_LIMITS)
    limit = next(
        (limit for limit in limits if _same_way(asked.kernels, _launched(site, gpu, limit, small))), 0
    )
    case = small if limit else real
    q, kv, indices = case.tensors(BF16)
    known = {"q": q, "kv": kv, "indices": indices, "sm_scale": case.scale, "d_v": case.latent}
    out, _ = site.call(gpu, limit or SHARED_MEMORY[gpu], **known)
    bad = case.wrong(q, kv, indices, out)
    return bad and f"{named(gpu)} at {asked.heads} heads ({'RoPE' if asked.tail else 'NoPE'}): {bad}"


def _launched(site: Site, gpu: tuple[int, int], limit: int, case: Case) -> tuple[Kernel, ...]:
    q, kv, indices = (Tensor(tensor.shape, tensor.dtype) for tensor in case.tensors(BF16))
    known = {"q": q, "kv": kv, "indices": indices, "sm_scale": case.scale, "d_v": case.latent}
    try:
        return site.call(gpu, limit, **known)[1]
    except (ValueError, AssertionError):
        return ()


def probe(tree: Tree) -> Answer:
    path = locate(tree, KERNELS, b"def tilelang_sparse_fwd")
    if path is None:
        return unknown("nothing in the tree is called tilelang_sparse_fwd")
    site = Site(tree, path)
    asked = {
        (gpu, heads, tail): _ask(site, gpu, tail, heads)
        for gpu in (GB10, HOPPER)
        for tail in (0, ROPE)
        for heads in HEADS
    }
    if any(a.bytes == 0 and not a.refusal for a in asked.values()):
        return unknown("tilelang_sparse_fwd launches no kernel with shared memory")
    limit = SHARED_MEMORY[GB10]
    ours = [a for (gpu, _, _), a in asked.items() if gpu == GB10]
    if over := [a for a in ours if a.bytes > limit]:
        return defect(f"{_told(over)}; SM12x has {limit:,} B")
    if lost := [a for a in ours if a.refusal and a.heads in SERVED]:
        return defect(f"{_told(lost)} although SM12x has {limit:,} B")
    others = [a for (gpu, _, _), a in asked.items() if gpu == HOPPER]
    if lost := [a for a in others if a.refusal or a.bytes > SHARED_MEMORY[HOPPER]]:
        return unknown(f"not even 9.0 can run it: {_told(lost)}")
    if wrong := [bad for a in ours if a.heads == HEADS[0] and (bad := _too_much_of_less(site, a))]:
        return defect("; ".join(wrong))
    computed = [(key[0], asked[key]) for key in COMPUTED if not asked[key].refusal]
    if wrong := [bad for gpu, a in computed if (bad := _wrong_numbers(site, gpu, a))]:
        return defect("; ".join(wrong))
    return fixed(f"{_told(ours)}; SM12x has {limit:,} B; all heads come out right")
