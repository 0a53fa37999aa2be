"""Does an fp8 KV cache with both DSA backends tilelang work on CUDA, from the arguments to the kernel?"""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

from builder.probe.devices import GB10, HOPPER, cuda_device, named
from builder.probe.harness import (
    Answer,
    CannotTell,
    Opaque,
    Program,
    Tree,
    call,
    defect,
    definitions,
    fixed,
    locate,
    names_in,
    parse,
    strings_in,
    unknown,
)
from builder.probe.tilelang import DTYPES, FP8, Tensor, TileLang

ARGUMENTS = ("python/sglang/srt/arg_groups/overrides.py",)
POOL_SIZE = ("python/sglang/srt/mem_cache/kv_cache_configurator.py",)
POOL = ("python/sglang/srt/mem_cache/memory_pool.py",)
KERNELS = ("python/sglang/kernels/ops/attention/dsa/tilelang_kernel.py",)

AMPERE = (8, 0)
ADA = (8, 9)
LATENT, ROPE = 512, 64
CACHE = DTYPES["float8_e4m3fn"]
BF16, INT32, UINT8 = DTYPES["bfloat16"], DTYPES["int32"], DTYPES["uint8"]


def _device(gpu: tuple[int, int]) -> dict[str, object]:
    stubs = cuda_device(gpu) | TileLang().stubs | {"is_hip": lambda: False, "fp8_dtype": CACHE}
    known: Any = stubs["torch.cuda.get_device_properties"]
    properties = SimpleNamespace(**vars(known()), multi_processor_count=48)
    return stubs | {"torch.cuda.get_device_properties": lambda *_: properties}


def _required(tree: Tree, hints: tuple[str, ...], text: bytes) -> str:
    path = locate(tree, hints, text)
    if path is None:
        raise CannotTell(f"{text.decode()!r} is nowhere in the tree")
    return path


# --- the arguments ----------------------------------------------------------------------------------


def _backends_pass(module: ast.Module, path: str) -> str:
    """The pass that chooses and checks the two DSA backends."""
    for name, node in definitions(module):
        if isinstance(node, ast.FunctionDef) and len(node.args.args) == 1:
            wanted = {"dsa_prefill_backend", "dsa_decode_backend", "fp8_e4m3"} <= strings_in(node)
            if wanted and "is_deepseek_dsa" in names_in(node):
                return name
    raise CannotTell(f"{path} has no pass that chooses DSA backends")


def _refusal(tree: Tree, gpu: tuple[int, int], prefill: str, decode: str) -> str:
    """Why the arguments are refused on ``gpu`` with an fp8 cache; empty when they are taken."""
    path = _required(tree, ARGUMENTS, b"dsa_decode_backend")
    model = "Glm5NextForConditionalGeneration"
    config = SimpleNamespace(hf_config=SimpleNamespace(architectures=[model], index_topk=2048))
    stubs = _device(gpu) | {
        "logger": Opaque("logger"),
        "is_deepseek_dsa": lambda _: True,
        "model_config_of": lambda _: config,
        "_DEEPSEEK_FAMILY_ARCHS": frozenset({model}),
    }
    choose = getattr(Program(tree, stubs).module(path), _backends_pass(parse(tree, path), path))
    view = Opaque(
        "server_args",
        kv_cache_dtype="fp8_e4m3",
        dsa_prefill_backend=prefill,
        dsa_decode_backend=decode,
        enable_hisparse=False,
        dcp_size=1,
        get_model_config=lambda: config,
    )
    try:
        choose(view)
    except ValueError as refusal:
        return " ".join(str(refusal).split())
    return ""


def _wrong_arguments(tree: Tree) -> list[str]:
    wrong = []
    for gpu in (ADA, HOPPER, GB10):
        if refusal := _refusal(tree, gpu, "tilelang", "tilelang"):
            wrong.append(f"{named(gpu)} refuses tilelang/tilelang ({refusal[:60]}...)")
            break
    for prefill, decode in (("tilelang", "flashmla_kv"), ("flashmla_kv", "tilelang")):
        if not _refusal(tree, HOPPER, prefill, decode):
            wrong.append(f"9.0 takes {prefill}/{decode}, which read one pool in two layouts")
    if not _refusal(tree, AMPERE, "tilelang", "tilelang"):
        wrong.append("8.0 takes it, without fp8 tensor cores")
    return wrong


# --- the pool ---------------------------------------------------------------------------------------


def _bytes_a_token(tree: Tree, prefill: str, decode: str, rope: int) -> int:
    path = _required(tree, POOL_SIZE, b"def calculate_mla_kv_cache_dim")
    backends = SimpleNamespace(dsa_prefill_backend=prefill, dsa_decode_backend=decode)
    stubs = _device(GB10) | {
        "is_deepseek_dsa": lambda _: True,
        "get_exec": lambda: SimpleNamespace(kernel=backends),
        "get_disagg": lambda: SimpleNamespace(disaggregation_mode="null"),
        "DSATokenToKVPool": SimpleNamespace(quant_block_size=128, rope_storage_dtype=BF16),
    }
    size = Program(tree, stubs).module(path).calculate_mla_kv_cache_dim
    model = SimpleNamespace(hf_config=object(), kv_lora_rank=LATENT, qk_rope_head_dim=rope)
    width = call(size, model_config=model, kv_cache_dtype=CACHE, server_args=backends)
    if not isinstance(width, int):
        raise CannotTell(f"the width of a pool's row is {width!r}")
    return width * CACHE.itemsize


def _wrong_pool(tree: Tree) -> list[str]:
    wrong = []
    for rope in (0, ROPE):
        if (held := _bytes_a_token(tree, "tilelang", "tilelang", rope)) != LATENT + rope:
            wrong.append(f"{held} B a token and layer instead of {LATENT + rope}")
    scaled = LATENT + LATENT // 128 * 4 + ROPE * BF16.itemsize
    if (held := _bytes_a_token(tree, "flashmla_kv", "flashmla_kv", ROPE)) != scaled:
        wrong.append(f"flashmla_kv gets {held} B a token and layer instead of {scaled}")
    return wrong


def _row_written(tree: Tree, rope: int | None) -> tuple[int, str]:
    """Bytes that one token's write puts into a raw pool, and by which function of the source."""
    path = _required(tree, POOL, b"class MLATokenToKVPool")
    written: list[tuple[int, str]] = []

    def plain(_: object, __: object, nope: Tensor, rest: Tensor | None = None, **___: object) -> None:
        if nope.dtype not in (CACHE, UINT8):
            raise CannotTell(f"a {nope.dtype.name} row is written into an fp8 pool")
        has_rest = rest is not None and rest.numel() > 0
        written.append((nope.shape[-1] + (rest.shape[-1] if rest is not None and has_rest else 0), "cast"))

    def fused(_: object, __: object, nope: Tensor, rest: Tensor, ___: object, **____: object) -> None:
        written.append((nope.shape[-1] + rest.shape[-1], "fused"))

    def scaled(nope: Tensor, rest: Tensor | None) -> tuple[Tensor, Tensor | None]:
        row = Tensor((*nope.shape[:-1], nope.shape[-1] + nope.shape[-1] // 128 * 4), UINT8)
        return row, None if rest is None else rest.view(UINT8)

    stubs = _device(GB10) | {
        "set_mla_kv_buffer_triton": plain,
        "set_mla_kv_buffer_dcp_sharded_triton": plain,
        "set_mla_kv_buffer_triton_fp8_quant": fused,
        "quantize_k_cache_separate": scaled,
        "get_parallel": lambda: SimpleNamespace(attn_dcp_size=1, attn_dcp_rank=0, dcp_enabled=False),
    }
    pools = Program(tree, stubs).module(path).MLATokenToKVPool
    pool = pools.__new__(pools)
    pool.__dict__.update(
        use_dsa=True,
        dtype=CACHE,
        store_dtype=UINT8,
        dsa_kv_cache_store_fp8=False,
        kv_lora_rank=LATENT,
        qk_rope_head_dim=rope or 0,
        kv_buffer=[Tensor((128, 1, LATENT + (rope or 0)), UINT8)],
        start_layer=0,
        size=64,
        page_size=64,
        kernel_page_blocks=1,
    )
    tail = None if rope is None else Tensor((4, 1, rope), BF16)
    rows = (Tensor((4, 1, LATENT), BF16), tail)
    if hasattr(pools, "_write_mla_kv_buffer"):
        pool._write_mla_kv_buffer(pool.kv_buffer[0], Tensor((4,), INT32), *rows)
    else:
        pool.set_mla_kv_buffer(SimpleNamespace(layer_id=0), Tensor((4,), INT32), *rows)
    if len(written) != 1:
        raise CannotTell(f"a write into the pool calls {len(written)} known kernels")
    return written[0]


def _wrong_write(tree: Tree) -> list[str]:
    wrong = []
    for rope in (None, 0, ROPE):
        what = "no RoPE part" if rope is None else f"a RoPE part of {rope}"
        try:
            held, how = _row_written(tree, rope)
        except AttributeError as error:
            wrong.append(f"the write with {what} stops: {error}")
            continue
        if held != LATENT + (rope or 0):
            wrong.append(f"the {how} write with {what} puts down {held} B instead of {LATENT + (rope or 0)}")
    return wrong


# --- the kernel -------------------------------------------------------------------------------------


def _wrong_kernel(tree: Tree, path: str) -> list[str]:
    tracer = TileLang()
    forward = Program(tree, _device(GB10) | tracer.stubs).module(path).tilelang_sparse_fwd
    width = LATENT + ROPE
    q, indices = Tensor((4, 32, width), BF16), Tensor((4, 1, 2048), INT32)
    forward(q=q, kv=Tensor((4096, 1, width), CACHE), indices=indices, sm_scale=width**-0.5, d_v=LATENT)
    readers = [launch for launch in tracer.launched if launch.kernel.loaded_as]
    if not readers:
        raise CannotTell("tilelang_sparse_fwd launches no kernel that loads its operands into shared memory")
    wrong = [text for launch in readers if (text := launch.wrongly_typed())]
    read = {t for launch in readers for types in launch.kernel.loaded_as.values() for t in types}
    if not wrong and not read & set(FP8):
        raise CannotTell(f"the fp8 cache is read as {', '.join(sorted(t.name for t in read))}")
    return wrong


def probe(tree: Tree) -> Answer:
    path = locate(tree, KERNELS, b"def tilelang_sparse_fwd")
    if path is None:
        return unknown("the TileLang DSA kernel was not found: nothing defines tilelang_sparse_fwd")
    wrong = _wrong_arguments(tree) + _wrong_pool(tree) + _wrong_write(tree) + _wrong_kernel(tree, path)
    if wrong:
        return defect("; ".join(wrong))
    held, how = _row_written(tree, None)
    return fixed(
        f"tilelang/tilelang taken from 8.9 on, mixes and 8.0 refused; {held} B a token and layer, "
        f"{held + ROPE} with RoPE, written raw ({how}); the kernel reads fp8"
    )
