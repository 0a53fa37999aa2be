"""The server arguments that a release knows, read from its own parser's source; nothing of it is imported.

Two forms declare them: calls of ``add_argument`` with the names as literals, and annotated fields,
``tp_size: A[int, Arg(help=…, aliases=["--tensor-parallel-size"])] = 1``, of which upstream's
``add_cli_args_from_dataclass`` makes one argument each. Releases before the second form have the first alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from builder.errors import InvalidInput, UsageError

PARSER = "python/sglang/srt/server_args.py"
FIELDS = "python/sglang/srt/arg_groups/"

Takes = Literal["nothing", "one", "some", "any"]
Number = Literal["int", "float"]
_MARKERS = ("A", "Annotated")
_FLAG_ACTIONS = ("store_true", "store_false", "store_const", "count", "help", "version")


@dataclass(frozen=True)
class Known:
    """One argument of a release.

    Args:
        names: as it may be written, the usual one first.
        takes: nothing, one value, some values, or (where an action of upstream's own decides) any number.
        number: ``int`` or ``float`` where the value must be one.
        choices: the values there are, where the source lists them in place.
        required: whether a server does not start without it.
    """

    names: tuple[str, ...]
    takes: Takes
    number: Number | None = None
    choices: tuple[str, ...] = ()
    required: bool = False

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class Arguments:
    """Arguments of one server: values by the usual name, in order; no value for a flag."""

    values: Mapping[str, tuple[str, ...]]

    def first(self, name: str) -> str | None:
        """The value of an argument; None where it is not given or takes none."""
        given = self.values.get(name)
        return given[0] if given else None

    def number(self, name: str, otherwise: int) -> int:
        """The value of an argument that is checked to be an integer."""
        said = self.first(name)
        return otherwise if said is None else int(said)

    def has(self, name: str) -> bool:
        return name in self.values

    def words(self) -> list[str]:
        """As a command line has them."""
        return [word for name, given in self.values.items() for word in (name, *given)]


@dataclass(frozen=True)
class Parser:
    """All arguments of a release."""

    release: str
    known: tuple[Known, ...]

    def find(self, name: str) -> Known:
        """The argument with this name or alias, or with the only name that begins so, as argparse has it.

        Raises:
            UsageError: the release has none, with the nearest one; or several begin so.
        """
        names = {alias: known for known in self.known for alias in known.names}
        begun = [alias for alias in names if alias.startswith(name)] if name not in names else []
        if len({names[alias] for alias in begun}) > 1:
            raise UsageError(
                "several server arguments begin so",
                where=f"sglang {self.release}",
                expected=", ".join(begun[:8]),
                found=name,
            )
        if begun:
            return names[begun[0]]
        if name not in names:
            near = get_close_matches(name, names, n=1)
            raise UsageError(
                "the release does not know this server argument",
                where=f"sglang {self.release}",
                found=name,
                hint=f"did you mean {near[0]}?" if near else "see python3 -m sglang.launch_server --help",
            )
        return names[name]

    def read(self, words: Sequence[str]) -> Arguments:
        """Check a command line's words.

        Raises:
            UsageError: an argument is not known, or its values are not what it takes.
        """
        values: dict[str, tuple[str, ...]] = {}
        position = 0
        while position < len(words):
            name, equals, attached = words[position].partition("=")
            if not name.startswith("--"):
                raise UsageError(
                    "a value without an argument before it", where="server arguments", found=name
                )
            known = self.find(name)
            position += 1
            given = [attached] if equals else []
            while not equals and position < len(words) and not _is_name(words[position]):
                if known.takes in ("nothing", "one") and len(given) == (known.takes == "one"):
                    break
                given.append(words[position])
                position += 1
            _check_values(known, name, given)
            # Names such as --no-x are arguments of their own, and say more than the usual name.
            values[name if name.startswith("--no-") else known.name] = tuple(given)
        return Arguments(values)

    def check_required(self, arguments: Arguments) -> None:
        """Raise :class:`UsageError` where an argument is missing without which no server starts."""
        for known in self.known:
            if known.required and not arguments.has(known.name):
                raise UsageError(
                    "the server does not start without this argument",
                    where=f"sglang {self.release}",
                    expected=known.name,
                    hint=f"give it after --: overlay launch … -- {known.name} VALUE",
                )


def merged(*several: Arguments) -> Arguments:
    """Arguments of which later ones replace earlier ones."""
    values: dict[str, tuple[str, ...]] = {}
    for one in several:
        values |= one.values
    return Arguments(values)


def parser_files(paths: Iterable[str]) -> list[str]:
    """Those of a source tree's paths that declare server arguments."""
    return sorted(
        path for path in paths if path == PARSER or (path.startswith(FIELDS) and path.endswith(".py"))
    )


def read_parser(release: str, files: Mapping[str, bytes]) -> Parser:
    """The arguments that these sources declare.

    Args:
        release: for messages.
        files: by path in the source tree, see :func:`parser_files`.

    Raises:
        InvalidInput: the sources declare none, or are not Python.
    """
    known: dict[str, Known] = {}
    for path, data in sorted(files.items()):
        try:
            tree = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise InvalidInput("source cannot be read", where=path, found=str(error)) from error
        for one in _declared(tree):
            known.setdefault(one.name, one)
    if not known:
        raise InvalidInput(
            "the release declares no server arguments where they are looked for",
            where=f"sglang {release}",
            expected=f"{PARSER} and {FIELDS}",
            found=", ".join(files) or "no such files",
        )
    return Parser(release, tuple(known.values()))


def _declared(tree: ast.AST) -> Iterator[Known]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "add_argument" and (one := _from_call(node)):
                yield one
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and (one := _from_field(item)):
                    yield one


# --- add_argument("--name", …) ------------------------------------------------------------------------------


def _from_call(call: ast.Call) -> Known | None:
    names = tuple(_strings(call.args))
    if not names or not names[0].startswith("--"):
        return None
    said = {keyword.arg: keyword.value for keyword in call.keywords}
    action = said.get("action")
    required = _constant(said.get("required")) is True
    if action is not None:
        return _with_action(names, action)
    takes = _takes(_constant(said.get("nargs")))
    kind = said.get("type")
    number = _number(kind.id) if isinstance(kind, ast.Name) else None
    return Known(names, takes, number, _choices(said.get("choices")), required)


def _with_action(names: tuple[str, ...], action: ast.expr) -> Known:
    if _constant(action) in _FLAG_ACTIONS:
        return Known(names, "nothing")
    if _constant(action) in ("store", "append", "extend"):
        return Known(names, "some")
    if ast.unparse(action).endswith("BooleanOptionalAction"):
        return Known((*names, *("--no-" + name.removeprefix("--") for name in names)), "nothing")
    return Known(names, "any")


# --- name: A[type, Arg(…)] = default ------------------------------------------------------------------------


def _from_field(field: ast.AnnAssign) -> Known | None:
    match field.annotation:
        case ast.Subscript(value=ast.Name(id=marker), slice=ast.Tuple(elts=[kind, *notes])) if (
            marker in _MARKERS and isinstance(field.target, ast.Name)
        ):
            said = _metadata(notes)
            if said is None or _constant(said.get("no_cli")) is True:
                return None
            return _field_argument(field.target.id, kind, said, has_default=field.value is not None)
    return None


def _metadata(notes: Sequence[ast.expr]) -> dict[str | None, ast.expr] | None:
    """What a field's note says: that of ``Arg(…)``; of help alone, nothing; None where there is no note."""
    for note in notes:
        if isinstance(note, ast.Call) and isinstance(note.func, ast.Name) and note.func.id == "Arg":
            return {keyword.arg: keyword.value for keyword in note.keywords}
        if isinstance(note, ast.JoinedStr) or isinstance(_constant(note), str):
            return {}
    return None


def _field_argument(
    field: str, kind: ast.expr, said: Mapping[str | None, ast.expr], *, has_default: bool
) -> Known:
    name = _constant(said.get("cli_name")) or "--" + field.replace("_", "-")
    aliases = said.get("aliases")
    names = (str(name), *_strings(aliases.elts if isinstance(aliases, (ast.List, ast.Tuple)) else ()))
    if "action" in said:
        return _with_action(names, said["action"])
    kind = _without_optional(kind)
    required = _constant(said.get("required"))
    required = not has_default if required is None else required is True
    text = ast.unparse(kind)
    literal = kind.slice if isinstance(kind, ast.Subscript) and text.startswith("Literal[") else None
    choices = _choices(said.get("choices")) or _choices(literal)
    if text.startswith(("List[", "list[")) and "type_parser" not in said:
        return Known(names, _takes(_constant(said.get("nargs")) or "+"), None, choices, required)
    if text == "bool":
        return Known(names, "nothing")
    number = _number(text) if "type_parser" not in said else None
    takes = _takes(_constant(said.get("nargs")))
    return Known(names, takes, number, choices, required)


def _without_optional(kind: ast.expr) -> ast.expr:
    """``X`` of ``Optional[X]`` and ``X | None``."""
    match kind:
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return inner
        case ast.BinOp(left=inner, op=ast.BitOr(), right=ast.Constant(value=None)):
            return inner
    return kind


# --- values -------------------------------------------------------------------------------------------------


def _number(text: str) -> Number | None:
    """The kind of number that a type's name stands for."""
    return "int" if text == "int" else "float" if text == "float" else None


def _takes(nargs: object) -> Takes:
    if nargs is None or nargs == 1:
        return "one"
    return "any" if nargs in ("?", "*", "...") else "some"


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _strings(nodes: Iterable[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(value := _constant(node), str):
            yield value


def _choices(node: ast.expr | None) -> tuple[str, ...]:
    """Choices written in place; a list under a name may be extended when the server starts."""
    elements = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node] if node is not None else []
    if not elements or not all(isinstance(element, ast.Constant) for element in elements):
        return ()
    return tuple(str(_constant(element)) for element in elements if _constant(element) is not None)


def _is_name(word: str) -> bool:
    """Whether a word starts the next argument; a negative number is a value."""
    return word.startswith("--") and len(word) > 2


def _check_values(known: Known, name: str, given: Sequence[str]) -> None:
    expected = {"nothing": "no value", "one": "one value", "some": "at least one value"}
    wrong = {"nothing": len(given) != 0, "one": len(given) != 1, "some": not given, "any": False}
    if wrong[known.takes]:
        raise UsageError(
            "a server argument has not the values that it takes",
            where=name,
            expected=expected[known.takes],
            found=" ".join(given) or "none",
        )
    for value in given:
        if known.choices and value not in known.choices:
            raise UsageError(
                "a server argument has not one of its values",
                where=name,
                expected=", ".join(known.choices),
                found=value,
            )
        if known.number and not _is_number(value, known.number):
            raise UsageError(
                "a server argument is not a number",
                where=name,
                expected="an integer" if known.number == "int" else "a number",
                found=value,
            )


def _is_number(value: str, kind: str) -> bool:
    try:
        int(value) if kind == "int" else float(value)
    except ValueError:
        return False
    return True
