"""Images that a release takes and never looks at: a model's processor is not in the transformers it pins.

SGLang brings configuration and model of some model types itself, and leaves images to the processor of
transformers. Where the pinned transformers has none, a bare tokenizer takes its place and says nothing: every
image is three tokens. Read from the pinned source.
"""

from __future__ import annotations

import ast
import re

from builder.probe.harness import Tree
from builder.probe.trees import MappingTree
from builder.retire.dependency import METADATA, PYPROJECT, read_pins
from builder.source.upstream import Upstream

PROCESSORS = {"glm5_next": "5.16.1"}
"""The release of transformers that first has a model type's processor, seen in its wheels."""

CONFIGS = "python/sglang/srt/configs/"
ISSUE = "https://github.com/sgl-project/sglang/issues/39831"


def unseen_images(upstream: Upstream) -> list[str]:
    """What :func:`unseen_in` says of a pinned source."""
    files = upstream.files([METADATA, PYPROJECT, *map(_config, PROCESSORS)])
    return unseen_in(MappingTree({path: file.data for path, file in files.items()}))


def unseen_in(tree: Tree) -> list[str]:
    """What is to be said of model types whose images a release silently ignores."""
    pin = read_pins(tree).get("transformers")
    return [
        f"images to a {model} model are silently ignored: the release pins transformers{pin.specifier}, "
        f"and the processor of this model came with {first} ({ISSUE})"
        for model, first in PROCESSORS.items()
        if pin is not None and lacks(pin.specifier, first)
        if _config(model) in tree and _leaves_images_to_transformers(tree.read(_config(model)), model)
    ]


def _config(model: str) -> str:
    return f"{CONFIGS}{model}.py"


def lacks(specifier: str, first: str) -> bool:
    """Whether no version that ``specifier`` admits is ``first`` or newer, as far as its upper bounds tell."""
    for operator, version in re.findall(r"(===?|<=?)\s*(\d+(?:\.\d+)*)", specifier):
        if _parts(version) < _parts(first) or (operator == "<" and _parts(version) == _parts(first)):
            return True
    return False


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _leaves_images_to_transformers(source: bytes, model: str) -> bool:
    """Whether the configuration of ``model`` has a vision part, and registers no processor for it."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    registers = any(
        re.search(r"register(_customized)?_?(image_)?processor|AutoProcessor", ast.unparse(node))
        for node in ast.walk(module)
        if isinstance(node, ast.Call | ast.alias)
    )
    return not registers and any(
        isinstance(node, ast.ClassDef) and _is_config_of(node, model) and "vision_config" in ast.unparse(node)
        for node in module.body
    )


def _is_config_of(node: ast.ClassDef, model: str) -> bool:
    """Whether the class has ``model_type = "<model>"``."""
    return any(
        isinstance(statement, ast.Assign | ast.AnnAssign)
        and isinstance(statement.value, ast.Constant)
        and statement.value.value == model
        for statement in node.body
    )
