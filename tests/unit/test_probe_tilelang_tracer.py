"""The tracer that stands in for tilelang, on kernels small enough to check by hand."""

from __future__ import annotations

import pytest
from support.tilelang import DTYPES, Gemm, Kernel, Tensor, TileLang

from builder.probe.harness import Answer, Program, ask, fixed
from builder.probe.trees import MappingTree

PATH = "python/sglang/kernel.py"
HEAD = "import tilelang\nimport tilelang.language as T\n\n"
KERNEL = (
    HEAD
    + """
@tilelang.jit(out_idx=[-1])
def factory(rows, *, block=32, stages=2, threads=128, dtype="bfloat16"):
    @T.prim_func
    def main(Q: T.Tensor([rows, 64], dtype), KV: T.Tensor([1024, 64], dtype), O: T.Tensor([rows, 64], dtype)):
        with T.Kernel(rows, threads=threads) as (bx,):
            q = T.alloc_shared([rows, 64], dtype)
            kv = T.alloc_shared([block, 64], dtype)
            unread = T.alloc_shared([rows, 64], dtype)
            scores = T.alloc_fragment([rows, block], "float")
            top = T.alloc_fragment([rows], "float")
            T.copy(Q[0:rows, :], q)
            for i in T.Pipelined(8, num_stages=stages):
                for r, c in T.Parallel(block, 64):
                    kv[r, c] = KV[i * block + r, c]
                T.gemm(q, kv, scores, transpose_B=True)
                T.reduce_max(scores, top, dim=1)
            T.copy(scores, unread)
    return main
"""
)


def build(text: str, *values: object, **named: object) -> Kernel:
    tracer = TileLang()
    module = Program(MappingTree({PATH: text.encode()}), tracer.stubs).module(PATH)
    module.factory(*values, **named)
    (kernel,) = tracer.built
    return kernel


def said(text: str, **named: object) -> Answer:
    return ask(lambda _: fixed(str(build(text, 16, **named))), MappingTree({}))


def test_shared_memory_is_buffers_once_a_stage_and_a_word_a_thread_for_each_reduction() -> None:
    assert build(KERNEL, 16).shared == 2 * 16 * 64 + 2 * 2 * 32 * 64 + 4 * 128
    assert build(KERNEL, 16, stages=1).shared == 2 * 16 * 64 + 2 * 32 * 64 + 4 * 128
    assert build(KERNEL, 16, stages=0).shared == build(KERNEL, 16, stages=1).shared


def test_buffer_that_is_only_written_takes_no_shared_memory() -> None:
    read = KERNEL.replace("T.copy(scores, unread)", "T.copy(scores, unread)\n            T.copy(unread, O)")
    assert build(read, 16).shared - build(KERNEL, 16).shared == 2 * 16 * 64


def test_static_shared_memory_is_not_counted() -> None:
    fixed_size = KERNEL.replace(
        "q = T.alloc_shared([rows, 64], dtype)", 'q = T.alloc_shared([rows, 64], dtype, "shared")'
    )
    assert build(KERNEL, 16).shared - build(fixed_size, 16).shared == 2 * 16 * 64


def test_products_and_element_types_are_told() -> None:
    kernel = build(KERNEL, 16, dtype="float8_e4m3fn")
    assert kernel.products == (Gemm(16, 32, 64),)
    assert kernel.loaded_as == {name: frozenset({DTYPES["float8_e4m3fn"]}) for name in ("Q", "KV")}


def test_product_over_no_columns_is_seen() -> None:
    kernel = build(KERNEL.replace("64", "0"), 16)
    assert kernel.products[0].depth == 0
    assert kernel.empty


def test_launch_with_another_element_type_is_seen() -> None:
    tracer = TileLang()
    module = Program(MappingTree({PATH: KERNEL.encode()}), tracer.stubs).module(PATH)
    bf16, fp8 = (Tensor((16, 64), DTYPES[name]) for name in ("bfloat16", "float8_e4m3fn"))
    kernel = module.factory(16)
    for tensors, wrong in (
        ((bf16, bf16), ""),
        ((bf16, fp8), "factory reads KV as bfloat16, gets float8_e4m3fn"),
    ):
        kernel(*tensors)
        assert tracer.launched[-1].wrongly_typed() == wrong


BRANCH = (
    HEAD
    + """
@tilelang.jit
def factory(rows):
    @T.prim_func
    def main(Q, O):
        with T.Kernel(rows, threads=64) as bx:
            first = T.alloc_shared([16, 16], "float32")
            second = T.alloc_shared([16, 32], "float32")
            third = T.alloc_shared([16, 64], "float32")
            if bx < 1:
                T.copy(first, O)
            elif bx < 2:
                T.copy(second, O)
            else:
                T.copy(third, O)
    return main
"""
)


def test_every_way_through_the_branches_is_followed() -> None:
    kernel = build(BRANCH, 16)
    assert kernel.shared == 4 * 16 * (16 + 32 + 64)
    assert kernel.branches


def test_too_many_ways_are_not_guessed_at() -> None:
    many = BRANCH.replace(
        "            if bx < 1:\n",
        "            for _ in range(9):\n                bool(bx < 1)\n            if bx < 1:\n",
    )
    assert said(many).state == "unknown"
    assert "256 ways" in said(many).evidence


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"float")', '"float6")'),  # a type of unknown size
        ("T.Pipelined(8, num_stages=stages)", "range(Q)"),  # structure that hangs on data
        ("T.gemm(q, kv,", "T.gemm(q, bx,"),  # a product with something that is not a buffer
    ],
)
def test_what_the_tracer_does_not_know_is_unknown(old: str, new: str) -> None:
    assert KERNEL.count(old) >= 1
    assert said(KERNEL.replace(old, new)).state == "unknown"
