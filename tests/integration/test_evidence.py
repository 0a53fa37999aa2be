"""Evidence from compiler and GPU: what is said where they are missing, and how results are judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evidence import compile as compiler
from evidence import gpu
from evidence.compile import CompileReport, Lowered
from evidence.gpu import Comparison, GpuReport
from evidence.worker import run_worker

from builder.errors import InvalidInput, OverlayError, ProbeFailed, UsageError
from builder.probe.harness import Tree
from builder.probe.trees import MappingTree
from tests.conftest import Overlay

KERNELS = "python/sglang/kernels/ops/attention/dsa/tilelang_kernel.py"
TREE = MappingTree({KERNELS: b"raise SystemExit('the tree was run')\n"})
REPORTS: tuple[Callable[[Tree], Any], ...] = (compiler.report, compiler.tile_map, gpu.report)


@pytest.fixture
def no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch is found, and its import fails as where it is not installed."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.usefixtures("no_torch")
def test_what_is_not_installed_is_named_with_what_installs_it(report: Callable[[Tree], Any]) -> None:
    with pytest.raises(UsageError) as caught:
        report(TREE)
    assert "torch cannot be imported" in caught.value.what
    assert "tilelang" in (caught.value.expected or "")
    assert "sglang-overlay[kernels]" in (caught.value.hint or "")


@pytest.mark.parametrize("report", REPORTS)
def test_tree_without_kernels_is_refused_before_anything_is_run(report: Callable[[Tree], Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        report(MappingTree({"python/sglang/version.py": b""}))
    assert KERNELS in (caught.value.expected or "")


def test_worker_that_crashes_is_not_a_result() -> None:
    with pytest.raises(ProbeFailed) as caught:
        run_worker("evidence.nothing_of_the_kind", {})
    assert "nothing_of_the_kind" in str(caught.value.details)


def test_worker_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(OverlayError, match="more than"):
        run_worker("slow", {}, timeout=1)


def lowered(shared: int | None, refusal: str = "") -> Lowered:
    tile = {"block_I": 64, "num_stages": 1, "threads": 128, "heads_per_block": 16}
    return Lowered(32, 0, "bf16", "sparse_attention_fwd_kernel_v1", tile, shared, {}, refusal)


def test_kernel_over_the_limit_or_without_a_figure_counts_as_over() -> None:
    kernels = (lowered(101_376), lowered(101_377), lowered(None, "Unsupported k_dim 0"))
    report = CompileReport("sm_121a", 101_376, {"tilelang": "0.1.12"}, kernels)
    assert report.over == kernels[1:]
    assert report.as_json()["over"] == 2
    text = report.markdown()
    assert "| 16 heads a block, 64/1/128 | 101,376 B | yes |" in text
    assert "| 101,377 B | no |" in text
    assert "| Unsupported k_dim 0 | no |" in text


def comparison(**changes: Any) -> dict[str, Any]:
    case = {"path": "bf16", "heads": 32, "topk": 192, "tail": 0, "shared": 101_376, "scale": 1.0}
    figures = {"tile": "16 heads", "worst": 0.6, "error": 1.6e-3, "bound": 3.8e-3, "unquantised": None}
    return {"case": case} | figures | {"problem": "", "right": True} | changes


def test_wrong_result_is_shown_and_counted() -> None:
    rows = [comparison(), comparison(right=False, problem="33 values are not finite")]
    results = tuple(Comparison.read(row) for row in rows)
    report = GpuReport("NVIDIA H200", (9, 0), 232_448, {"torch": "2.11"}, results, ())
    assert report.failed == results[1:]
    assert "1 of 2 within their bounds" in report.markdown()
    assert "**33 values are not finite**" in report.markdown()
    assert report.as_json()["failed"] == 1


@pytest.mark.parametrize("option", ["--compile", "--tile-map", "--gpu"])
@pytest.mark.usefixtures("no_torch")
def test_command_says_what_is_missing_and_exits_2(overlay: Overlay, tmp_path: Path, option: str) -> None:
    tree = tmp_path / "tree" / Path(KERNELS).parent
    tree.mkdir(parents=True)
    (tmp_path / "tree" / KERNELS).write_text("raise SystemExit('the tree was run')\n")
    command = overlay.with_environment(PYTHONPATH=str(tmp_path))
    run = command("probe", tmp_path / "tree", option).check(2)
    assert "torch cannot be imported" in run.err
    assert "sglang-overlay[kernels]" in run.err
