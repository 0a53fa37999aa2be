"""TileLang's sparse attention: the probes tell releases apart. Their mutants and variants lie beside them."""

from __future__ import annotations

import pytest

from builder.probe.run import Prober
from builder.probe.trees import MappingTree
from tests.integration.sources import WheelTree, patched, release_tree, said

SMEM, NOPE, FP8 = "dsa-tilelang-smem", "tilelang-fp8-partial-nope", "tilelang-fp8-kv-cuda"
NAMES = (SMEM, NOPE, FP8)


@pytest.fixture(scope="module")
def pristine() -> WheelTree:
    return release_tree("0.5.20")


@pytest.fixture(scope="module")
def repaired(pristine: WheelTree) -> dict[str, MappingTree]:
    return {name: patched(pristine, f"v0.5.20/{name}") for name in NAMES}


@pytest.mark.parametrize(
    ("version", "smem", "nope", "fp8"),
    [
        ("0.5.17", "defect", "defect", "defect"),
        ("0.5.20", "defect", "defect", "defect"),
        ("0.5.23", "defect", "fixed", "defect"),  # its casts make NaN beyond 464, with torch before 2.13
    ],
)
def test_releases_are_told_apart(prober: Prober, version: str, smem: str, nope: str, fp8: str) -> None:
    tree = release_tree(version)
    answers = {name: said(prober, name, tree) for name in NAMES}
    assert {name: answer.state for name, answer in answers.items()} == {SMEM: smem, NOPE: nope, FP8: fp8}, (
        answers
    )


def test_each_patch_flips_its_own_probe_alone(prober: Prober, repaired: dict[str, MappingTree]) -> None:
    for patch, tree in repaired.items():
        states = {name: said(prober, name, tree).state for name in NAMES}
        assert states == {name: "fixed" if name == patch else "defect" for name in NAMES}, patch


def test_the_figures_are_the_ones_of_the_compiler(
    prober: Prober, pristine: WheelTree, repaired: dict[str, MappingTree]
) -> None:
    before = said(prober, SMEM, pristine).evidence
    for figure in ("151,552 B at 16 heads", "169,984 B at 24, 32 heads", "206,848 B at 64, 128 heads"):
        assert figure in before
    after = said(prober, SMEM, repaired[SMEM]).evidence
    for figure in (
        "84,992 B at 16, 24, 32, 64, 128 heads (NoPE)",
        "95,232 B at 16, 24, 32, 64, 128 heads (RoPE)",
    ):
        assert figure in after


def test_kernels_that_are_not_found_are_unknown(prober: Prober) -> None:
    tree = MappingTree({"python/sglang/version.py": b"__version__ = '0.5.20'\n"})
    assert [said(prober, name, tree).state for name in NAMES] == ["unknown"] * 3
