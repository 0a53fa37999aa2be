"""What does GLM-5.3's target hand to a DFLASH draft when a layer's residual is None, as it is under mHC?"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from builder.probe.harness import (
    Answer,
    CannotTell,
    Program,
    Tree,
    absent,
    defect,
    definitions,
    fixed,
    locate,
    names_in,
    parse,
    unknown,
)

MODEL = ("python/sglang/srt/models/glm5_next.py",)
MODELS = "python/sglang/srt/models/glm5"
HIDDEN, RESIDUAL, STREAMS = 3.0, 0.5, 4


class Hidden:
    """A hidden state of one value, which remembers of how many streams it was contracted (0: it was not)."""

    def __init__(self, value: float, contracted: int = 0) -> None:
        self.value, self.contracted = value, contracted

    def __add__(self, other: Any) -> Hidden:
        value = other.value if isinstance(other, Hidden) else other
        if not isinstance(value, int | float):
            raise TypeError(f"unsupported operand type(s) for +: 'Tensor' and '{type(other).__name__}'")
        return Hidden(self.value + value, self.contracted)

    __radd__ = add = __add__

    def __iadd__(self, other: Any) -> Hidden:
        self.value = (self + other).value
        return self

    add_ = __iadd__

    def clone(self) -> Hidden:
        return Hidden(self.value, self.contracted)


def _contract(hidden_states: Hidden, multiple: int) -> Hidden:
    return Hidden(hidden_states.value, hidden_states.contracted + multiple)


def _capture(module: ast.Module) -> tuple[str, ast.FunctionDef]:
    """The method that prepares a layer's captured state: it looks at DFLASH and contracts mHC's streams."""
    found = [
        (name, node)
        for name, node in definitions(module)
        if isinstance(node, ast.FunctionDef)
        and {"dflash_capture", "hc_contract", "mhc"} <= names_in(node)
        and any(isinstance(child, ast.Return) for child in ast.walk(node))
        and not any(isinstance(child, ast.For) for child in ast.walk(node))
    ]
    if len(found) != 1:
        raise CannotTell(f"{len(found)} methods prepare what a DFLASH draft is given")
    return found[0]


def _adds_before(module: ast.Module, method: str) -> bool:
    """Whether a function that calls ``method`` adds two of its own variables, as a sum moved there would."""
    return any(
        _adds_variables(node)
        for _, caller in definitions(module)
        if not isinstance(caller, ast.ClassDef) and caller.name != method and method in names_in(caller)
        for node in ast.walk(caller)
    )


def _adds_variables(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return isinstance(node.left, ast.Name) and isinstance(node.right, ast.Name)
    return isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Name)


def _wrong(prepare: Callable[..., Any], case: tuple[bool, bool, float | None], sums: bool) -> str:
    """What is wrong about what ``prepare`` gives for mHC, DFLASH and a residual; empty when nothing is."""
    mhc, dflash, residual = case
    said = f"mHC {mhc}, DFLASH {dflash}, residual {residual}"
    model = SimpleNamespace(dflash_capture=dflash, config=SimpleNamespace(mhc=mhc, hc_mult=STREAMS))
    given = [Hidden(HIDDEN)] + ([None if residual is None else Hidden(residual)] if sums else [])
    before = [state and state.value for state in given]
    try:
        got = prepare(model, *given)
    except TypeError as error:
        return f"{said}: TypeError: {error}"
    expected = (HIDDEN + (residual or 0.0), STREAMS if mhc and dflash else 0)
    if (got.value, got.contracted) != expected:
        return f"{said}: {got.value}, {got.contracted} streams contracted, where {expected} is right"
    if [state and state.value for state in given] != before:
        return f"{said}: what the next layer is given was changed"
    return ""


def probe(tree: Tree) -> Answer:
    path = locate(tree, MODEL, b"dflash_capture", MODELS)
    if path is None:
        return unknown("no GLM-5.3 model was found that a DFLASH draft can look into (dflash_capture)")
    module = parse(tree, path)
    name, node = _capture(module)
    owner, _, method = name.rpartition(".")
    program = Program(tree, {"hc_contract": _contract, "torch.add": lambda state, other: state + other})
    prepare = getattr(getattr(program.module(path), owner), method)
    sums = len(node.args.args) > 2
    residuals = (None, RESIDUAL) if sums else (None,)
    cases = [(mhc, dflash, r) for mhc in (True, False) for dflash in (True, False) for r in residuals]
    wrong = [said for case in cases if (said := _wrong(prepare, case, sums))]
    if not sums:
        if wrong or _adds_before(module, method):
            raise CannotTell(f"{name} is given one state, which may be a sum: {'; '.join(wrong)}")
        return absent(f"{name} is given one completed state: no residual is added here", f"{path}:{name}")
    if wrong:
        return defect("; ".join(wrong))
    return fixed(f"{len(cases)} cases of {method}: without a residual {HIDDEN}, with one {HIDDEN + RESIDUAL}")
