"""Does GB10 (12.1) get the same DeepGEMM settings as RTX Blackwell (12.0), and can SM12x run with them?"""

from types import SimpleNamespace

from builder.probe.devices import BLACKWELL, GB10, HOPPER, SM12X, cuda_device, named
from builder.probe.harness import Answer, Program, Tree, defect, environment, fixed, locate, unknown

HINTS = ("python/sglang/srt/layers/deep_gemm_wrapper/configurer.py",)
FLAGS = (
    "ENABLE_JIT_DEEPGEMM",
    "DEEPGEMM_BLACKWELL",
    "DEEPGEMM_SCALE_UE8M0",
    "DEEPGEMM_NEED_TMA_ALIGNED_SCALES",
)


def _entry_points(*names: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: lambda *_, **__: None for name in names})


OLD = ("fp8_gemm_nt", "get_num_sms")  # what DeepGEMM had before its SM12x kernels
DEEP_GEMM: dict[str, object] = {
    "installed": _entry_points(
        *OLD,
        "fp8_einsum",
        "m_grouped_fp8_fp4_gemm_nt_contiguous",
        "transform_sf_into_required_layout",
    ),
    "without SM12x kernels": _entry_points(*OLD),
    "not installed": None,
}


OFF = (False, False, False, True)
FP32_SCALES = (True, False, False, True)  # Hopper's
PACKED_SCALES = (True, False, True, False)  # what DeepGEMM's SM12x kernels read
DATACENTER = (True, True, True, False)

RUNNER = "python/sglang/srt/layers/moe/moe_runner/deep_gemm"  # runs DeepGEMM's SM12x kernels from v0.5.20 on


def _settings(
    tree: Tree, path: str, capability: tuple[int, int], installed: str, **variables: str
) -> tuple[bool, ...]:
    program = Program(tree, cuda_device(capability) | {"deep_gemm": DEEP_GEMM[installed]})
    module = program.module(path)
    with environment(**variables):
        return tuple(bool(getattr(module, flag)) for flag in FLAGS)


def _shown(settings: tuple[bool, ...]) -> str:
    return ", ".join(f"{flag}={value}" for flag, value in zip(FLAGS, settings, strict=True))


def _others_moved(tree: Tree, path: str) -> str:
    """What 9.0 or 10.0 gets that it has never got; empty when nothing."""
    for gpu, known in ((HOPPER, FP32_SCALES), (BLACKWELL, DATACENTER)):
        for installed in DEEP_GEMM:
            expected = OFF if DEEP_GEMM[installed] is None else known
            got = _settings(tree, path, gpu, installed)
            if got != expected:
                return f"{named(gpu)} is not as known (DeepGEMM {installed}): {_shown(got)}"
    return ""


def probe(tree: Tree) -> Answer:
    path = locate(tree, HINTS, b"DEEPGEMM_SCALE_UE8M0", "python/sglang/srt/")
    if path is None:
        return unknown("DeepGEMM's settings were not found: nothing has DEEPGEMM_SCALE_UE8M0")
    moved = _others_moved(tree, path)
    if moved:
        return unknown(moved)
    wrong = []
    for installed in DEEP_GEMM:
        rtx, gb10 = (_settings(tree, path, gpu, installed) for gpu in SM12X)
        pairs = zip(FLAGS, rtx, gb10, strict=True)
        wrong += [f"{flag} {a} on 12.0, {b} on 12.1 (DeepGEMM {installed})" for flag, a, b in pairs if a != b]
        right = (OFF, PACKED_SCALES) if installed == "installed" else (OFF,)
        wrong += [
            f"{named(gpu)}: {_shown(got)} (DeepGEMM {installed})"
            for gpu, got in zip(SM12X, (rtx, gb10), strict=True)
            if got not in right
        ]
    for gpu in SM12X:
        if _settings(tree, path, gpu, "installed", SGLANG_ENABLE_JIT_DEEPGEMM="0") != OFF:
            wrong.append(f"{named(gpu)}: SGLANG_ENABLE_JIT_DEEPGEMM=0 does not switch it off")
    if wrong:
        return defect("; ".join(wrong))
    both = _settings(tree, path, GB10, "installed")
    if both == OFF and tree.grep(b"sm120", RUNNER):
        return unknown("off on 12.0 and 12.1, although this tree has a runner for DeepGEMM's SM12x kernels")
    return fixed(f"12.1 is as 12.0 with DeepGEMM {', '.join(DEEP_GEMM)}; installed: {_shown(both)}")
