"""What the compiler says of the real kernels, and that the probes' tracer says the same."""

from __future__ import annotations

import pytest
from evidence import compile as compiler
from evidence.compile import CompileReport, Lowered
from support.tilelang import TileLang

from builder.probe.harness import Program, Tree
from tests.integration.sources import WheelTree, patched, release_tree

PATCHES = ("dsa-tilelang-smem", "tilelang-fp8-partial-nope", "tilelang-fp8-kv-cuda")
KERNELS = "python/sglang/kernels/ops/attention/dsa/tilelang_kernel.py"


@pytest.fixture(scope="module")
def pristine() -> WheelTree:
    return release_tree("0.5.20")


@pytest.fixture(scope="module")
def repaired(pristine: WheelTree) -> Tree:
    return patched(pristine, *(f"v0.5.20/{name}" for name in PATCHES))


@pytest.fixture(scope="module")
def before(pristine: WheelTree) -> CompileReport:
    return compiler.report(pristine)


@pytest.fixture(scope="module")
def after(repaired: Tree) -> CompileReport:
    return compiler.report(repaired)


def of(report: CompileReport, cache: str, tail: int) -> dict[int, int | None]:
    return {k.heads: k.shared for k in report.kernels if (k.cache, k.tail) == (cache, tail)}


def traced(tree: Tree, kernel: Lowered) -> int:
    tracer = TileLang()
    module = Program(tree, tracer.stubs | {"is_hip": lambda: False}).module(KERNELS)
    getattr(module, kernel.factory)(kernel.heads, 512, kernel.tail, 2048, **kernel.options)
    return tracer.built[0].shared


def test_unpatched_kernels_do_not_fit(before: CompileReport) -> None:
    assert of(before, "bf16", 0) == {16: 151_552, 32: 169_984, 64: 206_848}
    assert len(before.over) == len(before.kernels)


def test_patched_kernels_fit_for_every_number_of_heads(after: CompileReport) -> None:
    assert not after.over, after.markdown()
    assert of(after, "bf16", 0) == dict.fromkeys((16, 32, 64), 84_992)
    assert of(after, "bf16", 64) == dict.fromkeys((16, 32, 64), 95_232)


def test_fp8_cache_gets_the_fp8_kernel(after: CompileReport) -> None:
    assert {k.factory for k in after.kernels if k.cache == "fp8"} == {"sparse_mla_fwd_decode_partial_fp8"}


def test_the_tracer_and_the_compiler_agree_to_the_byte(
    pristine: WheelTree, repaired: Tree, before: CompileReport, after: CompileReport
) -> None:
    for tree, report in ((pristine, before), (repaired, after)):
        for kernel in report.kernels:
            if kernel.factory != "sparse_attention_fwd_kernel_v2":  # whose warps go different ways
                assert traced(tree, kernel) == kernel.shared, kernel
