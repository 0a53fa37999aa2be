"""Which FP8 weights are requantized to UE8M0 scales on SM12x, where only the grouped MoE GEMM reads those?"""

from __future__ import annotations

from types import SimpleNamespace

from builder.probe.devices import BLACKWELL, SM12X, cuda_device, named
from builder.probe.harness import (
    Answer,
    CannotTell,
    Program,
    Tree,
    absent,
    call,
    defect,
    fixed,
    locate,
    unknown,
)

DECISION = ("python/sglang/srt/model_loader/utils.py",)
LOADING = ("python/sglang/srt/layers/quantization/fp8_utils.py",)
SETTINGS = "python/sglang/srt/layers/deep_gemm_wrapper/configurer.py"
PACKED_SCALES = f"{SETTINGS}:DEEPGEMM_SCALE_UE8M0"
BLOCK = [128, 128]
DEEP_GEMM = SimpleNamespace(
    fp8_einsum=print, m_grouped_fp8_fp4_gemm_nt_contiguous=print, transform_sf_into_required_layout=print
)


def _packed_scales(tree: Tree, gpu: tuple[int, int]) -> bool:
    """Whether DeepGEMM's packed scales can be on at all on this GPU, be it for 12.0's sake or its own."""
    stubs = cuda_device(gpu) | {"deep_gemm": DEEP_GEMM}
    return bool(Program(tree, stubs).module(SETTINGS).DEEPGEMM_SCALE_UE8M0)


def _with_packed_scales(tree: Tree, gpu: tuple[int, int], **more: object) -> Program:
    wrapper = SimpleNamespace(ENABLE_JIT_DEEPGEMM=True, DEEPGEMM_SCALE_UE8M0=True)
    return Program(tree, cuda_device(gpu) | {"deep_gemm_wrapper": wrapper, "torch.bfloat16": "bf16"} | more)


def _dense(tree: Tree, path: str, gpu: tuple[int, int]) -> bool:
    decide = _with_packed_scales(tree, gpu).module(path).should_deepgemm_weight_requant_ue8m0
    return bool(call(decide, weight_block_size=BLOCK, output_dtype="bf16", weight_shape=(512, 1024)))


def _grouped(tree: Tree, path: str, gpu: tuple[int, int]) -> bool:
    """Whether the loader requantizes the weights of eight experts for DeepGEMM's grouped GEMM."""
    done: list[object] = []
    program = _with_packed_scales(
        tree, gpu, requant_weight_ue8m0_inplace=lambda *args, **named: done.append(args)
    )
    module = program.module(path)
    call(
        module.requant_block_scale_ue8m0_for_deepgemm,
        weight=SimpleNamespace(ndim=3, shape=(8, 512, 1024), dim=lambda: 3),
        weight_scale=SimpleNamespace(ndim=3, shape=(8, 4, 8), format_ue8m0=False),
        weight_block_size=BLOCK,
        use_deepgemm_runner=True,
        output_dtype="bf16",
        weight_shape=(512, 1024),
        grouped_moe=True,
    )
    return bool(done)


def probe(tree: Tree) -> Answer:
    path = locate(tree, DECISION, b"def should_deepgemm_weight_requant_ue8m0")
    loader = locate(tree, LOADING, b"def requant_block_scale_ue8m0_for_deepgemm")
    if not any(_packed_scales(tree, gpu) for gpu in SM12X):
        return absent("no SM12x device is given DeepGEMM's packed scales here", PACKED_SCALES)
    if path is None or loader is None:
        raise CannotTell("nothing decides which weights are requantized for DeepGEMM, or does it")
    if not _dense(tree, path, BLACKWELL) or not _grouped(tree, loader, BLACKWELL):
        return unknown("10.0, whose kernels read UE8M0 scales throughout, is not requantized")
    wrong = [f"dense on {named(gpu)} requantized" for gpu in SM12X if _dense(tree, path, gpu)]
    wrong += [f"grouped on {named(gpu)} not" for gpu in SM12X if not _grouped(tree, loader, gpu)]
    if wrong:
        return defect(f"with packed scales on: {', '.join(wrong)}")
    return fixed(
        "with packed scales on, 12.0 and 12.1 requantize grouped weights and leave dense ones at fp32"
    )
