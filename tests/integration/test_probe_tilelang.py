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
    for figure in ("151,552 B at 16 heads", "169,984 B at 24, 32 heads", "206,848 B at 64, 128 heads"):
        assert figure in before
    after = said(prober, SMEM, mended[SMEM]).evidence
    for figure in (
        "84,992 B at 16, 24, 32, 64, 128 heads (NoPE)",
        "95,232 B at 16, 24, 32, 64, 128 heads (RoPE)",
    ):
        assert figure in after


def test_kernels_that_are_not_found_are_unknown(prober: Prober) -> None:
    tree = MappingTree({"python/sglang/version.py": b"__version__ = '0.5.20'\n"})
    assert [said(prober, name, tree).state for name in NAMES] == ["unknown"] * 3


RAW_POOL = '        kernel_args.dsa_prefill_backend == kernel_args.dsa_decode_backend == "tilelang"\n'
MIXED = '        if chosen != {"tilelang"}:\n'
CAPABLE = "        if capability < (8, 9):\n"
REFUSE = '    if not hip and kv_cache_dtype == "fp8_e4m3" and "tilelang" in chosen:\n'
ROPE_PART = "                cache_k_nope[..., :0] if cache_k_rope is None else cache_k_rope,\n"
RAW_WRITE = "        if raw_fp8 and (_is_hip or self._write_loc_dcp_span == 1):\n"
DISPATCH = "    if _is_hip or is_fp8_kv:\n"
CAST = "                q = q.clamp(-fp8_max, fp8_max).to(kv.dtype)\n"

BROKEN = {
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
