"""What a probe is written with. Standard library only: probes run in a process of their own.

A probe is a file ``patches/probes/NAME.py`` with one function::

    from builder.probe.harness import Answer, Tree

    def probe(tree: Tree) -> Answer: ...

It finds its site (:func:`locate`), runs the real source with stand-ins for what is outside of it
(:class:`Program`), and answers by what the source did. ``docs/probes.md`` teaches it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol

State = Literal["defect", "fixed", "absent", "unknown"]


@dataclass(frozen=True)
class Answer:
    """What a probe found.

    Args:
        state: ``defect``, ``fixed``, ``absent`` (the place is there and does nothing of the kind) or
            ``unknown`` (cannot tell).
        evidence: one line with figures that says why.
        pins: distributions whose pinned version the answer hangs on (``flashinfer-python``).
        site: of ``absent``, the place that was looked at, ``PATH:NAME``.
        was_ended: a limit of time or memory, or this machine, ended the probe: another one may have another
            answer, so that this one is not kept.
    """

    state: State
    evidence: str
    pins: tuple[str, ...] = ()
    site: str = ""
    was_ended: bool = field(default=False, compare=False)


class Tree(Protocol):
    """A source tree, by paths relative to the repository's root (``python/sglang/...``)."""

    def read(self, path: str) -> bytes:
        """The file's bytes; :class:`KeyError` when it is not there."""
        ...

    def __contains__(self, path: str) -> bool: ...

    def paths(self, prefix: str = "") -> Iterable[str]:
        """Every path that starts with ``prefix``, sorted."""
        ...

    def grep(self, text: bytes, prefix: str = "") -> list[str]:
        """The paths below ``prefix`` whose bytes contain ``text``, sorted."""
        ...


class CannotTell(BaseException):
    """The probe met something that it does not know; becomes the answer ``unknown``.

    Not an :class:`Exception`, so that an ``except Exception`` of the source under test cannot hide it.
    """


def defect(evidence: str, *pins: str) -> Answer:
    """The answer ``defect``."""
    return Answer("defect", evidence, pins)


def fixed(evidence: str, *pins: str) -> Answer:
    """The answer ``fixed``."""
    return Answer("fixed", evidence, pins)


def absent(evidence: str, site: str = "", *pins: str) -> Answer:
    """The answer ``absent``: the place where the site was is there, and nothing is done in it.

    A name that is not found is no such place: it may be called something else now. That is ``unknown``, and
    so becomes an ``absent`` whose place the tree does not have.

    Args:
        evidence: what the place does instead.
        site: the place that was found and looked at: ``PATH:NAME``, of a definition (``Class.method``) or of
            a name that the module binds; ``PATH`` alone for a file that is not Python.
    """
    return Answer("absent", evidence, pins, site)


def unknown(why: str, *pins: str) -> Answer:
    """The answer ``unknown``."""
    return Answer("unknown", why, pins)


def ended(how: str) -> Answer:
    """The answer ``unknown`` of a probe that a limit or the machine ended."""
    return Answer("unknown", f"the probe {how}", was_ended=True)


def ask(probe: Callable[[Tree], Answer], tree: Tree) -> Answer:
    """Run ``probe`` here; whatever goes wrong in it is the answer ``unknown`` with the reason."""
    try:
        answer = probe(tree)
    except KeyboardInterrupt:
        raise
    except CannotTell as why:
        return unknown(str(why))
    except MemoryError as error:
        return ended(f"stopped: {describe(error)}")
    except BaseException as error:
        return unknown(f"the probe stopped: {describe(error)}")
    if not isinstance(answer, Answer):
        return unknown(f"the probe returned {type(answer).__name__}, not an Answer")
    if answer.state == "absent" and (lacking := _missing_site(tree, answer.site)):
        return unknown(
            f"{answer.evidence} ({lacking}: a name that is not found is not a defect that is gone)"
        )
    return answer


def _missing_site(tree: Tree, site: str) -> str:
    """Why ``site`` is not a place that can be looked at in the tree; empty when it is one."""
    if not site:
        return "the probe names no place where it looked"
    path, _, name = site.partition(":")
    if path not in tree:
        return f"{path} is not in the tree"
    if not path.endswith(".py"):
        return ""
    try:
        module = parse(tree, path)
    except CannotTell as why:
        return str(why)
    bound = {found for statement in module.body for found in _names_bound(statement)}
    there = bool(name) and (name in bound or definition(module, name) is not None)
    return "" if there else f"{path} has no {name or 'definition that was named'}"


def describe(error: BaseException) -> str:
    """An exception in one line: kind, message, and the innermost line of probe or source it came from."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(("/", "<")):  # paths of ours and of the standard library are absolute
            place = f" ({file}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"


# --- finding the site -------------------------------------------------------------------------------


def locate(tree: Tree, hints: Sequence[str], text: bytes, prefix: str = "python/sglang/") -> str | None:
    """The path of the one file that holds ``text``: the first of ``hints`` that does, else by searching.

    Args:
        hints: where it was in the releases known so far, so that the search is rarely needed.
        text: what makes the site what it is, e.g. ``b"class MessageQueue"``.

    Returns:
        ``None`` when no file below ``prefix`` holds it.

    Raises:
        CannotTell: several files hold it and none of them is a hint.
    """
    for path in hints:
        if path in tree and text in tree.read(path):
            return path
    found = [path for path in tree.grep(text, prefix) if path.endswith(".py")]
    if len(found) > 1:
        raise CannotTell(
            f"{text.decode(errors='replace')!r} is in {len(found)} files: {', '.join(found[:4])}"
        )
    return found[0] if found else None


def module_name(path: str) -> str:
    """``python/sglang/srt/x.py`` as ``sglang.srt.x``."""
    return path.removeprefix("python/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@functools.lru_cache(maxsize=256)
def _parsed(path: str, data: bytes) -> ast.Module:
    return ast.parse(data, path)


def parse(tree: Tree, path: str) -> ast.Module:
    """The syntax tree of a file: the same one each time, so it is for reading.

    Raises:
        CannotTell: the file is not there, or this Python cannot parse it.
    """
    try:
        return _parsed(path, tree.read(path))
    except KeyError:
        raise CannotTell(f"{path} is not in the tree") from None
    except (SyntaxError, ValueError) as error:
        raise CannotTell(f"{path} does not parse: {error}") from error


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(node: ast.AST, inside: str = "") -> Iterator[tuple[str, Definition]]:
    """Every function and class below ``node`` with its dotted name (``MessageQueue.__init__``)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            name = f"{inside}.{child.name}" if inside else child.name
            yield name, child
            yield from definitions(child, name)
        else:
            yield from definitions(child, inside)


def definition(node: ast.AST, name: str) -> Definition | None:
    """The last function or class with this dotted name, which is the one that Python uses."""
    found = [found for dotted, found in definitions(node) if dotted == name]
    return found[-1] if found else None


def names_in(node: ast.AST) -> set[str]:
    """Every name and attribute that ``node`` mentions."""
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    return names | {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}


def strings_in(node: ast.AST) -> set[str]:
    """Every string constant below ``node``."""
    return {c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}


# --- stand-ins --------------------------------------------------------------------------------------


class OpaqueBase:
    """The base of a class whose real base is outside of the tree (``nn.Module``)."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Takes any options (``class A(msgspec.Struct, frozen=True)``)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


_LAZY_ANNOTATIONS = annotations.compiler_flag  # annotations name much that is outside of the tree
_PLAIN = (type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)


class Opaque:
    """Something outside of the tree of which only the name is known.

    It can be handed round, called, indexed and computed with, which gives further opaque values, and
    it can be a base class, a decorator or a context manager. As soon as the source *decides* by it (its
    truth, length, number, items), the probe cannot tell and says so. Attributes that matter are given.

    Args:
        name: how it is called in evidence.
        attributes: the attributes that are known, by name.
    """

    def __init__(self, name: str, **attributes: Any) -> None:
        object.__setattr__(self, "_opaque_name", name)
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        child = Opaque(f"{self._opaque_name}.{name}")
        self.__dict__[name] = child
        return child

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType | type):
            return args[0]  # used as a decorator
        return Opaque(f"{self._opaque_name}(...)")

    def __getitem__(self, key: object) -> Opaque:
        return Opaque(f"{self._opaque_name}[...]")

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __enter__(self) -> Opaque:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (OpaqueBase,)

    def __instancecheck__(self, value: object) -> bool:
        if not isinstance(value, _PLAIN):
            self._cannot(f"whether a {type(value).__name__} is a")
        return False

    def __subclasscheck__(self, other: type) -> bool:
        return other is OpaqueBase or self._cannot("the subclasses of")

    def _cannot(self, question: str) -> NoReturn:
        raise CannotTell(f"the source asks {question} {self._opaque_name}, which is outside of the tree")

    def __bool__(self) -> bool:
        self._cannot("the truth of")

    def __len__(self) -> int:
        self._cannot("the length of")

    def __iter__(self) -> Iterator[Any]:
        self._cannot("the items of")

    def __contains__(self, item: object) -> bool:
        self._cannot("what is in")

    def __index__(self) -> int:
        self._cannot("the number")

    __int__ = __index__

    def __float__(self) -> float:
        self._cannot("the number")

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<{self._opaque_name}>"


class Instance(Opaque):
    """An object of a class of the tree that was never made: its methods are the real ones.

    Args:
        of: the class, as :class:`Program` gives it.
        attributes: the attributes that are known, by name; the others are opaque.
    """

    def __init__(self, of: type, **attributes: Any) -> None:
        super().__init__(of.__name__, **attributes)
        object.__setattr__(self, "_opaque_class", of)

    def __getattr__(self, name: str) -> Any:
        found = inspect.getattr_static(self._opaque_class, name, None)
        if isinstance(found, types.FunctionType | staticmethod | classmethod | property):
            return found.__get__(self, self._opaque_class)
        return super().__getattr__(name)


def _computed(self: Opaque, *others: object) -> Opaque:
    return Opaque(f"a value computed from {self._opaque_name}")


_OPERATORS = (
    *("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "invert", "abs", "round"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv"),
    *("mod", "rmod", "pow", "rpow", "matmul", "rmatmul", "lshift", "rlshift", "rshift", "rrshift"),
    *("and", "rand", "or", "ror", "xor", "rxor"),
)
for _operator in _OPERATORS:
    setattr(Opaque, f"__{_operator}__", _computed)


# --- running the source -----------------------------------------------------------------------------


_PACKAGE = "sglang"


def _is_of_the_tree(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


class Program:
    """The tree as a program that is run piece by piece: only what is asked for is executed.

    A module of the tree is a :class:`SourceModule`; reading one of its names executes the top-level
    statements that bind it, and what they need, in any module of the tree. The standard library is real;
    everything else (torch, triton, sgl_kernel) is :class:`Opaque`.

    Args:
        tree: where the source is.
        stubs: stand-ins. A bare name (``is_hip``, ``torch``) is that global in every module of the tree,
            and that top-level module; a dotted name is one module or one module's attribute
            (``torch.cuda.is_available``, ``sglang.srt.utils.network.get_open_port``). ``None`` for a
            module makes its import fail.
    """

    def __init__(self, tree: Tree, stubs: Mapping[str, object] | None = None) -> None:
        self.tree = tree
        self.stubs = dict(stubs or {})
        self._modules: dict[str, SourceModule | None] = {}
        self.builtins = dict(vars(builtins)) | {"__import__": self._import}

    def module(self, name_or_path: str) -> SourceModule:
        """The module with this dotted name or path.

        Raises:
            CannotTell: it is not in the tree.
        """
        name = module_name(name_or_path) if name_or_path.endswith(".py") else name_or_path
        module = self._find(name)
        if module is None:
            raise CannotTell(f"{name_or_path} is not in the tree")
        return module

    def _find(self, name: str) -> SourceModule | None:
        if name not in self._modules:
            base = "python/" + name.replace(".", "/")
            candidates = (f"{base}.py", f"{base}/__init__.py") if _is_of_the_tree(name) else ()
            path = next((path for path in candidates if path in self.tree), None)
            if path is None and candidates and any(True for _ in self.tree.paths(f"{base}/")):
                path = ""  # a package without __init__.py
            self._modules[name] = None if path is None else SourceModule(self, name, path)
        return self._modules[name]

    def _import(
        self,
        name: str,
        variables: Mapping[str, Any] | None = None,
        local: object = None,
        wanted: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        if level:
            package = str((variables or {})["__package__"]).split(".")
            name = ".".join(package[: len(package) - level + 1] + ([name] if name else []))
        if wanted:
            return self._load(name)
        self._load(name)
        return self._load(name.partition(".")[0])

    def _load(self, name: str) -> object:
        if name in self.stubs:
            if self.stubs[name] is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return self.stubs[name]
        top = name.partition(".")[0]
        source = self._find(name)
        if source is not None:
            return source
        if _is_of_the_tree(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if top in sys.stdlib_module_names:
            return importlib.import_module(name)
        return self._outside(name)

    def _outside(self, name: str) -> Opaque:
        known: dict[str, Any] = {}
        for key, value in self.stubs.items():
            if key.startswith(f"{name}."):
                attribute, _, rest = key[len(name) + 1 :].partition(".")
                known[attribute] = self._outside(f"{name}.{attribute}") if rest else value
        return Opaque(name, **known)


class _Globals(dict[str, Any]):
    """A module's variables, bound when they are first read (CPython asks ``__missing__`` of a subclass)."""

    def __init__(self, module: SourceModule) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Any:
        return self._module.bind(name)


class SourceModule(types.ModuleType):
    """A module of the tree whose top-level statements run when a name they bind is read.

    Expression statements (``register(...)``) never run: nothing is bound by them.
    """

    def __init__(self, program: Program, name: str, path: str) -> None:
        super().__init__(name)
        self._program = program
        self._path = path
        is_package = not path or path.endswith("/__init__.py")
        self._is_package = is_package
        self._globals = _Globals(self)
        self._globals.update(
            __name__=name,
            __package__=name if is_package else name.rpartition(".")[0],
            __file__=path,
            __builtins__=program.builtins,
        )
        self._binders: dict[str, list[ast.stmt]] | None = None
        self._stars: list[ast.ImportFrom] = []
        self._started: set[int] = set()
        sys.modules.setdefault(name, types.ModuleType(name))  # where dataclasses look for a class's module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        try:
            return self._globals[name]
        except KeyError:
            pass
        submodule = self._program._find(f"{self.__name__}.{name}") if self._is_package else None
        if submodule is not None:
            return submodule
        dynamic = self._bound("__getattr__")
        if dynamic is not None:
            return dynamic(name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def bind(self, name: str) -> Any:
        """Run what binds the global ``name`` and return its value; :class:`KeyError` when nothing does."""
        stubs = self._program.stubs
        for key in (f"{self.__name__}.{name}", name):
            if key in stubs and not name.startswith("__"):
                return self._globals.setdefault(name, stubs[key])
        value = self._bound(name)
        if value is None and name not in self._globals:
            value = self._from_star(name)
        return value

    def evaluate(self, expression: ast.expr, local: Mapping[str, Any]) -> Any:
        """The value of an expression of the module, with these local variables."""
        names = [
            ast.arg(name) for name in local
        ]  # in a function, since only there globals are bound when read
        body = ast.Lambda(ast.arguments([], names, kwonlyargs=[], kw_defaults=[], defaults=[]), expression)
        whole = ast.fix_missing_locations(ast.Expression(body))
        code = compile(whole, self._path, "eval", _LAZY_ANNOTATIONS, dont_inherit=True)
        return eval(code, self._globals)(**local)  # noqa: S307 - as in _run

    def _bound(self, name: str) -> Any:
        for statement in self._index().get(name, ()):
            self._run(statement)
        return self._globals.get(name)

    def _run(self, statement: ast.stmt) -> None:
        if id(statement) in self._started:
            return
        self._started.add(id(statement))
        for name in _names_of_class_bodies(statement):
            if name not in self._globals and name not in self._program.builtins:
                with contextlib.suppress(KeyError):
                    self.bind(name)
        code = compile(ast.Module([statement], []), self._path, "exec", _LAZY_ANNOTATIONS, dont_inherit=True)
        try:
            exec(code, self._globals)  # noqa: S102 - what a probe is for; builder.probe.sandbox has the walls
        except BaseException:
            self._started.discard(id(statement))  # asked again, it must fail for the same reason
            raise

    def _from_star(self, name: str) -> Any:
        if name.startswith("_"):
            raise KeyError(name)
        for statement in self._stars:
            origin = self._program._import(
                statement.module or "", self._globals, None, ("*",), statement.level
            )
            if isinstance(origin, Opaque):
                continue
            try:
                return self._globals.setdefault(name, getattr(origin, name))
            except AttributeError:
                continue
        raise KeyError(name)

    def _index(self) -> dict[str, list[ast.stmt]]:
        if self._binders is None:
            self._binders = {}
            body = parse(self._program.tree, self._path).body if self._path else []
            for statement in (piece for whole in body for piece in _pieces(whole)):
                if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                    self._stars.append(statement)
                for name in _names_bound(statement):
                    self._binders.setdefault(name, []).append(statement)
        return self._binders


def _pieces(statement: ast.stmt) -> Iterator[ast.stmt]:
    """An import of several names as one import a name, so that each is brought in only when it is read."""
    if isinstance(statement, ast.ImportFrom) and statement.module != "__future__":
        for alias in statement.names:
            piece = ast.ImportFrom(statement.module, [alias], statement.level)
            yield ast.copy_location(piece, statement)
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            yield ast.copy_location(ast.Import([alias]), statement)
    elif not isinstance(statement, ast.ImportFrom):
        yield statement


def _names_bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds in its module."""
    if isinstance(node, Definition):
        yield node.name
        return
    if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name
    for child in ast.iter_child_nodes(node):
        yield from _names_bound(child)


def _names_of_class_bodies(node: ast.AST, inside: bool = False) -> Iterator[str]:
    """The names read while a class body runs: CPython does not ask ``__missing__`` for those."""
    if isinstance(node, ast.Name) and inside:
        yield node.id
    parts: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parts = [*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)]
    elif isinstance(node, ast.AnnAssign):
        parts = [part for part in (node.target, node.value) if part]
    for part in parts:
        yield from _names_of_class_bodies(part, inside or isinstance(node, ast.ClassDef))


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Run with exactly these environment variables."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def call(function: Callable[..., Any], **known: Any) -> Any:
    """Call ``function`` with those of the ``known`` arguments that it has parameters for.

    Raises:
        CannotTell: it wants an argument that is not known.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return function(**known)
    wanted = [p for p in parameters if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = [p.name for p in wanted if p.default is inspect.Parameter.empty and p.name not in known]
    if missing:
        raise CannotTell(f"{function.__name__} wants {', '.join(missing)}, which this probe does not know")
    return function(**{p.name: known[p.name] for p in wanted if p.name in known})
