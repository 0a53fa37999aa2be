"""``Dockerfile.in`` rendered to a Dockerfile: sandboxed, nothing undefined, no value leaves its line.

A template may come from anywhere. Of jinja2's language it has what makes no text that is much longer than the
template and its values: loops, conditions, filters that look at what they would make. There is no assignment,
macro, block, product or format, with which few characters become gigabytes; and all that a template does is
counted, and ends when it is too much.
"""

from __future__ import annotations

import json
import re
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import InvalidInput

if TYPE_CHECKING:
    from jinja2 import Template, nodes

MAX_TEMPLATE_BYTES = 256 << 10
MAX_DOCKERFILE_BYTES = 4 << 20
MAX_WORK = 64 << 20  # characters that a template handles; each step of a loop counts as so many:
STEP = 64
DEAR = 16  # what a character counts as that is split or sorted: it may become a value of its own

# What a template may ask of a value beside its keys; what pads or formats could make gigabytes of little.
_OF_TEXTS = frozenset(
    {"startswith", "endswith", "lower", "upper", "strip", "removeprefix", "removesuffix", "split"}
    | {"partition"}
)
_OF_MAPPINGS = frozenset({"items", "keys", "values", "get"})
_OF_LOOPS = frozenset({"index", "index0", "revindex", "revindex0", "first", "last", "length"})
_STATEMENTS = frozenset({"Template", "Output", "TemplateData", "For", "If"})
_EXPRESSIONS = frozenset(
    {"Name", "Const", "Getattr", "Getitem", "Slice", "List", "Tuple", "Add", "Filter", "Keyword", "Call"}
    | {"Test", "Compare", "Operand", "And", "Or", "Not", "Neg", "CondExpr"}
)
_LOOP = "turns"  # the filter that counts a loop's steps
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
            hint="overlay help template says what a template may use",
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
            hint="overlay help template lists the names a template may use",
        ) from error


def _rendered(template: Template, values: Mapping[str, Any]) -> str:
    """The text of a template, which is not made further than it may be long."""
    _work.set(MAX_WORK)
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
    from jinja2.runtime import LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"+"})

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            known = {str: _OF_TEXTS, Mapping: _OF_MAPPINGS, LoopContext: _OF_LOOPS}
            return any(attr in names for kind, names in known.items() if isinstance(obj, kind))

        def wrap_str_format(self, value: Any) -> None:
            """jinja2 makes an exception for ``format``, which can pad; there is none here."""
            return

        def call_binop(self, context: object, operator: str, left: Any, right: Any) -> Any:
            _check_size([left, right])
            return left + right

        def call(self, context: Any, obj: Any, /, *args: Any, **keywords: Any) -> Any:
            """A method of a text costs as much as the text is long."""
            _spend(DEAR * len(of) if isinstance(of := getattr(obj, "__self__", None), str) else 1)
            return super().call(context, obj, *args, **keywords)

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
    kept = ("default", "length", "first", "last")
    own = {"join": _join, "json": _json_array, "quoted": quoted, "replace": _replace, "sort": _sort}
    own |= {_LOOP: _turns}
    environment.filters = {name: environment.filters[name] for name in kept} | own
    tree = environment.parse(source)
    _check_nodes(tree)
    return environment.from_string(tree)


def _check_nodes(node: nodes.Node) -> int:
    """Refuse what is not for templates, and have each loop count its steps.

    Returns:
        How many nodes there are, those of loops inside left out: they count themselves.

    Raises:
        TemplateSyntaxError: naming the line.
    """
    from jinja2 import TemplateSyntaxError, nodes

    kind = type(node).__name__
    if kind not in _STATEMENTS | _EXPRESSIONS or (isinstance(node, nodes.For) and node.recursive):
        raise TemplateSyntaxError(f"{kind.lower()} is not available in a template", node.lineno)
    count = 1 + sum(_check_nodes(child) for child in list(node.iter_child_nodes()))
    if not isinstance(node, nodes.For):
        return count
    steps = nodes.Const(count, lineno=node.lineno)
    node.iter = nodes.Filter(node.iter, _LOOP, [steps], [], None, None, lineno=node.lineno)
    return 1


class _UnfitError(Exception):
    """A value is too large, or would have continued on a line of its own."""


_work: ContextVar[int] = ContextVar("_work", default=MAX_WORK)
"""What is left of the work that the template being rendered may do."""


def _spend(work: int) -> None:
    left = _work.get() - work
    _work.set(left)
    if left < 0:
        raise _UnfitError("it does too much: the values are too large, or the loops too long")


def _check_size(value: object) -> None:
    """Refuse a value whose text would be longer than a Dockerfile may be, or that is not a plain value."""
    from jinja2 import Undefined

    size, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if type(one) is str:  # most are
            pass
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | KeysView | ValuesView | ItemsView):
            waiting += one
        elif isinstance(one, Undefined):
            bool(one)  # says what is not defined
        elif not isinstance(one, str | int | float | None):
            raise _UnfitError(f"a {type(one).__name__} cannot be printed")
        size += len(one) if isinstance(one, str) else 1
        if size > MAX_DOCKERFILE_BYTES:
            raise _UnfitError(f"a value is longer than {MAX_DOCKERFILE_BYTES} characters")
    _spend(size)


def _finalize(value: object) -> object:
    """Every value that the template prints passes here."""
    _check_size(value)
    if isinstance(value, KeysView | ValuesView | ItemsView):
        raise _UnfitError("a list is printed with join or json")
    text = str(value)
    text.encode()  # a surrogate is not a character
    if _CONTROLS.search(text):
        raise _UnfitError(f"a value has a control character or a line break in it: {text[:80]!r}")
    if text.endswith("\\"):
        raise _UnfitError(f"a value would continue on the next line: {text[-80:]!r}; print it with quoted")
    return value


def _turns(values: Any, steps: int) -> list[Any]:
    """What a loop goes over; each turn has so many steps."""
    turns = _items(values)
    _spend(STEP * steps * (1 + len(turns)))
    return turns


def _items(values: Any) -> list[Any]:
    if isinstance(values, str):
        raise _UnfitError("a list is wanted here, and not the characters of a text")
    return list(values)


def _join(values: Any, separator: str = "", attribute: str | None = None) -> str:
    """The texts of a list, or of one key of each of its mappings, with a separator between them."""
    items = [item if attribute is None else item[attribute] for item in _items(values)]
    _check_size([*items, *([_text(separator)] * len(items))])
    return separator.join(map(str, items))


def _sort(values: Any, reverse: bool = False, attribute: str | None = None) -> list[Any]:
    """The items of a list, or its mappings by one key, texts without regard to case."""
    items = _items(values)
    keys = [item if attribute is None else item[attribute] for item in items]
    _check_size(keys)
    _spend(DEAR * sum(len(key) if isinstance(key, str) else 1 for key in keys))
    ordered = sorted(
        zip(keys, items, strict=True),
        key=lambda pair: pair[0].lower() if isinstance(pair[0], str) else pair[0],
        reverse=bool(reverse),
    )
    return [item for _, item in ordered]


def _replace(text: str, old: str, new: str) -> str:
    longer = _text(text).count(_text(old)) * max(0, len(_text(new)) - len(old))
    if len(text) + longer > MAX_DOCKERFILE_BYTES:
        raise _UnfitError(f"a value would be longer than {MAX_DOCKERFILE_BYTES} characters")
    _spend(len(text) + longer)
    return text.replace(old, new)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _UnfitError(f"a text is wanted here, and not a {type(value).__name__}")
    return value


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
