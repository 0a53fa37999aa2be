"""``Dockerfile.in`` rendered to a Dockerfile: sandboxed, nothing undefined, no value leaves its line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import InvalidInput

if TYPE_CHECKING:
    from jinja2 import Template

MAX_TEMPLATE_BYTES = 256 << 10
MAX_DOCKERFILE_BYTES = 4 << 20


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


def quoted(value: object) -> str:
    """A value in double quotes, as ENV and LABEL read it; quotes, backslashes and ``$`` mean themselves."""
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
        text = _compiled(source).render(values)
    except TemplateSyntaxError as error:
        raise InvalidInput(
            "template is not valid", where=f"{path}, line {error.lineno}", found=error.message
        ) from error
    except (TemplateError, _LineBreakError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise InvalidInput(
            "template cannot be rendered",
            where=f"{path}, line {_line_of(error)}",
            found=str(error),
            hint="docs/template.md lists the names a template may use",
        ) from error
    if len(text) > MAX_DOCKERFILE_BYTES:
        raise InvalidInput(
            "rendered Dockerfile is too large", where=str(path), found=f"{len(text)} characters"
        )
    return text


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    """A template in its sandbox; a run that renders it for many images compiles it once."""
    from jinja2 import DictLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        # A product, a power or a format with a width could be a string of gigabytes.
        intercepted_binops = frozenset({"*", "**", "%"})

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            if isinstance(obj, str) and attr not in _TEXT_METHODS:
                return False
            return super().is_safe_attribute(obj, attr, value)

        def call_binop(self, context: object, operator: str, left: object, right: object) -> object:
            raise ArithmeticError(f"operator {operator} is not available")

    environment = Sandbox(
        loader=DictLoader({}),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=_finalize,
    )
    environment.globals.clear()
    environment.filters = {
        name: environment.filters[name] for name in ("join", "length", "sort", "replace", "first", "last")
    } | {"json": _json_array, "quoted": quoted}
    return environment.from_string(source)


class _LineBreakError(Exception):
    """A value would have continued on a line of its own."""


def _finalize(value: object) -> object:
    """Every value that the template prints passes here."""
    text = str(value)
    if any(ord(char) < 32 or ord(char) in (0x7F, 0x85, 0x2028, 0x2029) for char in text):
        raise _LineBreakError(f"a value has a control character or a line break in it: {text[:80]!r}")
    return value


def _json_array(value: object) -> str:
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
