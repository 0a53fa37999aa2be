"""``mamba-cache-for-requests``: the defect, the patch, ways to break it, and the same in other words."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from builder.probe.run import Prober
from builder.probe.trees import MappingTree
from builder.statepool import StatePool, state_budget
from tests.integration.sources import PATCHES, changed, patched, release_tree

PROBE = PATCHES / "probes" / "mamba-cache-for-requests.py"
SIZING = "python/sglang/srt/mem_cache/kv_cache_configurator.py"


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    with Prober() as prober:
        yield prober


@pytest.fixture(scope="module")
def mended() -> MappingTree:
    return patched(release_tree("0.5.20"), "v0.5.20/mamba-cache-for-requests")


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20", "0.5.23"])
def test_every_release_serves_fewer_than_asked(prober: Prober, version: str) -> None:
    answer = prober.ask(PROBE, release_tree(version))
    assert answer.state == "defect"
    assert "8 asked, 4 served of 16 GiB" in answer.evidence


def test_patch_serves_what_was_asked(prober: Prober, mended: MappingTree) -> None:
    answer = prober.ask(PROBE, mended)
    assert answer.state == "fixed", answer
    assert "8 asked, 8 served of 16 GiB (41 slots)" in answer.evidence


GROWTH = "                slots = max(slots, min(self._mamba_slots_for(asked), most))\n"
ASKED = "        requested = self.server_args.max_running_requests\n"
BROKEN = {
    "reverted": {GROWTH: ""},
    "slots of one request each": {
        "return num_reqs * self._calculate_mamba_ratio() + 1": "return num_reqs + 1"
    },
    "grows when nothing was asked": {ASKED: "        requested = get_schedule().max_running_requests\n"},
    "takes everything from attention": {
        "min(self._mamba_slots_for(asked), most)": "self._mamba_slots_for(asked)"
    },
    "the bound is the ratio": {GROWTH: GROWTH.replace("max(slots, ", "min(slots, ")},
    "intermediate states are not paid for": {
        "                intermediate_size = per_req * (capped_reqs + 1) * D\n": (
            "                intermediate_size = 0\n"
        )
    },
    "a warning instead of an error": {
        "                    logger.error(\n": "                    logger.warning(\n"
    },
    "an error without figures": {
        '                        "%s --max-running-requests asks for %d per dp worker, which "\n'
        '                        "takes %d slots and %.2f GB more. Free memory with a higher "\n'
        '                        "--mem-fraction-static, take it from the attention KV cache "\n'
        '                        "with --max-mamba-cache-size %d, or need less with "\n'
        '                        "--mamba-ssm-dtype bfloat16 or fewer draft tokens.",\n'
        "                        cap,\n"
        "                        asked,\n"
        "                        slots,\n"
        "                        missing / (1 << 30),\n"
        "                        slots * self.ps.attn_dp_size,\n": (
            '                        "too many requests are asked for",\n'
        )
    },
    "moved behind the decision": {
        GROWTH: "",
        "        # Validate: max_mamba_cache_size must be positive": (
            "        slots = self._mamba_slots_for(self._requested_reqs_per_worker() or 1)\n"
            "        # Validate: max_mamba_cache_size must be positive"
        ),
    },
}


@pytest.mark.parametrize("mutation", BROKEN)
def test_broken_patch_is_not_called_fixed(prober: Prober, mended: MappingTree, mutation: str) -> None:
    answer = prober.ask(PROBE, changed(mended, SIZING, BROKEN[mutation]))
    assert answer.state in ("defect", "unknown"), answer


REWRITTEN = {
    "share written out": {
        "* (1 - MAMBA_CACHE_MIN_ATTENTION_KV_SHARE)": "* 0.75",
    },
    "growth by branches": {
        GROWTH: (
            "                wanted = self._mamba_slots_for(asked)\n"
            "                if wanted > most:\n"
            "                    wanted = most\n"
            "                if wanted > slots:\n"
            "                    slots = wanted\n"
        )
    },
    "asked without a spare slot": {
        "num_reqs * self._calculate_mamba_ratio() + 1": "num_reqs * self._calculate_mamba_ratio()"
    },
    "joint solve in integers": {
        "                    return int(\n"
        "                        (budget_bytes - per_req * (1 + D))\n"
        "                        // (per_req * (1 + D / ratio))\n"
        "                    )\n": (
            "                    left = int(budget_bytes) - per_req * (1 + D)\n"
            "                    return left * ratio // (per_req * (ratio + D))\n"
        )
    },
}


@pytest.mark.parametrize("refactoring", REWRITTEN)
def test_the_same_mend_in_other_words_is_still_fixed(
    prober: Prober, mended: MappingTree, refactoring: str
) -> None:
    answer = prober.ask(PROBE, changed(mended, SIZING, REWRITTEN[refactoring]))
    assert answer.state == "fixed", answer


def test_renamed_helpers_are_still_fixed(prober: Prober, mended: MappingTree) -> None:
    text = mended.read(SIZING)
    for old, new in ((b"_requested_reqs_per_worker", b"_asked"), (b"_mamba_slots_for", b"_slots_needed")):
        assert text.count(old) > 1
        text = text.replace(old, new)
    assert prober.ask(PROBE, MappingTree({SIZING: text}, mended)).state == "fixed"


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
    case = sizing.Case(memory, state, None)
    real = sizing._size(release_tree(version), SIZING, case)
    pool = StatePool(state, sizing.SLOTS, sizing.DRAFT_TOKENS)
    slots = pool.slots_within(state_budget(int(memory * (1 << 30))))
    assert real.slots == slots
    assert real.served == pool.requests_of(slots)
