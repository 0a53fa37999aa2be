"""``Dockerfile.in`` rendered to a Dockerfile: sandboxed, nothing undefined, no value leaves its line.

A template may come from anywhere. Of jinja2's language it has what makes no text that is much longer than the
template and its values: loops two deep over short lists, conditions, filters that look at what they would
make. There is no assignment, macro, block, product or format, with which few characters become gigabytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import InvalidInput

if TYPE_CHECKING:
    from jinja2 import Template, nodes

MAX_TEMPLATE_BYTES = 256 << 10
MAX_DOCKERFILE_BYTES = 4 << 20
MAX_TURNS = 4096  # of one loop
MAX_DEPTH = 2  # of loops in each other

# What a template may ask of a text; what pads or formats could make gigabytes of a few characters.
_TEXT_METHODS = frozenset(
    {
        "startswith",
        "endswith",
        "lower",
        "upper",
        "strip",
        "removeprefix",
        "removesuffix",
        "split",
        "partition",
    }
)
_STATEMENTS = frozenset({"Template", "Output", "TemplateData", "For", "If"})
_EXPRESSIONS = frozenset(
    {"Name", "Const", "Getattr", "Getitem", "Slice", "List", "Tuple", "Add", "Filter", "Keyword", "Call"}
    | {"Test", "Compare", "Operand", "And", "Or", "Not", "CondExpr"}
)
_LOOP = "turns"  # the filter that counts a loop's turns
_CONTROLS = re.compile("[\\x00-\\x1f\\x7f\\x85\\u2028\\u2029]")


def quoted(value: object) -> str:
    """A value in double quotes, as ENV and LABEL read it; quotes, backslashes and ``$`` mean themselves."""
    _check_size(value)
    text = str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'


def render_template(path: Path, values: Mapping[str, Any]) -> str:
    """Render a Dockerfile.

    Args:
        path: ``Dockerfile.in``.
        values: what the template may use (docs/template.md).

    Raises:
        InvalidInput: naming the line: a syntax error, a name that is not defined, a value with a line
            break in it, or something the sandbox forbids.
    """
    from jinja2 import TemplateError, TemplateSyntaxError

    source = _read(path)
    try:
        return _rendered(_compiled(source), values)
    except TemplateSyntaxError as error:
        raise InvalidInput(
            "template is not valid",
            where=f"{path}, line {error.lineno}",
            found=error.message,
            hint="docs/template.md says what a template may use",
        ) from error
    except (RecursionError, SyntaxError, MemoryError) as error:
        raise InvalidInput(
            "template is too complex", where=str(path), found=str(error), hint="split long expressions"
        ) from error
    except (TemplateError, _UnfitError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise InvalidInput(
            "template cannot be rendered",
            where=f"{path}, line {_line_of(error)}",
            found=str(error),
            hint="docs/template.md lists the names a template may use",
        ) from error


def _rendered(template: Template, values: Mapping[str, Any]) -> str:
    """The text of a template, which is not made further than it may be long."""
    parts, length = [], 0
    for part in template.generate(values):
        parts.append(part)
        length += len(part)
        if length > MAX_DOCKERFILE_BYTES:
            raise _UnfitError(f"the Dockerfile is longer than {MAX_DOCKERFILE_BYTES} characters")
    return "".join(parts)


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    """A template in its sandbox; a run that renders it for many images compiles it once."""
    from jinja2 import DictLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"+"})

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            if isinstance(obj, str) and attr not in _TEXT_METHODS:
                return False
            return super().is_safe_attribute(obj, attr, value)

        def wrap_str_format(self, value: Any) -> None:
            """jinja2 makes an exception for ``format``, which can pad; there is none here."""
            return

        def call_binop(self, context: object, operator: str, left: Any, right: Any) -> Any:
            _check_size([left, right])
            return left + right

    environment = Sandbox(
        loader=DictLoader({}),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=_finalize,
        optimized=False,  # nothing is worked out before it is known what it is
    )
    environment.globals.clear()
    kept = ("length", "sort", "first", "last")
    own = {"join": _join, "json": _json_array, "quoted": quoted, "replace": _replace, _LOOP: _turns}
    environment.filters = {name: environment.filters[name] for name in kept} | own
    tree = environment.parse(source)
    _check_nodes(tree, 0)
    return environment.from_string(tree)


def _check_nodes(node: nodes.Node, depth: int) -> None:
    """Refuse what is not for templates, and have each loop count its turns.

    Raises:
        TemplateSyntaxError: naming the line.
    """
    from jinja2 import TemplateSyntaxError, nodes

    kind = type(node).__name__
    if kind not in _STATEMENTS | _EXPRESSIONS or (isinstance(node, nodes.For) and node.recursive):
        raise TemplateSyntaxError(f"{kind.lower()} is not available in a template", node.lineno)
    if isinstance(node, nodes.For):
        depth += 1
        if depth > MAX_DEPTH:
            raise TemplateSyntaxError(f"loops are more than {MAX_DEPTH} deep", node.lineno)
    for child in list(node.iter_child_nodes()):
        _check_nodes(child, depth)
    if isinstance(node, nodes.For):
        node.iter = nodes.Filter(node.iter, _LOOP, [], [], None, None, lineno=node.lineno)


class _UnfitError(Exception):
    """A value is too large, or would have continued on a line of its own."""


def _check_size(value: object) -> None:
    """Refuse a value whose text would be longer than a Dockerfile may be."""
    size, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            waiting += one
        size += len(one) if isinstance(one, str) else 1
        if size > MAX_DOCKERFILE_BYTES:
            raise _UnfitError(f"a value is longer than {MAX_DOCKERFILE_BYTES} characters")


def _finalize(value: object) -> object:
    """Every value that the template prints passes here."""
    _check_size(value)
    text = str(value)
    if _CONTROLS.search(text):
        raise _UnfitError(f"a value has a control character or a line break in it: {text[:80]!r}")
    return value


def _turns(values: Any) -> list[Any]:
    """What a loop goes over."""
    if isinstance(values, str):
        raise _UnfitError("a loop goes over a list, not over the characters of a text")
    turns = list(values)
    if len(turns) > MAX_TURNS:
        raise _UnfitError(f"a loop has {len(turns)} turns, and may have {MAX_TURNS}")
    return turns


def _join(values: Any, separator: str = "", attribute: str | None = None) -> str:
    """The texts of a list, or of one key of each of its mappings, with a separator between them."""
    items = _turns(values)
    texts = [str(item if attribute is None else item[attribute]) for item in items]
    _check_size([*texts, *([separator] * len(texts))])
    return separator.join(texts)


def _replace(text: str, old: str, new: str) -> str:
    longer = text.count(old) * max(0, len(new) - len(old))
    if len(text) + longer > MAX_DOCKERFILE_BYTES:
        raise _UnfitError(f"a value would be longer than {MAX_DOCKERFILE_BYTES} characters")
    return text.replace(old, new)


def _json_array(value: object) -> str:
    _check_size(value)
    return json.dumps(value, ensure_ascii=False)


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput("template cannot be read", where=str(path), found=error.strerror) from error
    if len(data) > MAX_TEMPLATE_BYTES:
        raise InvalidInput(
            "template is too large", where=str(path), expected=f"at most {MAX_TEMPLATE_BYTES} bytes"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput("template is not UTF-8", where=f"{path}, line {line}", found=str(error)) from error


def _line_of(error: BaseException) -> int | str:
    """The template's own line on which an error arose (jinja2 maps tracebacks back to it)."""
    line: int | str = "?"
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
