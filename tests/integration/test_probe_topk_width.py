"""Index tables for FlashInfer's SM12x kernels: the probe knows the fix, half of it, and it in other words."""

from __future__ import annotations

import pytest

from builder.probe.harness import Answer, Tree
from builder.probe.run import Prober
from builder.probe.trees import MappingTree
from tests.integration.sources import PATCHES, WheelTree, patched

NAME = "flashmla-topk-width"
DISPATCH = "python/sglang/kernels/ops/attention/flash_mla_sm120.py"
METADATA = "python/sglang.dist-info/METADATA"
BUILDER = "python/sglang/kernels/ops/speculative/dspark/dspark_attn_metadata.py"


@pytest.fixture(scope="module")
def repaired(release: dict[str, WheelTree]) -> MappingTree:
    return patched(release["0.5.17"], f"v0.5.17/{NAME}")


def said(prober: Prober, tree: Tree) -> Answer:
    return prober.ask(PATCHES / "probes" / f"{NAME}.py", tree)


def pinning(tree: Tree, old: str, new: str) -> MappingTree:
    """``tree`` with another FlashInfer in its metadata."""
    data = tree.read(METADATA)
    pin = f"flashinfer_python[cu13]=={old}".encode()
    assert data.count(pin) == 1
    return MappingTree({METADATA: data.replace(pin, f"flashinfer_python[cu13]=={new}".encode())}, tree)


@pytest.mark.parametrize(
    ("version", "state", "flashinfer"),
    [("0.5.17", "defect", "0.6.15.post1"), ("0.5.20", "fixed", "0.6.18"), ("0.5.23", "fixed", "0.7.2")],
)
def test_answer_hangs_on_the_pinned_flashinfer(
    prober: Prober, release: dict[str, WheelTree], version: str, state: str, flashinfer: str
) -> None:
    answer = said(prober, release[version])
    assert answer.state == state, answer
    assert answer.pins == ("flashinfer-python",)
    assert flashinfer in answer.evidence


def test_same_source_with_another_pin_gets_another_answer(
    prober: Prober, release: dict[str, WheelTree]
) -> None:
    assert said(prober, pinning(release["0.5.17"], "0.6.15.post1", "0.6.18")).state == "fixed"
    assert said(prober, pinning(release["0.5.20"], "0.6.18", "0.6.17")).state == "defect"


def test_table_stays_as_it_is_where_flashinfer_says_that_it_has_a_kernel(
    prober: Prober, repaired: MappingTree
) -> None:
    assert "192 -> 512" in said(prober, repaired).evidence
    assert "192 -> 192" in said(prober, pinning(repaired, "0.6.15.post1", "0.7.2")).evidence


def test_fix_where_the_table_is_made_counts_too(prober: Prober, release: dict[str, WheelTree]) -> None:
    tree = release["0.5.17"]
    text = tree.read(BUILDER)
    width = b"target_width = ceil_align(swa_window + block_size, page_index_aligned_size)"
    assert text.count(width) == 2
    wider = MappingTree({BUILDER: text.replace(width, b"target_width = 512")}, tree)
    assert said(prober, wider).state == "fixed"
    narrow = MappingTree({BUILDER: text.replace(width, b"target_width = 320")}, tree)
    assert said(prober, narrow).state == "defect"


def test_unknown_way_to_the_kernel_is_not_called_absent(
    prober: Prober, release: dict[str, WheelTree]
) -> None:
    text = release["0.5.17"].read(DISPATCH).replace(b"_sparse_mla_sm120_paged_attention", b"sparse_attention")
    assert said(prober, MappingTree({DISPATCH: text}, release["0.5.17"])).state == "unknown"


def test_patch_leaves_the_other_backends_alone(release: dict[str, WheelTree], repaired: MappingTree) -> None:
    before, after = (tree.read(DISPATCH).decode() for tree in (release["0.5.17"], repaired))
    entry = "def flash_mla_with_kvcache_sm120("
    assert before[before.index(entry) : before.index("def _flash_mla_flashinfer(")].rstrip() in after
