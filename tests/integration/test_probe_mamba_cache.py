"""``mamba-cache-for-requests``: the defect, the patch, and the same arithmetic in the plan."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from builder.launch.arguments import Arguments
from builder.launch.memory import MemoryPlan, Sizes, plan_memory
from builder.launch.state_pool import StatePool, state_budget
from builder.probe.run import Prober
from builder.probe.trees import MappingTree
from tests.integration.sources import PATCHES, patched, release_tree

PROBE = PATCHES / "probes" / "mamba-cache-for-requests.py"
SIZING = "python/sglang/srt/mem_cache/kv_cache_configurator.py"


@pytest.fixture(scope="module")
def repaired() -> MappingTree:
    return patched(release_tree("0.5.20"), "v0.5.20/mamba-cache-for-requests")


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20", "0.5.23"])
def test_every_release_serves_fewer_than_asked(prober: Prober, version: str) -> None:
    answer = prober.ask(PROBE, release_tree(version))
    assert answer.state == "defect"
    assert "8 asked, 4 served of 16 GiB" in answer.evidence


def test_patch_serves_what_was_asked(prober: Prober, repaired: MappingTree) -> None:
    answer = prober.ask(PROBE, repaired)
    assert answer.state == "fixed", answer
    assert "8 asked, 8 served of 16 GiB (41 slots)" in answer.evidence


def test_state_cache_that_is_not_found_is_unknown(prober: Prober) -> None:
    assert prober.ask(PROBE, MappingTree({"python/sglang/srt/x.py": b"pass\n"})).state == "unknown"


@pytest.fixture(scope="module")
def sizing() -> ModuleType:
    """The probe as a module, to run upstream's sizing with figures of the test's own."""
    spec = importlib.util.spec_from_file_location("mamba_probe", PROBE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20", "0.5.23"])
@pytest.mark.parametrize(
    ("memory", "state"), [(16.0, 64 << 20), (40.0, 71 << 20), (12.5, 280 << 20), (9.0, 150 << 20)]
)
def test_calculator_agrees_with_the_real_sizing(
    sizing: ModuleType, version: str, memory: float, state: int
) -> None:
    case = sizing.Case(memory, None, state)
    real = sizing.Sizer(release_tree(version), SIZING).size(case)
    pool = StatePool(state, sizing.SLOTS, case.drafts)
    slots = pool.slots_within(state_budget(int(memory * (1 << 30))))
    assert real.slots == slots
    assert real.served == pool.requests_of(slots)


@pytest.mark.parametrize("release", ["v0.5.20", "v0.5.23"])
def test_plan_agrees_with_the_patched_sizing(sizing: ModuleType, release: str) -> None:
    tree = patched(release_tree(release.removeprefix("v")), f"{release}/mamba-cache-for-requests")
    sizer = sizing.Sizer(tree, SIZING)
    for case in (*sizing.GROWS, *sizing.STAYS):
        real, planned = sizer.size(case), _planned(sizing, case)
        assert (real.slots, real.served) == (planned.slots, planned.served), str(case)
        assert real.left == pytest.approx(planned.attention / (1 << 30), abs=0.001), str(case)
        assert bool(real.warnings) == bool(planned.warning) or case.asked is None, str(case)


def _planned(sizing: ModuleType, case: Any) -> MemoryPlan:
    """The plan of a server of the probe's, with a model's own ratio given as an argument."""
    given = {
        "--mem-fraction-static": "0.5",
        "--context-length": sizing.CONTEXT,
        "--max-running-requests": case.asked or (sizing.RESOLVER_DEFAULT if case.drafts else None),
        "--speculative-num-draft-tokens": case.drafts or None,
        "--max-mamba-cache-size": case.slots,
        "--mamba-full-memory-ratio": case.ratio_in_effect
        if case.ratio_in_effect != sizing.RATIO or case.ratio or case.asked is None
        else None,
        "--dp-size": case.workers,
    }
    values = {name: (str(value),) for name, value in given.items() if value is not None}
    arguments = Arguments(values | {"--enable-dp-attention": ()})
    pools = int(case.memory * (1 << 30))
    return plan_memory(Sizes(2 * pools, 0, case.token, case.state), arguments, pool_grows=True)
