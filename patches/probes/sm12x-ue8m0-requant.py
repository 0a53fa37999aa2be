"""Which FP8 weights are requantized to UE8M0 scales on SM12x, where only the grouped MoE GEMM reads those?

Asked of the decision, of the loader's helper, and of LongCat and its draft, which decide once more.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from builder.probe.devices import BLACKWELL, GB10, SM12X, cuda_device, named
from builder.probe.harness import (
    Answer,
    CannotTell,
    Instance,
    Opaque,
    Program,
    Tree,
    absent,
    call,
    defect,
    environment,
    fixed,
    locate,
    parse,
    unknown,
)

DECISION = ("python/sglang/srt/model_loader/utils.py",)
LOADING = ("python/sglang/srt/layers/quantization/fp8_utils.py",)
SETTINGS = "python/sglang/srt/layers/deep_gemm_wrapper/configurer.py"
PACKED_SCALES = f"{SETTINGS}:DEEPGEMM_SCALE_UE8M0"
METHODS = "python/sglang/srt/layers/quantization/fp8.py"
LONGCAT = (
    ("python/sglang/srt/models/longcat_flash.py", "LongcatFlashForCausalLM"),
    ("python/sglang/srt/models/longcat_flash_nextn.py", "LongcatFlashForCausalLMNextN"),
)
BLOCK = [128, 128]
DEEP_GEMM = SimpleNamespace(
    fp8_einsum=print, m_grouped_fp8_fp4_gemm_nt_contiguous=print, transform_sf_into_required_layout=print
)


def _packed_scales(tree: Tree, gpu: tuple[int, int]) -> bool:
    """Whether DeepGEMM's packed scales can be on at all on this GPU, be it for 12.0's sake or its own."""
    stubs = cuda_device(gpu) | {"deep_gemm": DEEP_GEMM}
    return bool(Program(tree, stubs).module(SETTINGS).DEEPGEMM_SCALE_UE8M0)


def _wrapper(gpu: tuple[int, int], enabled: bool = True, packed: bool = True) -> SimpleNamespace:
    """DeepGEMM's settings on this GPU."""
    return SimpleNamespace(
        ENABLE_JIT_DEEPGEMM=enabled, DEEPGEMM_BLACKWELL=gpu == BLACKWELL, DEEPGEMM_SCALE_UE8M0=packed
    )


def _program(tree: Tree, gpu: tuple[int, int], wrapper: SimpleNamespace, requantized: list[Any]) -> Program:
    stubs = {
        "deep_gemm_wrapper": wrapper,
        "requant_weight_ue8m0_inplace": lambda weight, *_, **__: requantized.append(weight),
        "bind_or_assign": lambda _, value: value,
        "torch.bfloat16": "bf16",
        "torch.float8_e4m3fn": "fp8",
        "torch.float8_e4m3fnuz": "fp8_uz",
        "torch.int8": "int8",
    }
    return Program(tree, cuda_device(gpu) | stubs)


# --- the decision and the helper ---------------------------------------------------------------------

Helper = Callable[..., bool]


def _helper(tree: Tree, loader: str, gpu: tuple[int, int], wrapper: SimpleNamespace | None = None) -> Helper:
    """A function that says whether the loader's helper requantizes; what it is given is changed by name."""

    done: list[Any] = []
    module = _program(tree, gpu, wrapper or _wrapper(gpu), done).module(loader)

    def requantizes(dims: int, **changed: Any) -> bool:
        done.clear()
        shape, scales = ((8, 512, 1024), (8, 4, 8)) if dims == 3 else ((512, 1024), (4, 8))
        known = {
            "weight": SimpleNamespace(ndim=dims, shape=shape, dim=lambda: dims),
            "weight_scale": SimpleNamespace(ndim=dims, shape=scales, format_ue8m0=False),
            "weight_block_size": BLOCK,
            "use_deepgemm_runner": True,
            "output_dtype": "bf16",
            "weight_shape": (512, 1024),
            "grouped_moe": dims == 3,
        }
        call(module.requant_block_scale_ue8m0_for_deepgemm, **known | changed)
        return bool(done)

    return requantizes


def _decides(tree: Tree, path: str, gpu: tuple[int, int]) -> bool:
    """Whether the decision is to requantize dense weights."""
    decide = _program(tree, gpu, _wrapper(gpu), []).module(path).should_deepgemm_weight_requant_ue8m0
    return bool(call(decide, weight_block_size=BLOCK, output_dtype="bf16", weight_shape=(512, 1024)))


def _never(tree: Tree, loader: str, gpu: tuple[int, int], ask: Helper) -> list[str]:
    """Grouped weights that are requantized although DeepGEMM does not run them or could not."""
    refused = {
        "of another runner": ask(3, use_deepgemm_runner=False),
        "in other blocks": ask(3, weight_block_size=[64, 128]),
        "without blocks": ask(3, weight_block_size=None),
        "of 96 rows": ask(3, weight_shape=(96, 1024)),
        "of 192 columns": ask(3, weight_shape=(512, 192)),
        "for fp16 outputs": ask(3, output_dtype="fp16"),
        "that have such scales": ask(3, weight_scale=SimpleNamespace(ndim=3, format_ue8m0=True)),
        "with packed scales off": _helper(tree, loader, gpu, _wrapper(gpu, packed=False))(3),
        "with DeepGEMM off": _helper(tree, loader, gpu, _wrapper(gpu, enabled=False))(3),
    }
    return [f"grouped weights {which} on {named(gpu)} requantized" for which, done in refused.items() if done]


def _is_told(tree: Tree, ask: Helper) -> bool:
    """Whether the helper sees by itself that weights are grouped, or is told so where experts are loaded."""
    if ask(3, grouped_moe=False):
        return True
    calls = [node for node in ast.walk(parse(tree, METHODS)) if isinstance(node, ast.Call)]
    told = [keyword.value for call_ in calls for keyword in call_.keywords if keyword.arg == "grouped_moe"]
    return any(isinstance(value, ast.Constant) and value.value is True for value in told)


# --- LongCat -----------------------------------------------------------------------------------------


def _projection(name: str) -> SimpleNamespace:
    """A dense projection with block scales, of bf16 so that nothing has to be dequantized."""
    halves = SimpleNamespace(split=lambda *_, **__: (Opaque("w_kc"), Opaque("w_vc")))
    weight = Opaque(name, dtype="bf16", unflatten=lambda *_: halves)
    return SimpleNamespace(weight=weight, weight_scale_inv=Opaque("scales"))


def _after_loading(tree: Tree, gpu: tuple[int, int], path: str, name: str) -> tuple[bool, int]:
    """Whether packed scales are still on after a LongCat of one layer is loaded, and what it requantized."""
    wrapper, done = _wrapper(gpu), []  # type: SimpleNamespace, list[Any]
    module = _program(tree, gpu, wrapper, done).module(path)
    dense = object.__new__(module.LongcatFlashMLP)
    dense.gate_up_proj, dense.down_proj = _projection("gate_up"), _projection("down")
    names = ("kv_b_proj", "o_proj", "fused_qkv_a_proj_with_mqa", "q_b_proj")
    attention = Opaque(
        "self_attn", w_scale=None, use_deep_gemm_bmm=False, **{n: _projection(n) for n in names}
    )
    layer = SimpleNamespace(self_attn=[attention] * 2, mlps=[dense] * 2, mlp=Opaque("moe", experts=None))
    draft = SimpleNamespace(self_attn=attention, mlps=dense)
    model = Instance(
        getattr(module, name),
        config=SimpleNamespace(
            num_hidden_layers=1, q_lora_rank=64, mla_scale_q_lora=False, mla_scale_kv_lora=False
        ),
        quant_config=SimpleNamespace(weight_block_size=BLOCK),
        model=SimpleNamespace(layers=[layer], decoder=draft),
    )
    with environment():
        call(model.post_load_weights)
    return wrapper.DEEPGEMM_SCALE_UE8M0, len(done)


def _longcat(tree: Tree) -> list[str]:
    """What LongCat and its draft do on SM12x that they should not."""
    wrong = []
    for hint, name in LONGCAT:
        path = locate(tree, (hint,), f"class {name}(".encode(), "python/sglang/srt/models/")
        if path is None:
            raise CannotTell(f"nothing defines {name}, which decides for itself what is requantized")
        for gpu in SM12X:
            packed, done = _after_loading(tree, gpu, path, name)
            if not packed:
                wrong.append(f"{name} on {named(gpu)} switches packed scales off")
            if done:
                wrong.append(f"{name} on {named(gpu)} requantizes {done} dense weights")
    path, name = LONGCAT[0]
    if path in tree and _after_loading(tree, BLACKWELL, path, name)[0]:
        raise CannotTell(f"{name} keeps packed scales on 10.0, where it has always switched them off")
    return wrong


def probe(tree: Tree) -> Answer:
    path = locate(tree, DECISION, b"def should_deepgemm_weight_requant_ue8m0")
    loader = locate(tree, LOADING, b"def requant_block_scale_ue8m0_for_deepgemm")
    if not any(_packed_scales(tree, gpu) for gpu in SM12X):
        return absent("no SM12x device is given DeepGEMM's packed scales here", PACKED_SCALES)
    if path is None or loader is None:
        raise CannotTell("nothing decides which weights are requantized for DeepGEMM, or does it")
    asked = {gpu: _helper(tree, loader, gpu) for gpu in (BLACKWELL, *SM12X)}
    if not (_decides(tree, path, BLACKWELL) and asked[BLACKWELL](2) and asked[BLACKWELL](3)):
        return unknown("10.0, whose kernels read UE8M0 scales throughout, is not requantized")
    wrong = []
    for gpu in SM12X:
        if _decides(tree, path, gpu) or asked[gpu](2):
            wrong.append(f"dense on {named(gpu)} requantized")
        if not asked[gpu](3):
            wrong.append(f"grouped on {named(gpu)} not")
        wrong += _never(tree, loader, gpu, asked[gpu])
    wrong += _longcat(tree)
    if wrong:
        return defect(f"with packed scales on: {', '.join(wrong)}")
    if not _is_told(tree, asked[GB10]):
        return unknown("nobody tells the loader's helper which weights are grouped")
    return fixed(
        "with packed scales on, 12.0 and 12.1 requantize grouped weights and leave dense ones at fp32, "
        "LongCat's too"
    )
