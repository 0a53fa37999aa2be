"""Does an fp8 KV cache with both DSA backends tilelang work on CUDA, from the arguments to the kernel?

What works: the arguments that are taken and refused, the size of a row, how it is written and read back for
one-shot MHA, and what the kernel is given and makes of it. Nothing on the way may make NaN of a large number,
whichever torch the base has: its plain cast saturates from 2.13 on alone.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from support.attention import Case
from support.tilelang import DTYPES, Dtype, Launch, Tensor, TileLang

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

ARGUMENTS = ("python/sglang/srt/arg_groups/overrides.py",)
POOL_SIZE = ("python/sglang/srt/mem_cache/kv_cache_configurator.py",)
POOL = ("python/sglang/srt/mem_cache/memory_pool.py",)
KERNELS = ("python/sglang/kernels/ops/attention/dsa/tilelang_kernel.py",)
MHA = "python/sglang/srt/models/deepseek_common/attention_forward_methods/forward_mha.py"
BACKEND = "python/sglang/srt/layers/attention/dsa_backend.py"

MODEL = "Glm5NextForConditionalGeneration"
CONFIG = SimpleNamespace(hf_config=SimpleNamespace(architectures=[MODEL], index_topk=2048))
AMPERE = (8, 0)
ADA = (8, 9)
LATENT, ROPE = 512, 64
CACHE = DTYPES["float8_e4m3fn"]
BF16, INT32, UINT8 = DTYPES["bfloat16"], DTYPES["int32"], DTYPES["uint8"]
SCALED = LATENT + LATENT // 128 * 4 + ROPE * BF16.itemsize  # bytes of a row with scales


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


class Arguments:
    """The pass that chooses and checks the two DSA backends: it asks for the device, and is of DSA."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._path, self._name = self._find()
        self._on: dict[tuple[int, int], Any] = {}

    def _find(self) -> tuple[str, str]:
        others = (path for path in self._tree.grep(b"dsa_decode_backend", "python/sglang/srt/arg_groups/"))
        for path in (*(path for path in ARGUMENTS if path in self._tree), *others):
            for name, node in definitions(parse(self._tree, path)):
                names = names_in(node) if isinstance(node, ast.FunctionDef) else set()
                by_device = any("capability" in name for name in names) and "is_deepseek_dsa" in names
                if by_device and {"dsa_prefill_backend", "dsa_decode_backend"} <= strings_in(node):
                    return path, name
        raise CannotTell("no pass over the arguments chooses DSA backends")

    def refusal(
        self,
        gpu: tuple[int, int],
        prefill: str,
        decode: str,
        cache: str = "fp8_e4m3",
        *,
        dcp_size: int = 1,
        hisparse: bool = False,
    ) -> str:
        """Why the arguments are refused on ``gpu``; empty when they are taken."""
        view = Opaque(
            "server_args",
            kv_cache_dtype=cache,
            dsa_prefill_backend=prefill,
            dsa_decode_backend=decode,
            enable_hisparse=hisparse,
            dcp_size=dcp_size,
            get_model_config=lambda: CONFIG,
        )
        try:
            self._pass(gpu)(view)
        except ValueError as refusal:
            return " ".join(str(refusal).split())
        return ""

    def _pass(self, gpu: tuple[int, int]) -> Any:
        if gpu not in self._on:
            stubs = _device(gpu) | {
                "logger": Opaque("logger"),
                "is_deepseek_dsa": lambda _: True,
                "model_config_of": lambda _: CONFIG,
                "_DEEPSEEK_FAMILY_ARCHS": frozenset({MODEL}),
            }
            self._on[gpu] = getattr(Program(self._tree, stubs).module(self._path), self._name)
        return self._on[gpu]


def _wrong_arguments(tree: Tree) -> list[str]:
    wrong: list[str] = []
    refusal_of = Arguments(tree).refusal
    for gpu in (ADA, HOPPER, GB10):
        if refusal := refusal_of(gpu, "tilelang", "tilelang"):
            wrong.append(f"{named(gpu)} refuses tilelang/tilelang ({refusal[:60]}...)")
            break
    for prefill, decode in (("tilelang", "flashmla_kv"), ("flashmla_kv", "tilelang")):
        if not refusal_of(HOPPER, prefill, decode):
            wrong.append(f"9.0 takes {prefill}/{decode}, which read one pool in two layouts")
    if not refusal_of(AMPERE, "tilelang", "tilelang"):
        wrong.append("8.0 takes it, without fp8 tensor cores")
    for said, refusal in (
        ("--dcp-size 2", refusal_of(GB10, "tilelang", "tilelang", dcp_size=2)),
        ("--enable-hisparse", refusal_of(GB10, "tilelang", "tilelang", hisparse=True)),
    ):
        if not refusal:
            wrong.append(f"tilelang/tilelang is taken with {said}, which knows nothing of raw rows")
    for gpu, backend, cache in ((GB10, "tilelang", "bfloat16"), (HOPPER, "flashmla_kv", "fp8_e4m3")):
        if refusal := refusal_of(gpu, backend, backend, cache, dcp_size=2):
            wrong.append(f"{backend} with a {cache} cache is refused with --dcp-size 2 ({refusal[:60]}...)")
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
    if (held := _bytes_a_token(tree, "flashmla_kv", "flashmla_kv", ROPE)) != SCALED:
        wrong.append(f"flashmla_kv gets {held} B a token and layer instead of {SCALED}")
    return wrong


LARGE = (0.5, -300.0, 448.0, 455.0, 470.0, -1e4, 3e38)
SATURATED = [0.5, -288.0, 448.0, 448.0, 448.0, -448.0, 448.0]  # three are NaN in torch before 2.13


def _not_saturated(numbers: list[float]) -> str:
    """The first number that becomes another one than it must, and which; empty if there is none."""
    triples = zip(LARGE, SATURATED, numbers, strict=True)
    return next((f"{found:g} of {given:g}" for given, wanted, found in triples if found != wanted), "")


@dataclass(frozen=True)
class Written:
    """One write into a pool: bytes a token, by which kernel, and the numbers of the latent."""

    bytes: int
    how: str
    numbers: list[float] | None


class Pools:
    """The pools of latent rows, and what is written into one.

    Args:
        tree: the source.
        dcp: ranks that share the tokens.
    """

    def __init__(self, tree: Tree, dcp: int = 1) -> None:
        path = _required(tree, POOL, b"class MLATokenToKVPool")
        parallel = SimpleNamespace(attn_dcp_size=dcp, attn_dcp_rank=0, dcp_enabled=dcp > 1)
        stubs = _device(GB10) | {
            "set_mla_kv_buffer_triton": self._plain,
            "set_mla_kv_buffer_dcp_sharded_triton": self._plain,
            "set_mla_kv_buffer_triton_fp8_quant": self._fused,
            "quantize_k_cache_separate": self._quantized,
            "get_parallel": lambda: parallel,
        }
        self._class = Program(tree, stubs).module(path).MLATokenToKVPool
        self._written: list[Written] = []

    def _plain(self, _: object, __: object, nope: Tensor, rest: Tensor | None = None, **___: object) -> None:
        if nope.dtype not in (CACHE, UINT8):
            raise CannotTell(f"a {nope.dtype.name} row is written into an fp8 pool")
        more = rest.shape[-1] if rest is not None and rest.numel() > 0 else 0
        self._written.append(Written(nope.shape[-1] + more, "cast", nope.data))

    def _fused(self, _: object, __: object, nope: Tensor, rest: Tensor, ___: object, **____: object) -> None:
        numbers = None if nope.data is None else nope.clamp(-448.0, 448.0).to(CACHE).data  # as Triton casts
        self._written.append(Written(nope.shape[-1] + rest.shape[-1], "fused", numbers))

    def _quantized(self, nope: Tensor, rest: Tensor | None) -> tuple[Tensor, Tensor | None]:
        row = Tensor((*nope.shape[:-1], nope.shape[-1] + nope.shape[-1] // 128 * 4), UINT8)
        return row, None if rest is None else rest.view(UINT8)

    def write(self, rope: int | None, *, scaled: bool = False) -> Written:
        """What a write of one token does to a pool of rows with or without scales."""
        pool = self._class.__new__(self._class)
        pool.__dict__.update(
            use_dsa=True,
            dtype=CACHE,
            store_dtype=UINT8,
            dsa_kv_cache_store_fp8=scaled,
            kv_lora_rank=LATENT,
            qk_rope_head_dim=rope or 0,
            kv_buffer=[Tensor((128, 1, LATENT + (rope or 0)), UINT8)],
            start_layer=0,
            size=64,
            page_size=64,
            kernel_page_blocks=1,
        )
        tail = None if rope is None else Tensor((4, 1, rope), BF16)
        rows = (Tensor((4, 1, LATENT), BF16, list(LARGE)), tail)
        self._written.clear()
        if hasattr(self._class, "_write_mla_kv_buffer"):
            pool._write_mla_kv_buffer(pool.kv_buffer[0], Tensor((4,), INT32), *rows)
        else:
            pool.set_mla_kv_buffer(SimpleNamespace(layer_id=0), Tensor((4,), INT32), *rows)
        if len(self._written) != 1:
            raise CannotTell(f"a write into the pool calls {len(self._written)} known kernels")
        return self._written[0]


def _wrong_write(tree: Tree) -> list[str]:
    wrong = []
    pools = Pools(tree)
    for rope in (None, 0, ROPE):
        what = "no RoPE part" if rope is None else f"a RoPE part of {rope}"
        try:
            made = pools.write(rope)
        except AttributeError as error:
            wrong.append(f"the write with {what} stops: {error}")
            continue
        if made.bytes != LATENT + (rope or 0):
            wrong.append(
                f"the {made.how} write with {what} puts down {made.bytes} B instead of {LATENT + (rope or 0)}"
            )
        elif made.numbers is None:
            raise CannotTell(f"the numbers of a {made.how} write are not known")
        elif bad := _not_saturated(made.numbers):
            wrong.append(f"the {made.how} write with {what} makes {bad}")
    row = pools.write(ROPE, scaled=True)
    if row.bytes != SCALED or row.how != "cast":
        wrong.append(f"a pool with scales gets {row.bytes} B by the {row.how} write instead of {SCALED}")
    if Pools(tree, dcp=2).write(ROPE).how == "fused":
        wrong.append("under DCP rows are written by the fused kernel, which knows no owner")
    return wrong


# --- one-shot MHA over what is cached ----------------------------------------------------------------


class _Anything:
    """A tensor of which nothing matters: every part of it, and all that it gives back, is one as well."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self

    def __getitem__(self, key: object) -> Any:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def split(self, sizes: Sequence[int], *_: object, **__: object) -> tuple[Any, ...]:
        return (self,) * len(sizes)


def _dequantized(tree: Tree, backend: str, *, scaled: bool) -> bool:
    """Whether a cached prefix is read as rows with scales."""
    path = _required(tree, (MHA,), b"def _get_mla_kv_buffer_from_fp8_for_dsa")
    read: list[str] = []
    anything = _Anything()

    class Pool:
        dtype, dsa_kv_cache_store_fp8 = CACHE, scaled

        def get_key_buffer(self, *_: object) -> Any:
            read.append("raw")
            return anything

        def get_mla_kv_buffer(self, *_: object) -> Any:
            read.append("raw")
            return anything, anything

    def dequantize(*_: object, **__: object) -> Any:
        read.append("scaled")
        return anything

    flattened = SimpleNamespace(forward_metadata=SimpleNamespace(page_table_1_flattened=anything))
    kernel = SimpleNamespace(dsa_prefill_backend=backend, dsa_decode_backend=backend)
    stubs = _device(HOPPER) | {
        "get_exec": lambda: SimpleNamespace(kernel=kernel),
        "get_server_args": lambda: Opaque("server_args", **vars(kernel)),
        "get_parallel": lambda: SimpleNamespace(attn_dcp_size=1, dcp_enabled=False),
        "get_token_to_kv_pool": Pool,
        "get_attn_backend": lambda: flattened,
        "resolve_attn_backend": lambda *_: flattened,
        "TboAttnBackend": type("TboAttnBackend", (), {}),
        "dequantize_k_cache_paged": dequantize,
        "dequantize_k_cache_paged_dsa": dequantize,
    }
    module = Program(tree, stubs).module(path)
    mixin = getattr(module, _class_with(parse(tree, path), "_get_mla_kv_buffer_from_fp8_for_dsa"))

    class Attention(mixin, _Anything):  # type: ignore[misc, valid-type]
        pass

    attention = Attention()
    attention.__dict__.update(
        q_lora_rank=None,
        use_dsa=True,
        kv_cache_dtype="fp8_e4m3",
        rotary_emb=None,
        kv_lora_rank=LATENT,
        qk_nope_head_dim=128,
        qk_rope_head_dim=0,
        v_head_dim=128,
        num_local_heads=16,
        current_attention_backend="dsa",
        _set_mla_kv_buffer=anything,
        _concat_and_cast_mha_k=anything,
    )
    batch = _Anything()
    batch.__dict__.update(mha_one_shot=True, extend_prefix_lens_cpu=[64])
    attention.forward_normal_prepare(anything, anything, batch, anything)
    if not read:
        raise CannotTell("one-shot MHA reads no cached prefix that this probe can see")
    return "scaled" in read


def _class_with(module: ast.Module, method: str) -> str:
    for name, node in definitions(module):
        if isinstance(node, ast.ClassDef) and any(m == method for m, _ in definitions(node)):
            return name
    raise CannotTell(f"{method} is in no class")


def _one_shot_is_off(tree: Tree) -> bool:
    """Whether the attention backend never takes one-shot MHA where the pool's rows are raw."""
    path = locate(tree, (BACKEND,), b"supports_mha_one_shot")
    if path is None:
        return False
    pool = SimpleNamespace(dtype=CACHE, dsa_kv_cache_store_fp8=False)
    backend = Opaque(
        "self",
        token_to_kv_pool=pool,
        dsa_kv_cache_store_fp8=False,
        dsa_prefill_impl="tilelang",
        dsa_decode_impl="tilelang",
    )
    module = Program(tree, _device(HOPPER)).module(path)
    for node in ast.walk(parse(tree, path)):
        if isinstance(node, ast.If) and any(_switches_off(s, "supports_mha_one_shot") for s in node.body):
            return bool(module.evaluate(node.test, {"self": backend}))
    return False


def _switches_off(statement: ast.stmt, attribute: str) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is False
        and any(isinstance(t, ast.Attribute) and t.attr == attribute for t in statement.targets)
    )


def _wrong_prefix(tree: Tree) -> list[str]:
    wrong = []
    if _dequantized(tree, "tilelang", scaled=False) and not _one_shot_is_off(tree):
        wrong.append("one-shot MHA reads raw rows of a cached prefix as rows with scales")
    if not _dequantized(tree, "flashmla_kv", scaled=True):
        wrong.append("one-shot MHA reads rows with scales of a cached prefix as raw ones")
    return wrong


# --- the kernel -------------------------------------------------------------------------------------


def _launched(
    tree: Tree, path: str, q: Tensor, kv: Tensor, indices: Tensor, **more: Any
) -> tuple[Any, list[Launch]]:
    """What ``tilelang_sparse_fwd`` gives back, and what it launched."""
    tracer = TileLang()
    forward = Program(tree, _device(GB10) | tracer.stubs).module(path).tilelang_sparse_fwd
    out = forward(q=q, kv=kv, indices=indices, **{"sm_scale": 0.05, "d_v": LATENT, **more})
    return out, tracer.launched


def _wrong_types(tree: Tree, path: str, dtype: Dtype, width: int) -> list[str]:
    """Which kernels read an operand as something else than it is."""
    q, indices = Tensor((4, 32, width), BF16), Tensor((4, 1, 2048), INT32)
    _, launched = _launched(tree, path, q, Tensor((4096, 1, width), dtype), indices)
    readers = [launch for launch in launched if launch.kernel.loaded_as]
    if not readers:
        raise CannotTell("tilelang_sparse_fwd launches no kernel that loads its operands into shared memory")
    wrong = [text for launch in readers if (text := launch.wrongly_typed())]
    read = {t for launch in readers for types in launch.kernel.loaded_as.values() for t in types}
    if not wrong and dtype not in read:
        raise CannotTell(f"the {dtype.name} cache is read as {', '.join(sorted(t.name for t in read))}")
    return wrong


def _wrong_kernel(tree: Tree) -> list[str]:
    path = _required(tree, KERNELS, b"def tilelang_sparse_fwd")
    wrong = _wrong_types(tree, path, CACHE, LATENT + ROPE) + _wrong_types(tree, path, BF16, LATENT)
    if wrong:
        return wrong
    q = Tensor((1, 16, LATENT), BF16, [*LARGE, *[1.0] * (16 * LATENT - len(LARGE))])
    _, launched = _launched(tree, path, q, Tensor((64, 1, LATENT), CACHE), Tensor((1, 1, 64), INT32))
    given = [t for launch in launched for t in launch.tensors if t.dtype == CACHE and t.numel() == q.numel()]
    if not given or given[0].data is None:
        raise CannotTell("what becomes of a query's numbers is not known")
    if bad := _not_saturated(given[0].data[: len(LARGE)]):
        wrong.append(f"on the way to the kernel a query becomes {bad}, with torch before 2.13")
    case = Case(16, LATENT, ROPE, 128, tokens=1)
    q, kv, indices = case.tensors(CACHE)
    out, _ = _launched(tree, path, q, kv, indices, sm_scale=case.scale)
    if bad := case.wrong(q, kv, indices, out):
        wrong.append(bad)
    return wrong


def probe(tree: Tree) -> Answer:
    path = locate(tree, KERNELS, b"def tilelang_sparse_fwd")
    if path is None:
        return unknown("the TileLang DSA kernel was not found: nothing defines tilelang_sparse_fwd")
    wrong: list[str] = []
    untold: list[CannotTell] = []
    for part in (_wrong_arguments, _wrong_pool, _wrong_write, _wrong_prefix, _wrong_kernel):
        try:
            wrong += part(tree)
        except CannotTell as why:  # what is wrong elsewhere is wrong all the same
            untold.append(why)
    if wrong:
        return defect("; ".join(wrong))
    if untold:
        raise untold[0]
    row = Pools(tree).write(None)
    return fixed(
        "tilelang/tilelang taken from 8.9 on; mixes, 8.0, DCP and HiSparse refused; "
        f"{row.bytes} B a token and layer, {row.bytes + ROPE} with RoPE, written raw ({row.how}) and "
        "read raw; the kernel reads fp8; nothing becomes NaN"
    )
