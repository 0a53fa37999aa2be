"""What does GLM-5.3's target hand to a DFLASH draft when a layer's residual is None, as it is under mHC?"""

from __future__ import annotations

import ast
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
HIDDEN, RESIDUAL = 3.0, 0.5


class Hidden:
    """A hidden state of one value, which remembers whether its streams were contracted."""

    def __init__(self, value: float, contracted: bool = False) -> None:
        self.value, self.contracted = value, contracted

    def __add__(self, other: Any) -> Hidden:
        if not isinstance(other, Hidden):
            raise TypeError(f"unsupported operand type(s) for +: 'Tensor' and '{type(other).__name__}'")
        return Hidden(self.value + other.value, self.contracted)

    __radd__ = __add__

    def add(self, other: Any) -> Hidden:
        return self + other

    def clone(self) -> Hidden:
        return Hidden(self.value, self.contracted)


def _contract(hidden: Hidden, multiple: int) -> Hidden:
    return Hidden(hidden.value, contracted=True)


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


def probe(tree: Tree) -> Answer:
    path = locate(tree, MODEL, b"dflash_capture", MODELS)
    if path is None:
        if any(b"set_dflash_layers_to_capture" in tree.read(model) for model in tree.paths(MODELS)):
            raise CannotTell("GLM-5.3 is captured for DFLASH in a way that is not known here")
        return unknown("no GLM-5.3 model was found that a DFLASH draft can look into (dflash_capture)")
    name, node = _capture(parse(tree, path))
    if len(node.args.args) == 2:
        return absent(f"{name} is given one completed state: no residual is added here", f"{path}:{name}")
    owner, _, method = name.rpartition(".")
    program = Program(tree, {"hc_contract": _contract})
    prepare = getattr(getattr(program.module(path), owner), method)
    wrong = []
    for mhc, dflash, residual in (
        (True, True, None),
        (True, False, None),
        (True, True, RESIDUAL),
        (False, True, RESIDUAL),
        (False, False, RESIDUAL),
        (False, True, None),
    ):
        model = SimpleNamespace(dflash_capture=dflash, config=SimpleNamespace(mhc=mhc, hc_mult=4))
        case = f"mHC {mhc}, DFLASH {dflash}, residual {residual}"
        try:
            got = prepare(model, Hidden(HIDDEN), None if residual is None else Hidden(residual))
        except TypeError as error:
            wrong.append(f"{case}: TypeError: {error}")
            continue
        expected = (HIDDEN + (residual or 0.0), mhc and dflash)
        if (got.value, got.contracted) != expected:
            wrong.append(f"{case}: {got.value}, contracted {got.contracted}, where {expected} is right")
    if wrong:
        return defect("; ".join(wrong))
    return fixed(f"6 cases of {method}: without a residual {HIDDEN}, with one {HIDDEN + RESIDUAL}")
