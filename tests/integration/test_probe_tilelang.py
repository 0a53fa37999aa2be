"""TileLang's sparse attention: the probes know the fixes, halves of them, and them in other words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builder.probe.harness import Answer, Tree
from builder.probe.run import Prober
from builder.probe.trees import MappingTree
from tests.integration.sources import PATCHES, WheelTree, changed, patched, release_tree

KERNELS = "python/sglang/kernels/ops/attention/dsa/tilelang_kernel.py"
ARGUMENTS = "python/sglang/srt/arg_groups/overrides.py"
POOL_SIZE = "python/sglang/srt/mem_cache/kv_cache_configurator.py"
POOL = "python/sglang/srt/mem_cache/memory_pool.py"

SMEM, NOPE, FP8 = "dsa-tilelang-smem", "tilelang-fp8-partial-nope", "tilelang-fp8-kv-cuda"
NAMES = (SMEM, NOPE, FP8)


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    with Prober() as prober:
        yield prober


@pytest.fixture(scope="module")
def pristine() -> WheelTree:
    return release_tree("0.5.20")


@pytest.fixture(scope="module")
def mended(pristine: WheelTree) -> dict[str, MappingTree]:
    return {name: patched(pristine, f"v0.5.20/{name}") for name in NAMES}


def said(prober: Prober, name: str, tree: Tree) -> Answer:
    return prober.ask(PATCHES / "probes" / f"{name}.py", tree)


@pytest.mark.parametrize(
    ("version", "smem", "nope", "fp8"),
    [
        ("0.5.17", "defect", "defect", "defect"),
        ("0.5.20", "defect", "defect", "defect"),
        ("0.5.23", "defect", "fixed", "fixed"),
    ],
)
def test_releases_are_told_apart(prober: Prober, version: str, smem: str, nope: str, fp8: str) -> None:
    tree = release_tree(version)
    answers = {name: said(prober, name, tree) for name in NAMES}
    assert {name: answer.state for name, answer in answers.items()} == {SMEM: smem, NOPE: nope, FP8: fp8}, (
        answers
    )


def test_each_patch_flips_its_own_probe_alone(prober: Prober, mended: dict[str, MappingTree]) -> None:
    for patch, tree in mended.items():
        states = {name: said(prober, name, tree).state for name in NAMES}
        assert states == {name: "fixed" if name == patch else "defect" for name in NAMES}, patch


def test_the_figures_are_the_ones_of_the_compiler(
    prober: Prober, pristine: WheelTree, mended: dict[str, MappingTree]
) -> None:
    before = said(prober, SMEM, pristine).evidence
    for figure in ("151,552 B at 16 heads", "169,984 B at 32 heads", "206,848 B at 64 heads"):
        assert figure in before
    after = said(prober, SMEM, mended[SMEM]).evidence
    for figure in (
        "84,992 B at 16 heads (NoPE)",
        "84,992 B at 32 heads (NoPE)",
        "95,232 B at 32 heads (RoPE)",
    ):
        assert figure in after


def test_kernels_that_are_not_found_are_unknown(prober: Prober) -> None:
    tree = MappingTree({"python/sglang/version.py": b"__version__ = '0.5.20'\n"})
    assert [said(prober, name, tree).state for name in NAMES] == ["unknown"] * 3


PICK = "        tile = _pick_v1_tile(num_heads, dim, q.device)\n"
SHRUNK_TILE = '    {"block_I": 64, "num_stages": 1, "threads": 128, "heads_per_block": 16},\n'
LAST_TILE = '    {"block_I": 32, "num_stages": 1, "threads": 128, "heads_per_block": 16},\n'
SPLIT = "        REPLICATE_H = tilelang.cdiv(head_kv, heads_per_block)\n"
HEADS = "    H_per_block = padded_H if REPLICATE_H == 1 else heads_per_block\n\n    @T.prim_func\n"
RAW_POOL = '        kernel_args.dsa_prefill_backend == kernel_args.dsa_decode_backend == "tilelang"\n'
MIXED = '        if chosen != {"tilelang"}:\n'
CAPABLE = "        if capability < (8, 9):\n"
REFUSE = '    if not hip and kv_cache_dtype == "fp8_e4m3" and "tilelang" in chosen:\n'
ROPE_PART = "                cache_k_nope[..., :0] if cache_k_rope is None else cache_k_rope,\n"
RAW_WRITE = "        if raw_fp8 and (_is_hip or self._write_loc_dcp_span == 1):\n"
DISPATCH = "    if _is_hip or is_fp8_kv:\n"
CAST = "                q = q.clamp(-fp8_max, fp8_max).to(kv.dtype)\n"
TAIL_GEMM = "                if has_tail:\n                    T.gemm(\n                        q_tail_buf,\n"
TAIL_FLAG = "    has_tail = d_tail > 0\n"
TAIL_BUFFERS = (
    "            if has_tail:\n"
    "                q_tail_buf = T.alloc_shared([h_per_block, d_tail], fp8_dtype)\n"
    "                k_tail_shared = T.alloc_shared([BI, d_tail], fp8_dtype)\n"
)

BROKEN = {
    "smem: reverted": (SMEM, KERNELS, {PICK: "        tile = _V1_TILES[0]\n"}),
    "smem: two stages again": (
        SMEM,
        KERNELS,
        {SHRUNK_TILE: SHRUNK_TILE.replace('"num_stages": 1', '"num_stages": 2'), LAST_TILE: ""},
    ),
    "smem: the bytes of half a row": (
        SMEM,
        KERNELS,
        {"    return 2 * (rows * width + heads": "    return 1 * (rows * width + heads"},
    ),
    "smem: heads not shared out": (
        SMEM,
        KERNELS,
        {HEADS: HEADS.replace("else heads_per_block", "else padded_H")},
    ),
    "smem: nothing but a refusal": (SMEM, KERNELS, {SHRUNK_TILE: "", LAST_TILE: ""}),
    "smem: chosen but not handed on": (
        SMEM,
        KERNELS,
        {"topk, sm_scale=sm_scale, **tile\n": "topk, sm_scale=sm_scale\n"},
    ),
    "smem: only without RoPE": (
        SMEM,
        KERNELS,
        {"        if tail_dim == 0 or tile is not _V1_TILES[0]:\n": "        if tail_dim == 0:\n"},
    ),
    "nope: reverted": (NOPE, KERNELS, {TAIL_FLAG: "    has_tail = True\n"}),
    "nope: the product left in": (NOPE, KERNELS, {TAIL_GEMM: TAIL_GEMM.replace("if has_tail:", "if True:")}),
    "nope: the buffers left in": (
        NOPE,
        KERNELS,
        {TAIL_BUFFERS: TAIL_BUFFERS.replace("if has_tail:", "if True:")},
    ),
    "nope: the tail never multiplied": (
        NOPE,
        KERNELS,
        {TAIL_GEMM: TAIL_GEMM.replace("if has_tail:", "if False:")},
    ),
    "nope: the wrong way round": (NOPE, KERNELS, {TAIL_FLAG: "    has_tail = d_tail == 0\n"}),
    "fp8: gate shut again": (
        FP8,
        ARGUMENTS,
        {MIXED: "        if True:\n"},
    ),
    "fp8: gate open to mixes": (FP8, ARGUMENTS, {MIXED: "        if False:\n"}),
    "fp8: gate open to Ampere": (FP8, ARGUMENTS, {CAPABLE: "        if capability < (8, 0):\n"}),
    "fp8: no gate at all": (FP8, ARGUMENTS, {REFUSE: "    if False:\n"}),
    "fp8: gate for Hopper alone": (FP8, ARGUMENTS, {CAPABLE: "        if capability != (9, 0):\n"}),
    "fp8: pool with scales": (FP8, POOL_SIZE, {RAW_POOL: "        False\n"}),
    "fp8: pool without scales for all": (FP8, POOL_SIZE, {RAW_POOL: "        True\n"}),
    "fp8: RoPE part taken for granted": (FP8, POOL, {ROPE_PART: "                cache_k_rope,\n"}),
    "fp8: rows written with scales": (
        FP8,
        POOL,
        {
            RAW_WRITE: "        if False:\n",
            "        elif self.dsa_kv_cache_store_fp8:\n            # OPTIM": (
                "        elif raw_fp8 or self.dsa_kv_cache_store_fp8:\n            # OPTIM"
            ),
        },
    ),
    "fp8: bf16 kernel": (FP8, KERNELS, {DISPATCH: "    if _is_hip:\n"}),
    "fp8: queries left in bf16": (FP8, KERNELS, {CAST: "                q = q.clamp(-fp8_max, fp8_max)\n"}),
}

REWRITTEN = {
    "smem: tiles in a dictionary call": (
        SMEM,
        KERNELS,
        {SHRUNK_TILE: "    dict(heads_per_block=16, block_I=64, num_stages=1, threads=128),\n"},
    ),
    "smem: a smaller tile": (SMEM, KERNELS, {SHRUNK_TILE: ""}),
    "smem: heads split by hand": (
        SMEM,
        KERNELS,
        {SPLIT: "        REPLICATE_H = (head_kv + heads_per_block - 1) // heads_per_block\n"},
    ),
    "smem: the limit asked for elsewhere": (
        SMEM,
        KERNELS,
        {
            "    smem_limit = torch.cuda.get_device_properties(device).shared_memory_per_block_optin\n": (
                "    smem_limit = _limit(device)\n"
            ),
            "@functools.cache\ndef _pick_v1_tile": (
                "def _limit(device):\n"
                "    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin\n\n\n"
                "@functools.cache\ndef _pick_v1_tile"
            ),
        },
    ),
    "nope: asked by width": (NOPE, KERNELS, {TAIL_FLAG: "    has_tail = dim_quant_fp8 != d_v\n"}),
    "nope: buffers of one column that nothing uses": (
        NOPE,
        KERNELS,
        {
            TAIL_BUFFERS: TAIL_BUFFERS.replace("            if has_tail:\n", "", 1)
            .replace("                q_tail", "            q_tail")
            .replace("                k_tail", "            k_tail")
            .replace("d_tail]", "max(d_tail, 1)]")
        },
    ),
    "fp8: mixes asked one by one": (
        FP8,
        ARGUMENTS,
        {MIXED: '        if prefill_backend != "tilelang" or decode_backend != "tilelang":\n'},
    ),
    "fp8: backends asked one by one": (
        FP8,
        POOL_SIZE,
        {
            RAW_POOL: '        kernel_args.dsa_prefill_backend == "tilelang"\n'
            '        and kernel_args.dsa_decode_backend == "tilelang"\n'
        },
    ),
    "fp8: written by cast and scatter": (FP8, POOL, {RAW_WRITE: "        if raw_fp8 and _is_hip:\n"}),
    "fp8: another tile": (
        FP8,
        KERNELS,
        {"block_I, threads, block_per_cu = 64, 128, 1": "block_I, threads, block_per_cu = 32, 64, 1"},
    ),
}


@pytest.mark.parametrize("mutation", BROKEN)
def test_broken_fix_is_not_called_fixed(
    prober: Prober, mended: dict[str, MappingTree], mutation: str
) -> None:
    name, path, edits = BROKEN[mutation]
    answer = said(prober, name, changed(mended[name], path, edits))
    assert answer.state in ("defect", "unknown"), answer


@pytest.mark.parametrize("refactoring", REWRITTEN)
def test_fix_in_other_words_is_still_fixed(
    prober: Prober, mended: dict[str, MappingTree], refactoring: str
) -> None:
    name, path, edits = REWRITTEN[refactoring]
    answer = said(prober, name, changed(mended[name], path, edits))
    assert answer.state == "fixed", answer
