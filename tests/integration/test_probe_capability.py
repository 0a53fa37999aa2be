"""Capability guards on SM12x: what each probe says of releases and patches; its lists lie beside it."""

from __future__ import annotations

import pytest

from builder.probe.run import Prober
from tests.integration.sources import WheelTree, changed, patched, said

SRT = "python/sglang/srt/"
CONFIGURER = SRT + "layers/deep_gemm_wrapper/configurer.py"
LOADER = SRT + "model_loader/utils.py"

DEEP_GEMM = "sm12x-deep-gemm-capability"
REQUANT = "sm12x-ue8m0-requant"
DSA = "sm12x-dsa-defaults"


@pytest.mark.parametrize(
    ("name", "version", "state"),
    [
        (DEEP_GEMM, "0.5.17", "defect"),
        (DEEP_GEMM, "0.5.20", "defect"),
        (DEEP_GEMM, "0.5.23", "fixed"),
        (REQUANT, "0.5.17", "absent"),
        (REQUANT, "0.5.20", "defect"),
        (REQUANT, "0.5.23", "defect"),
        (DSA, "0.5.17", "defect"),
        (DSA, "0.5.20", "defect"),
        (DSA, "0.5.23", "defect"),
    ],
)
def test_every_release_gets_an_answer(
    prober: Prober, release: dict[str, WheelTree], name: str, version: str, state: str
) -> None:
    answer = said(prober, name, release[version])
    assert answer.state == state, answer


@pytest.mark.parametrize(
    "patch", [f"v0.5.17/{DEEP_GEMM}", *(f"v0.5.20/{n}" for n in (DEEP_GEMM, REQUANT, DSA))]
)
def test_patch_alone_flips_its_own_probe_and_no_other(
    prober: Prober, release: dict[str, WheelTree], patch: str
) -> None:
    pristine = release[patch.split("/")[0].removeprefix("v")]
    tree = patched(pristine, patch)
    for name in (DEEP_GEMM, REQUANT, DSA):
        answer = said(prober, name, tree)
        before = said(prober, name, pristine)
        assert answer.state == ("fixed" if patch.endswith(name) else before.state), (name, answer)


def test_fp8_cache_that_was_asked_for_runs_on_tilelang_with_its_patch(
    prober: Prober, release: dict[str, WheelTree]
) -> None:
    needed = ("v0.5.20/tilelang-fp8-partial-nope", "v0.5.20/tilelang-fp8-kv-cuda")
    alone = said(prober, DSA, patched(release["0.5.20"], f"v0.5.20/{DSA}"))
    both = said(prober, DSA, patched(release["0.5.20"], *needed, f"v0.5.20/{DSA}"))
    assert (alone.state, both.state) == ("fixed", "fixed")
    assert "refused" in alone.evidence, alone
    assert "0 refused" in both.evidence, both


def test_defect_in_other_words_is_not_called_absent(prober: Prober, release: dict[str, WheelTree]) -> None:
    tree = release["0.5.20"]
    annotated = changed(tree, CONFIGURER, {"DEEPGEMM_SCALE_UE8M0 = ": "DEEPGEMM_SCALE_UE8M0: bool = "})
    assert said(prober, DEEP_GEMM, annotated).state == "defect"
    unheard_of = changed(
        tree, LOADER, {"def should_deepgemm_weight_requant_ue8m0(": "def wants_packed_scales("}
    )
    assert said(prober, REQUANT, unheard_of).state == "unknown"
