"""Does GB10 (12.1) get the same DeepGEMM settings as RTX Blackwell (12.0)?"""

from types import SimpleNamespace

from builder.probe.devices import BLACKWELL, GB10, HOPPER, RTX_BLACKWELL, cuda_device
from builder.probe.harness import Answer, Program, Tree, defect, fixed, locate, unknown

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


def _settings(tree: Tree, path: str, capability: tuple[int, int], installed: str) -> tuple[bool, ...]:
    program = Program(tree, cuda_device(capability) | {"deep_gemm": DEEP_GEMM[installed]})
    module = program.module(path)
    return tuple(bool(getattr(module, flag)) for flag in FLAGS)


def _shown(settings: tuple[bool, ...]) -> str:
    return ", ".join(f"{flag}={value}" for flag, value in zip(FLAGS, settings, strict=True))


def probe(tree: Tree) -> Answer:
    path = locate(tree, HINTS, b"DEEPGEMM_SCALE_UE8M0", "python/sglang/srt/")
    if path is None:
        return unknown("DeepGEMM's settings were not found: nothing has DEEPGEMM_SCALE_UE8M0")
    hopper, blackwell = (_settings(tree, path, gpu, "installed") for gpu in (HOPPER, BLACKWELL))
    if hopper != (True, False, False, True) or blackwell != (True, True, True, False):
        return unknown(f"9.0 and 10.0 are not as known: {_shown(hopper)}; {_shown(blackwell)}")
    if _settings(tree, path, RTX_BLACKWELL, "installed")[FLAGS.index("DEEPGEMM_BLACKWELL")]:
        return unknown("12.0 is taken for a datacenter Blackwell with TMEM")
    differing = []
    for installed in DEEP_GEMM:
        rtx, gb10 = (_settings(tree, path, gpu, installed) for gpu in (RTX_BLACKWELL, GB10))
        pairs = zip(FLAGS, rtx, gb10, strict=True)
        differing += [
            f"{flag} {a} on 12.0, {b} on 12.1 (DeepGEMM {installed})" for flag, a, b in pairs if a != b
        ]
    if differing:
        return defect("; ".join(differing))
    both = _shown(_settings(tree, path, GB10, "installed"))
    return fixed(f"12.1 is as 12.0 with DeepGEMM {', '.join(DEEP_GEMM)}; installed: {both}")
