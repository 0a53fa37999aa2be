"""What kernels compute, on small ones: regions, masks, products, reductions, blocks beyond the last head."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
from support.tilelang import DTYPES, Tensor, TileLang

from builder.probe.harness import CannotTell

F32 = DTYPES["float32"]


def run(make: Callable[[Any], Callable[..., Any]], *tensors: Tensor) -> list[float]:
    """What a kernel of one output makes of tensors."""
    tilelang = TileLang()
    out = tilelang.jit(lambda: make(tilelang.language))()(*tensors)
    assert out.data is not None
    return list(out.data)


def scaled(T: Any) -> Callable[..., Any]:  # noqa: N803
    n = T.symbolic("n")

    @T.prim_func
    def main(x: T.Tensor([n, 3], "float32"), y: T.Tensor([n, 3], "float32")) -> None:  # type: ignore[valid-type]
        with T.Kernel(T.ceildiv(n, 2)) as (bx,):
            tile = T.alloc_shared([2, 3], "float32")
            T.copy(x[bx * 2 : bx * 2 + 2, :], tile)
            for i, j in T.Parallel(2, 3):
                tile[i, j] = T.if_then_else(tile[i, j] > 2, tile[i, j] * 10, -T.infinity("float32"))
            T.copy(tile, y[bx * 2 : bx * 2 + 2, :])

    return main


def test_blocks_cover_what_there_is_and_no_more() -> None:
    found = run(scaled, Tensor((3, 3), F32, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]))
    assert found == [-math.inf, -math.inf, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]


def product(T: Any, *, clear: bool = False) -> Callable[..., Any]:  # noqa: N803
    @T.prim_func
    def main(a: T.Tensor([2, 2], "float32"), out: T.Tensor([2], "float32")) -> None:  # type: ignore[valid-type]
        with T.Kernel(1):
            left, acc = T.alloc_shared([2, 2], "float32"), T.alloc_fragment([2, 2], "float32")
            total = T.alloc_fragment([2], "float32")
            T.copy(a, left)
            T.fill(acc, 100)
            T.gemm(left, left, acc, transpose_B=True, clear_accum=clear)
            T.reduce_max(acc, total, dim=1)
            T.copy(total, out)

    return main


def test_a_product_adds_to_what_is_there_unless_it_clears() -> None:
    a = Tensor((2, 2), F32, [1.0, 2.0, 3.0, 4.0])
    assert run(product, a) == [111.0, 125.0]
    assert run(functools.partial(product, clear=True), a) == [11.0, 25.0]


def test_memory_that_nothing_was_put_into_is_not_a_number() -> None:
    def forgotten(T: Any) -> Callable[..., Any]:  # noqa: N803
        @T.prim_func
        def main(a: T.Tensor([2], "float32"), out: T.Tensor([2], "float32")) -> None:  # type: ignore[valid-type]
            with T.Kernel(1):
                tile = T.alloc_shared([2], "float32")
                T.copy(tile, out)

        return main

    assert all(map(math.isnan, run(forgotten, Tensor((2,), F32, [1.0, 2.0]))))


def test_what_is_not_known_stops_the_probe() -> None:
    def waits(T: Any) -> Callable[..., Any]:  # noqa: N803
        @T.prim_func
        def main(a: T.Tensor([2], "float32"), out: T.Tensor([2], "float32")) -> None:  # type: ignore[valid-type]
            with T.Kernel(1):
                T.barrier_wait(a, 0)

        return main

    with pytest.raises(CannotTell, match="barrier_wait"):
        run(waits, Tensor((2,), F32, [1.0, 2.0]))


@pytest.mark.parametrize(
    ("given", "found"), [(0.3, 0.3125), (300.0, 288.0), (464.0, 448.0), (2**-9, 2**-9), (2**-11, 0.0)]
)
def test_a_cast_to_e4m3_keeps_three_bits(given: float, found: float) -> None:
    assert Tensor((1,), F32, [given]).to(DTYPES["float8_e4m3fn"]).data == [found]


def test_a_cast_to_e4m3_does_not_saturate_and_a_clamp_does() -> None:
    large = Tensor((2,), F32, [465.0, -1e6])
    assert all(map(math.isnan, large.to(DTYPES["float8_e4m3fn"]).data or []))
    assert large.clamp(-448.0, 448.0).to(DTYPES["float8_e4m3fn"]).data == [448.0, -448.0]
