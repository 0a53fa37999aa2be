"""Does an EAGLE draft of DeepSeek-V4 take a checkpoint that has DSpark's stages where it wants an MTP layer?

Both are named ``mtp.N.…``. The real loading runs on names alone: which parameters of the draft are reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from builder.probe.harness import Answer, CannotTell, Opaque, Program, Tree, defect, fixed, locate, unknown

DRAFT = ["python/sglang/srt/models/deepseek_v4_nextn.py"]
LAYERS = 43
# Parameters of the draft, and the weights of an MTP layer that are to reach them.
MTP = {
    "model.e_proj.weight": "mtp.0.e_proj.weight",
    "model.h_proj.weight": "mtp.0.h_proj.weight",
    "model.enorm.weight": "mtp.0.enorm.weight",
    "model.hnorm.weight": "mtp.0.hnorm.weight",
    "model.hc_head_fn": "mtp.0.hc_head_fn",
    "model.shared_head.norm.weight": "mtp.0.norm.weight",
    "model.decoder.input_layernorm.weight": "mtp.0.attn_norm.weight",
    "model.decoder.post_attention_layernorm.weight": "mtp.0.ffn_norm.weight",
}
# The same layer by the names that converted checkpoints have.
CONVERTED = [f"model.layers.{LAYERS}." + name.removeprefix("model.").removeprefix("decoder.") for name in MTP]
TARGET = ("embed.weight", "layers.0.attn_norm.weight", "norm.weight", "head.weight")
STAGE = ("attn_norm.weight", "ffn_norm.weight")
FIRST, LAST = (
    ("main_proj.weight", "main_norm.weight"),
    ("norm.weight", "hc_head_fn", "markov_head.markov_w1.weight"),
)
NO_MTP_LAYER = {
    "DSpark in three stages": [*(f"mtp.{n}.{part}" for n in range(3) for part in STAGE),
                     *(f"mtp.0.{part}" for part in FIRST), *(f"mtp.2.{part}" for part in LAST)],
    "two stages, the last first": [f"mtp.{n}.{part}" for n in (1, 0) for part in STAGE],
    "one projection": [name for name in MTP.values() if "h_proj" not in name],
    "a second layer": [*MTP.values(), *(name.replace("mtp.0", "mtp.1") for name in MTP.values())],
    "DSpark in one stage": [f"mtp.0.{part}" for part in (*FIRST, *STAGE, *LAST)],
}  # fmt: skip


class AtOnce:
    """Stands in for a pool of threads: what is submitted is done."""

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> SimpleNamespace:
        result = work(*args, **kwargs)
        return SimpleNamespace(result=lambda: result)


def _draft(tree: Tree, path: str, loaded: Counter[str]) -> Any:
    """A draft of the tree whose parameters count how often they are loaded."""
    flags = {"is_npu": False, "is_hip": False, "is_cuda": True, "is_xpu": False, "is_musa": False}
    threads = SimpleNamespace(ThreadPoolExecutor=lambda *_, **__: AtOnce(), as_completed=iter)
    off = SimpleNamespace(get=lambda: False)
    program = Program(
        tree,
        {
            **{name: lambda said=said: said for name, said in flags.items()},
            "envs": SimpleNamespace(
                SGLANG_OPT_FP8_WO_A_GEMM=SimpleNamespace(get=lambda: True),
                SGLANG_OPT_FUSE_WQA_WKV=off,
            ),
            "_FP8_WO_A_GEMM": False,
            "concurrent": SimpleNamespace(futures=threads),
            "concurrent.futures": threads,
            "logger": Opaque("logger"),
            "should_async_load": lambda weight: False,
            "is_wint4afp8_or_wint4a16_config": lambda config: False,
            "get_layer_id": lambda name: None,
            "FusedMoE": SimpleNamespace(make_expert_params_mapping=lambda **known: []),
            "should_fuse_mega_moe_shared_experts": lambda module: False,
        },
    )

    def parameter(name: str) -> Opaque:
        return Opaque(name, weight_loader=lambda *_, **__: loaded.update([name]))

    kind = program.module(path).DeepseekV4ForCausalLMNextN
    config = Opaque(
        "config",
        model_type="deepseek_v4",
        num_nextn_predict_layers=1,
        num_hidden_layers=LAYERS,
        n_routed_experts=0,
    )
    known = {
        "config": config,
        "quant_config": None,
        "num_fused_shared_experts": 0,
        "wo_a_fp8": False,
        "model": SimpleNamespace(),
        "pp_group": SimpleNamespace(is_first_rank=True, is_last_rank=True),
        "named_parameters": lambda self, *_, **__: [(name, parameter(name)) for name in MTP],
        "named_buffers": lambda self, *_, **__: [],
        "modules": lambda self: [],
        "post_load_weights": lambda self, *_, **__: None,
    }
    return object.__new__(type("Draft", (kind,), known))


def _load(tree: Tree, path: str, names: list[str]) -> tuple[Counter[str], str]:
    """How often each parameter was loaded from weights of these names, and what was raised."""
    loaded: Counter[str] = Counter()

    def weights() -> Iterator[tuple[str, Opaque]]:
        for name in (*TARGET, *names):
            yield name, Opaque(name, dtype="bfloat16", shape=(1,))

    draft = _draft(tree, path, loaded)
    try:
        draft.load_weights(weights())
    except Exception as error:
        return loaded, f"{type(error).__name__}: {error}"
    return loaded, ""


def probe(tree: Tree) -> Answer:
    path = locate(tree, DRAFT, b"class DeepseekV4ForCausalLMNextN")
    if path is None:
        return unknown("the draft was not found: nothing defines class DeepseekV4ForCausalLMNextN")
    for names in (list(MTP.values()), CONVERTED):
        loaded, raised = _load(tree, path, names)
        if "DSPARK" in raised:
            return defect(f"an MTP layer ({names[0]}) is refused: {raised}")
        if raised or loaded != Counter(list(MTP)):
            raise CannotTell(
                f"an MTP layer ({names[0]}) loads {len(loaded)} of {len(MTP)} parameters here: {raised}"
            )
    refusals = []
    for checkpoint, names in NO_MTP_LAYER.items():
        loaded, raised = _load(tree, path, names)
        if not raised:
            twice = sum(times > 1 for times in loaded.values())
            return defect(
                f"{checkpoint} passes for an MTP layer: {twice} parameters are loaded twice or more, "
                f"{len(MTP.keys() - loaded.keys())} of {len(MTP)} never"
            )
        if "DSPARK" not in raised:
            return defect(f"{checkpoint}: an error that does not say DSPARK: {raised}")
        refusals.append(checkpoint)
    said = ", ".join(refusals)
    return fixed(f"an MTP layer loads {len(MTP)} parameters once; refused, and DSPARK named: {said}")
