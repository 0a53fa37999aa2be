"""Can an EAGLE3 draft of GLM-4.7-Flash be given the input of the first layer, before there is a residual?"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

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
    definitions,
    fixed,
    locate,
    names_in,
    parse,
    unknown,
)

MODEL = ("python/sglang/srt/models/glm4_moe_lite.py",)
LAYERS = 4
CAPTURED = {(0, 2): [0, 2], (1, 2): [2, 3], (0,): [0], (2, 3): [2, 3]}  # the setter's ids, and layers
EMBEDDED = 1000


class Hidden:
    """A hidden state of one value, of which every name for it sees what is added in place."""

    device = "cuda:0"
    shape = (1, 1)

    def __init__(self, value: int) -> None:
        self.value = value

    def __add__(self, other: Any) -> Hidden:
        value = other.value if isinstance(other, Hidden) else other
        if not isinstance(value, int):
            raise TypeError(f"unsupported operand type(s) for +: 'Tensor' and '{type(other).__name__}'")
        return Hidden(self.value + value)

    __radd__ = add = __add__

    def __iadd__(self, other: Any) -> Hidden:
        self.value = (self + other).value
        return self

    add_ = __iadd__

    def clone(self) -> Hidden:
        return Hidden(self.value)

    def detach(self) -> Hidden:
        return self

    def copy_(self, other: Hidden) -> Hidden:
        self.value = other.value
        return self


class Layer:
    """A layer that adds its number to the residual in place, as fused norms do, and gives 10 times that.

    Args:
        pairs: whether it returns hidden state and residual, or their sum alone.
    """

    def __init__(self, number: int, pairs: bool) -> None:
        self.number, self.pairs = number, pairs
        self.given: Callable[..., Any] | None = None  # with what it is to capture for itself

    def __call__(self, *args: object, **named: object) -> Any:
        values = [*args, *named.values()]
        states = [value for value in values if isinstance(value, Hidden)]
        if not states:
            raise TypeError(f"layer {self.number} is given no hidden state")
        self.given = next((v for v in values if callable(v) and not isinstance(v, Opaque)), None)
        if not self.pairs:
            return states[0] + Hidden(11 * self.number)
        hidden, residual = (states[0], Hidden(0)) if len(states) == 1 else states
        if len(states) == 1:
            hidden, residual = residual, hidden  # the first layer's input is its residual, not a copy
        residual += hidden
        residual += Hidden(self.number)
        return Hidden(10 * self.number), residual


class _Unchanged:
    """A module of functions that give back the state that they are given."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args: next((arg for arg in args if isinstance(arg, Hidden)), None)


def _methods(module: ast.Module) -> tuple[str, str]:
    """The model's loop over its layers, and the method that is told which layers to capture."""
    loops, setters = [], []
    for name, node in definitions(module):
        if not isinstance(node, ast.FunctionDef) or "layers_to_capture" not in names_in(node):
            continue
        if any(isinstance(child, ast.For) for child in ast.walk(node)):
            loops.append(name)
        elif name.endswith(".set_eagle3_layers_to_capture"):
            setters.append(name)
    if len(loops) != 1 or len(setters) != 1:
        raise CannotTell(f"{len(loops)} loops over layers and {len(setters)} setters of captured ones")
    return loops[0], setters[0]


def _captured_layers(program: Program, path: str, setter: str, ids: list[int]) -> list[int]:
    model = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=LAYERS),
        model=SimpleNamespace(layers_to_capture=[]),
    )
    owner, _, method = setter.rpartition(".")
    getattr(getattr(program.module(path), owner), method)(model, ids)
    return list(model.model.layers_to_capture)


def _run(program: Program, path: str, loop: str, layers: list[Layer], to_capture: list[int]) -> Any:
    owner, _, method = loop.rpartition(".")
    model = Instance(
        getattr(program.module(path), owner),
        start_layer=0,
        end_layer=LAYERS,
        first_k_dense_replace=1,
        layers=layers,
        layers_to_capture=to_capture,
        pp_group=SimpleNamespace(is_first_rank=True, is_last_rank=True, world_size=1),
        embed_tokens=lambda *_: Hidden(EMBEDDED),
        norm=lambda hidden, residual=None: hidden if residual is None else (hidden + residual, residual),
    )
    batch = Opaque("forward_batch", can_run_tbo=False, forward_mode=SimpleNamespace(is_idle=lambda: False))
    return call(
        getattr(model, method),
        input_ids=Opaque("input_ids"),
        positions=Opaque("positions"),
        forward_batch=batch,
    )


def _before(layer: int) -> int:
    """The sum of hidden state and residual before a layer."""
    return EMBEDDED + sum(11 * number for number in range(layer))


def _layers_capture(program: Program, path: str, loop: str, to_capture: list[int]) -> bool:
    """Whether layers return one completed state, and those to capture are told with what: no sum is left."""
    layers = [Layer(number, pairs=False) for number in range(LAYERS)]
    try:
        result = _run(program, path, loop, layers, to_capture)
    except TypeError:
        return False  # it takes such a layer's state apart
    last = result[0] if isinstance(result, tuple) else result
    given = [layer.number for layer in layers if layer.given is not None]
    return given == to_capture and isinstance(last, Hidden) and last.value == _before(LAYERS)


def _wrong(program: Program, path: str, loop: str, to_capture: list[int]) -> tuple[str, bool]:
    """What is captured before these layers, and whether it is wrong."""
    layers = [Layer(number, pairs=True) for number in range(LAYERS)]
    try:
        result = _run(program, path, loop, layers, to_capture)
    except TypeError as error:
        return f"TypeError: {error}", True
    if not isinstance(result, tuple) or len(result) != 2:
        return "nothing", True
    last, captured = result
    states = [state.value for state in captured]
    if last.value != _before(LAYERS):
        return f"{states}, and the model itself goes on with {last.value}", True
    return str(states), states != [_before(layer) for layer in to_capture]


def probe(tree: Tree) -> Answer:
    path = locate(tree, MODEL, b"class Glm4MoeLiteForCausalLM", "python/sglang/srt/models/")
    if path is None:
        return unknown("the model was not found: nothing defines class Glm4MoeLiteForCausalLM")
    loop, setter = _methods(parse(tree, path))
    stubs = {
        "BumpAllocator": Opaque("BumpAllocator"),
        "torch.add": lambda state, other: state + other,
        "torch.clone": lambda state: state.clone(),
        "get_global_expert_distribution_recorder": Opaque("recorder"),
        "residual_batch": _Unchanged(),  # what completes a state after the last layer, from v0.5.21 on
    }
    program = Program(tree, stubs)
    if _layers_capture(program, path, loop, [0, 2]):
        return absent(f"{loop} has no residual in hand: the layers capture for themselves", f"{path}:{loop}")
    wrong, said = [], []
    for ids, layers in CAPTURED.items():
        if _captured_layers(program, path, setter, list(ids)) != layers:
            raise CannotTell(f"{setter} takes ids {list(ids)} for other layers than {layers}")
        states, bad = _wrong(program, path, loop, layers)
        (wrong if bad else said).append(f"ids {list(ids)} capture layers {layers}: {states}")
    if wrong:
        return defect("; ".join(wrong))
    return fixed("; ".join(said))
