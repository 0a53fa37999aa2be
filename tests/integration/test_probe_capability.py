"""Capability guards on SM12x: each probe sees its defect, its fix, half a fix, and a fix said otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builder.probe.harness import Answer, Tree
from builder.probe.run import Prober
from tests.integration.sources import PATCHES, WheelTree, changed, patched, release_tree

SRT = "python/sglang/srt/"
CONFIGURER = SRT + "layers/deep_gemm_wrapper/configurer.py"
LOADER = SRT + "model_loader/utils.py"
FP8 = SRT + "layers/quantization/fp8_utils.py"
OVERRIDES = SRT + "arg_groups/overrides.py"
KPOOL = SRT + "layers/attention/dsa/dsa_backend_kpool.py"

DEEP_GEMM = "sm12x-deep-gemm-capability"
REQUANT = "sm12x-ue8m0-requant"
DSA = "sm12x-dsa-defaults"


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    with Prober() as prober:
        yield prober


@pytest.fixture(scope="module")
def release() -> dict[str, WheelTree]:
    return {version: release_tree(version) for version in ("0.5.17", "0.5.20", "0.5.23")}


def said(prober: Prober, name: str, tree: Tree) -> Answer:
    return prober.ask(PATCHES / "probes" / f"{name}.py", tree)


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


# What breaks a fix: (probe, file of the patched v0.5.20 tree, what to replace by what).
GUARD = "    if get_device_sm() in (120, 121) and not grouped:\n        return False\n"
ARM = "    elif get_platform().is_sm120:\n"
DECODE = '            declared["dsa_decode_backend"] = "tilelang"'
BROKEN = {
    "API probe reverted": (DEEP_GEMM, CONFIGURER, {"if sm_version in _SM12X:": "if sm_version == 120:"}),
    "scale format reverted": (DEEP_GEMM, CONFIGURER, {"get_device_sm() in _SM12X": "get_device_sm() == 120"}),
    "GB10 left out of the set": (DEEP_GEMM, CONFIGURER, {"_SM12X = (120, 121)": "_SM12X = (120,)"}),
    "SM12x taken for SM100": (
        DEEP_GEMM,
        CONFIGURER,
        {
            "DEEPGEMM_BLACKWELL = ENABLE_JIT_DEEPGEMM and get_platform().is_sm100": (
                "DEEPGEMM_BLACKWELL = ENABLE_JIT_DEEPGEMM and get_platform().is_blackwell"
            )
        },
    ),
    "requantization guard reverted": (
        REQUANT,
        LOADER,
        {"if get_device_sm() in (120, 121) and not grouped:": "if get_device_sm() == 120 and not grouped:"},
    ),
    "grouped weights declined too": (
        REQUANT,
        LOADER,
        {"in (120, 121) and not grouped:": "in (120, 121):"},
    ),
    "dense weights said to be grouped": (REQUANT, LOADER, {"and not grouped:": "and grouped:"}),
    "nobody says that weights are grouped": (
        REQUANT,
        FP8,
        {"            grouped=weight.ndim == 3,\n": ""},
    ),
    "guard after the answer": (
        REQUANT,
        LOADER,
        {
            GUARD: "",
            "        return False\n    return True\n\n\ndef should_async_load": (
                f"        return False\n    return True\n{GUARD}\n\ndef should_async_load"
            ),
        },
    ),
    "fp8 by default again": (
        DSA,
        OVERRIDES,
        {"            default_fp8 &= hf_config": "            default_fp8 |= hf_config"},
    ),
    "decode alone still on trtllm": (DSA, OVERRIDES, {DECODE: DECODE.replace("tilelang", "trtllm")}),
    "SM100 moved too": (DSA, OVERRIDES, {ARM: ARM.replace("is_sm120", "is_blackwell")}),
    "RTX Blackwell alone": (
        DSA,
        OVERRIDES,
        {ARM: "    elif torch.cuda.get_device_capability() == (12, 0):\n"},
    ),
    "fp8 cache still on trtllm": (
        DSA,
        OVERRIDES,
        {ARM: ARM.replace("elif ", 'elif kv_cache_dtype != "fp8_e4m3" and ')},
    ),
    "kpool tail reverted": (DSA, KPOOL, {"if self.device_sm_major == 12:": "if self.device_sm_major == 11:"}),
    "kpool tail of a packed cache read by TileLang": (
        DSA,
        KPOOL,
        {'return dsa_impl if self.dsa_kv_cache_store_fp8 else "tilelang"': 'return "tilelang"'},
    ),
}


@pytest.mark.parametrize("mutation", BROKEN)
def test_broken_fix_is_not_called_fixed(prober: Prober, release: dict[str, WheelTree], mutation: str) -> None:
    name, path, edits = BROKEN[mutation]
    answer = said(prober, name, changed(patched(release["0.5.20"], f"v0.5.20/{name}"), path, edits))
    assert answer.state in ("defect", "unknown"), answer


# The same fix in other words.
REWRITTEN = {
    "set renamed": (
        DEEP_GEMM,
        CONFIGURER,
        {"_SM12X = (120, 121)": "_CONSUMER = (120, 121)\n_SM12X = _CONSUMER"},
    ),
    "family by division": (DEEP_GEMM, CONFIGURER, {"if sm_version in _SM12X:": "if sm_version // 10 == 12:"}),
    "scale format in a function": (
        DEEP_GEMM,
        CONFIGURER,
        {
            "ENABLE_JIT_DEEPGEMM = _compute": (
                "def _packed():\n    return get_device_sm() in _SM12X\n\n\nENABLE_JIT_DEEPGEMM = _compute"
            ),
            "get_platform().is_sm100 or get_device_sm() in _SM12X": "get_platform().is_sm100 or _packed()",
        },
    ),
    "guard by division": (REQUANT, LOADER, {"get_device_sm() in (120, 121)": "get_device_sm() // 10 == 12"}),
    "guard nested": (
        REQUANT,
        LOADER,
        {
            GUARD: (
                "    on_sm12x = get_device_sm() in (120, 121)\n"
                "    if not grouped:\n        if on_sm12x:\n            return False\n"
            )
        },
    ),
    "arm by capability": (DSA, OVERRIDES, {ARM: "    elif major == 12:\n"}),
    "default in one expression": (
        DSA,
        OVERRIDES,
        {
            "        if get_platform().is_sm120:\n            default_fp8 &= hf_config": (
                "        default_fp8 = default_fp8 and (not get_platform().is_sm120 or hf_config"
            ),
            '.architectures[0] == "GlmMoeDsaForCausalLM"\n        kv_cache_dtype = "fp8': (
                '.architectures[0] == "GlmMoeDsaForCausalLM")\n        kv_cache_dtype = "fp8'
            ),
        },
    ),
    "kpool redirection renamed": (
        DSA,
        KPOOL,
        {"    def _resolve_kpool_tail_backend(": "    def _tail_backend("},
    ),
}


@pytest.mark.parametrize("refactoring", REWRITTEN)
def test_fix_in_other_words_is_still_fixed(
    prober: Prober, release: dict[str, WheelTree], refactoring: str
) -> None:
    name, path, edits = REWRITTEN[refactoring]
    answer = said(prober, name, changed(patched(release["0.5.20"], f"v0.5.20/{name}"), path, edits))
    assert answer.state == "fixed", answer


TEST = "    if sm_version in (120, 121):\n"


@pytest.mark.parametrize(
    ("test", "states"),
    [
        ("    if sm_version == 120:\n", ("defect",)),
        ("    if sm_version in (121,):\n", ("defect",)),
        (f"{TEST}        pass\n    if sm_version == 120:\n", ("defect",)),
        ("    if sm_version >= 100:\n", ("unknown",)),
        ("    if sm_version // 10 == 12:\n", ("fixed",)),
        ("    if _is_cuda and sm_version in {120, 121}:\n", ("fixed",)),
    ],
)
def test_v0_5_17_disables_deep_gemm_on_both(
    prober: Prober, release: dict[str, WheelTree], test: str, states: tuple[str, ...]
) -> None:
    tree = changed(patched(release["0.5.17"], f"v0.5.17/{DEEP_GEMM}"), CONFIGURER, {TEST: test})
    assert said(prober, DEEP_GEMM, tree).state in states
