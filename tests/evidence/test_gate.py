"""The bounds of the kernel gate: what rounding does is within them, what a wrong kernel does is not."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from evidence import kernel_gate as gate

torch = import_module("torch")
CASE = gate.Case("bf16", 16, 2048)


@pytest.fixture(scope="module")
def given() -> tuple[Any, Any, Any]:
    make = torch.Generator().manual_seed(0)
    q = torch.randn(9, 16, 512, generator=make).bfloat16()
    rows = torch.randn(9, 2048, 512, generator=make).bfloat16()
    valid = torch.rand(9, 2048, generator=make) > 0.25
    valid[1, 1:] = False
    return q, rows, valid


def attend(q: Any, rows: Any, valid: Any) -> gate.Attention:
    return gate.attend(torch, q, rows, valid, 512**-0.5, 512)


def test_rounding_the_exact_answer_is_within_the_bounds(given: tuple[Any, Any, Any]) -> None:
    ref = attend(*given)
    result = gate.judge(torch, CASE, ref.out.bfloat16(), ref, "bf16", "")
    assert result.right, result
    assert result.worst > 0.1


def test_one_wrong_entry_of_2048_in_one_row_is_seen(given: tuple[Any, Any, Any]) -> None:
    q, rows, valid = given
    other = valid.clone()
    other[0, 3] = ~other[0, 3]
    assert not gate.judge(torch, CASE, attend(q, rows, other).out, attend(*given), "bf16", "").right


def test_probabilities_in_e4m3_are_within_its_bounds_and_not_within_those_of_bf16(
    given: tuple[Any, Any, Any],
) -> None:
    q, rows, valid = given
    logits = torch.einsum("shw,skw->shk", q.float(), rows.float()) * 512**-0.5
    weights = torch.exp(logits.masked_fill(~valid.unsqueeze(1), -torch.inf) - logits.amax(-1, keepdim=True))
    coarse = (weights * 448).clamp(max=448).to(torch.float8_e4m3fn).float() / 448
    out = torch.einsum("shk,skv->shv", coarse / weights.sum(-1, keepdim=True), rows.float())
    ref = attend(*given)
    assert gate.judge(torch, CASE, out, ref, "e4m3", "").right
    assert not gate.judge(torch, CASE, out, ref, "bf16", "").right


def test_what_is_not_finite_is_wrong(given: tuple[Any, Any, Any]) -> None:
    ref = attend(*given)
    out = ref.out.clone()
    out[2, 0, 0] = torch.nan
    assert "not finite" in gate.judge(torch, CASE, out, ref, "bf16", "").problem


def test_empty_row_is_zero_in_the_reference(given: tuple[Any, Any, Any]) -> None:
    q, rows, valid = given
    empty = valid.clone()
    empty[4] = False
    assert not attend(q, rows, empty).out[4].any()
