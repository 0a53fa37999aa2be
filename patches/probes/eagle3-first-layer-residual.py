"""Can an EAGLE3 draft of GLM-4.7-Flash be given the input of the first layer, before there is a residual?"""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

from builder.probe.harness import (
    Answer,
    CannotTell,
    Opaque,
    Program,
    Tree,
    absent,
    call,
    defect,
    definitions,
    fixed,
    locate,
    names_in,
    parse,
    unknown,
)

MODEL = ("python/sglang/srt/models/glm4_moe_lite.py",)
LAYERS = 4
EMBEDDED = 1000


class Hidden:
    """A hidden state of one value."""

    device = "cuda:0"
    shape = (1, 1)

    def __init__(self, value: int) -> None:
        self.value = value

    def __add__(self, other: Any) -> Hidden:
        if not isinstance(other, Hidden):
            raise TypeError(f"unsupported operand type(s) for +: 'Tensor' and '{type(other).__name__}'")
        return Hidden(self.value + other.value)

    __radd__ = __add__

    def clone(self) -> Hidden:
        return Hidden(self.value)


class Layer:
    """A layer that gives 10 times its number as hidden state and that many as residual."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, *_: object, **__: object) -> tuple[Hidden, Hidden]:
        return Hidden(10 * (self.number + 1)), Hidden(self.number + 1)


def _methods(module: ast.Module) -> tuple[str, ast.FunctionDef, str]:
    """The model's loop over its layers, and the method that is told which layers to capture."""
    loops, setters = [], []
    for name, node in definitions(module):
        if not isinstance(node, ast.FunctionDef) or "layers_to_capture" not in names_in(node):
            continue
        if any(isinstance(child, ast.For) for child in ast.walk(node)):
            loops.append((name, node))
        elif name.endswith(".set_eagle3_layers_to_capture"):
            setters.append(name)
    if len(loops) != 1 or len(setters) != 1:
        raise CannotTell(f"{len(loops)} loops over layers and {len(setters)} setters of captured ones")
    return (*loops[0], setters[0])


def _unpacks(node: ast.FunctionDef) -> bool:
    """Whether the loop gets more from a layer than one completed state."""
    loops = [child for child in ast.walk(node) if isinstance(child, ast.For)]
    targets = [
        target
        for loop in loops
        for child in ast.walk(loop)
        if isinstance(child, ast.Assign) and isinstance(child.value, ast.Call)
        for target in child.targets
    ]
    return any(isinstance(target, ast.Tuple) for target in targets)


def _bound(program: Program, path: str, dotted: str) -> Any:
    owner, _, method = dotted.rpartition(".")
    return getattr(getattr(program.module(path), owner), method)


def _captured_layers(program: Program, path: str, setter: str, ids: list[int]) -> list[int]:
    model = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=LAYERS),
        model=SimpleNamespace(layers_to_capture=[]),
    )
    _bound(program, path, setter)(model, ids)
    return list(model.model.layers_to_capture)


def _captured_states(program: Program, path: str, loop: str, layers: list[int]) -> list[int]:
    model = Opaque(
        "model",
        start_layer=0,
        end_layer=LAYERS,
        first_k_dense_replace=1,
        layers=[Layer(number) for number in range(LAYERS)],
        layers_to_capture=layers,
        pp_group=SimpleNamespace(is_first_rank=True, is_last_rank=True, world_size=1),
        embed_tokens=lambda *_: Hidden(EMBEDDED),
        norm=lambda hidden, residual=None: (hidden, residual),
    )
    batch = Opaque("forward_batch", can_run_tbo=False, forward_mode=SimpleNamespace(is_idle=lambda: False))
    result = call(
        _bound(program, path, loop),
        self=model,
        input_ids=Opaque("input_ids"),
        positions=Opaque("positions"),
        forward_batch=batch,
    )
    return [state.value for state in result[1]] if isinstance(result, tuple) else []


def probe(tree: Tree) -> Answer:
    path = locate(tree, MODEL, b"class Glm4MoeLiteForCausalLM", "python/sglang/srt/models/")
    if path is None:
        return unknown("the model was not found: nothing defines class Glm4MoeLiteForCausalLM")
    loop, node, setter = _methods(parse(tree, path))
    if not _unpacks(node):
        return absent(f"{loop} has no residual in hand: the layers capture for themselves", f"{path}:{loop}")
    stubs = {
        "BumpAllocator": Opaque("BumpAllocator"),
        "get_global_expert_distribution_recorder": Opaque("recorder"),
    }
    wrong, said = [], []
    for ids in ([0, 2], [1, 2]):
        program = Program(tree, stubs)
        layers = _captured_layers(program, path, setter, ids)
        expected = [EMBEDDED if layer == 0 else 11 * layer for layer in layers]
        try:
            states = _captured_states(program, path, loop, layers)
        except TypeError as error:
            wrong.append(f"ids {ids} capture layers {layers}: TypeError: {error}")
            continue
        (said if states == expected else wrong).append(f"ids {ids} capture layers {layers}: {states}")
    if wrong:
        return defect("; ".join(wrong))
    return fixed("; ".join(said))
