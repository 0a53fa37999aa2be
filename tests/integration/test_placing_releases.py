"""Equal blocks of real, adjacent releases: a one-line change lands in its own definition, or is refused.

Each case was found by looking for seven lines of a release that stand in the next one where they stood, or at
one place only, and there in another definition: tables, sibling classes, kernels in versions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.patch.diff import FileDiff, parse_diff
from builder.patch.headings import Headings
from builder.patch.hunks import place_hunks, places_of, split_lines
from builder.patch.patch import parse_patch
from builder.source.files import SourceFile
from tests.integration.sources import PATCHES, release_tree
from tests.projects.trees import shared_judge

# Release, the next one, a file below python/sglang/srt/, the line that is changed, and what it lies in.
SETTLED = [
    ("0.5.17", "0.5.18", "managers/schedule_batch.py", 233, "FINISHED_MATCHED_REGEX"),
    ("0.5.18", "0.5.19", "parser/reasoning_parser.py", 1207, "Apertus2509Detector.__init__"),
    ("0.5.21", "0.5.22", "managers/io_struct.py", 1642, "BatchStrOutput"),
    ("0.5.16", "0.5.17", "layers/quantization/compressed_tensors/compressed_tensors.py", 1019,
     "CompressedTensorsFusedMoEMethod.__init__"),
    ("0.5.22", "0.5.23", "mem_cache/page_interleave_pool.py", 606, "PageInterleaveMLATokenToKVPool.__init__"),
    ("0.5.22", "0.5.23", "../kernels/ops/attention/dsa/tilelang_kernel.py", 286,
     "sparse_attention_fwd_kernel_v1"),
]  # fmt: skip
REWRITTEN = [
    ("0.5.21", "0.5.22", "models/qwen2.py", 288, "Qwen2DecoderLayer.forward"),
    ("0.5.21", "0.5.22", "mem_cache/unified_memory_pool.py", 561, "UnifiedMHATokenToKVPool.__init__"),
    ("0.5.22", "0.5.23", "models/llava.py", 609, "LlavaMistralForCausalLM.__init__"),
    ("0.5.22", "0.5.23", "models/nemotron_h.py", 432, "NemotronHMoEDecoderLayer.__init__"),
    ("0.5.22", "0.5.23", "lora/layers.py", 478, "ColumnParallelLinearWithLoRA.set_lora_info"),
    ("0.5.22", "0.5.23", "../kernels/ops/moe/fused_moe_triton_kernels.py", 426, "fused_moe_kernel"),
]
UNKNOWN = [
    ("0.5.17", "0.5.18", "entrypoints/engine.py", 577, "Engine.async_encode"),
    ("0.5.22", "0.5.23", "layers/rotary_embedding/base.py", 367, "RotaryEmbedding.forward_cpu"),
]


def cut(old: str, path: str, line: int) -> FileDiff:
    """git's diff of one changed line of a release."""
    before = SourceFile("100644", release_tree(old).read(path))
    lines = split_lines(before.data)
    lines[line - 1] = lines[line - 1].rstrip(b"\n") + b"  # changed\n"
    after = SourceFile("100644", b"".join(lines))
    judge = shared_judge()
    (diff,) = parse_diff(judge.diff(judge.tree({path: before}), judge.tree({path: after})), where="p")
    return diff


def full(path: str) -> str:
    return f"python/sglang/srt/{path}".replace("/srt/../", "/")


@pytest.mark.parametrize(("old", "new", "path", "line", "definition"), SETTLED)
def test_change_of_an_equal_block_lands_in_its_own_definition(
    old: str, new: str, path: str, line: int, definition: str
) -> None:
    data = release_tree(new).read(full(path))
    diff = cut(old, full(path), line)
    placed, problems = place_hunks(diff, SourceFile("100644", data))
    assert problems == []
    assert len(places_of(diff.hunks[0], split_lines(data))) > 1
    assert Headings(split_lines(data)).place(placed[0].landed + 2) == definition


@pytest.mark.parametrize(("old", "new", "path", "line", "definition"), REWRITTEN)
def test_change_of_a_block_that_only_a_sibling_still_has_is_a_conflict(
    old: str, new: str, path: str, line: int, definition: str
) -> None:
    data = release_tree(new).read(full(path))
    diff = cut(old, full(path), line)
    placed, (problem,) = place_hunks(diff, SourceFile("100644", data))
    assert (placed, problem.kind) == ([], "conflict")
    assert len(places_of(diff.hunks[0], split_lines(data))) == 1
    assert definition.partition(".")[0] in problem.expected


@pytest.mark.parametrize(("old", "new", "path", "line", "definition"), UNKNOWN)
def test_change_of_a_method_that_is_twice_in_its_class_is_refused_with_both_named(
    old: str, new: str, path: str, line: int, definition: str
) -> None:
    data = release_tree(new).read(full(path))
    placed, (problem,) = place_hunks(cut(old, full(path), line), SourceFile("100644", data))
    assert (placed, problem.kind) == ([], "ambiguous")
    assert definition in problem.found


@pytest.mark.parametrize("release", ["0.5.16", "0.5.18", "0.5.19", "0.5.21", "0.5.22", "0.5.23"])
def test_the_only_place_of_a_hunk_of_ours_is_never_refused_on_another_release(release: str) -> None:
    tree = release_tree(release)
    only = 0
    for path in sorted(PATCHES.glob("v*/*.patch")):
        for diff in parse_patch(path.stem, path.read_bytes()).files:
            if diff.old_path not in tree or diff.kind != "modify":
                continue
            source = SourceFile("100644", tree.read(diff.old_path))
            for hunk in diff.hunks:
                if len(places_of(hunk, split_lines(source.data))) == 1:
                    only += 1
                    assert place_hunks(replace(diff, hunks=(hunk,)), source)[1] == [], (path, hunk)
    assert only > 20
