"""What a kernel written in tilelang computes: its body run block by block on numbers. Standard library only.

The blocks of the grid run one after the other; in a ``T.Parallel`` loop, each statement runs for all indices
before the next does. Numbers are not rounded to element types. A read beyond an operand is 0 and a write
there is dropped, as in tilelang's own pass for safe memory access. A block's own memory starts as NaN: it may
hold anything. Whatever this does not know (barriers, threads that go their own way, views) makes it stop: the
probe cannot tell.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.probe.harness import CannotTell, Opaque

BLOCKS_LIMIT = 1024
"""Blocks of one grid that are run before a probe gives up."""


# --- numbers ----------------------------------------------------------------------------------------


class Node:
    """A number for every index of the loops around it, put together by Python's operators."""

    def parts(self) -> Sequence[Node]:
        """What it is computed from."""
        return ()

    def code(self, emit: _Emit) -> str:
        """Itself as an expression of Python."""
        raise NotImplementedError

    def value(self) -> Any:
        """The number, where no loop is in it."""
        if any(isinstance(node, Axis) for node in _walk(self)):
            raise CannotTell("a kernel's structure hangs on the index of a parallel loop")
        emit = _Emit()
        return _compiled(f"return {self.code(emit)}", len(emit.values))(*emit.values)

    def astype(self, *_: object) -> Node:
        """Itself: numbers are not rounded to element types."""
        return self

    def __divmod__(self, other: object) -> tuple[Node, Node]:
        return Call("//", self, other), Call("%", self, other)

    def __index__(self) -> int:
        return int(self.value())

    __int__ = __index__

    def __bool__(self) -> bool:
        return bool(self.value())

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CannotTell(f"a kernel asks for .{name} of a number, which this probe does not know")


class Axis(Node):
    """The index of a parallel loop."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size

    def code(self, emit: _Emit) -> str:
        return f"i{self.number}"


class Constant(Node):
    def __init__(self, number: Any) -> None:
        self.number = number

    def code(self, emit: _Emit) -> str:
        return emit.name(self.number)


class Symbol(Node):
    """A size that is known once the kernel is called."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size: int | None = None

    def code(self, emit: _Emit) -> str:
        if self.size is None:
            raise CannotTell(f"a kernel's structure hangs on {self.name}, which no operand's shape has")
        return emit.name(self.size)


class Load(Node):
    """An element of an array; also the place where a region begins."""

    def __init__(self, array: Array, index: tuple[Node, ...]) -> None:
        self.array, self.index = array, index

    def parts(self) -> Sequence[Node]:
        return self.index

    def code(self, emit: _Emit) -> str:
        if _within(self.array, self.index):
            return f"{emit.name(self.array.data)}[{_flat(self.array, self.index, emit)}]"
        if not self.array.guarded or len(self.index) != len(self.array.shape):
            return f"{emit.name(self.array.get)}({', '.join(part.code(emit) for part in self.index)})"
        unsure, places = [], []
        for part, size, step in zip(self.index, self.array.shape, self.array.strides, strict=True):
            text = part.code(emit)
            if not _in_range(part, size):
                place = emit.place()
                unsure.append(f"0 <= ({place} := {text}) < {size}")
                text = place
            places.append(f"{text} * {step}")
        return f"({emit.name(self.array.data)}[{' + '.join(places)}] if {' and '.join(unsure)} else 0)"


class Call(Node):
    """An operator or a function of :data:`_FUNCTIONS` and what it is given."""

    def __init__(self, function: str, *arguments: object) -> None:
        self.function, self.arguments = function, tuple(_node(argument) for argument in arguments)

    def parts(self) -> Sequence[Node]:
        return self.arguments

    def code(self, emit: _Emit) -> str:
        codes = [argument.code(emit) for argument in self.arguments]
        if self.function == "where":
            return f"({codes[1]} if {codes[0]} else {codes[2]})"
        if self.function in _FUNCTIONS:
            return f"{self.function}({', '.join(codes)})"
        return f"({f' {self.function} '.join(codes) if len(codes) > 1 else self.function + codes[0]})"


_BINARY = {
    **{"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="},
    **{"add": "+", "sub": "-", "mul": "*", "mod": "%", "floordiv": "//", "truediv": "divided"},
    **{"and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>"},
}


def _operator(sign: str, swapped: bool) -> Callable[[Node, object], Node]:
    return lambda self, other: Call(sign, other, self) if swapped else Call(sign, self, other)


for _name, _sign in _BINARY.items():
    setattr(Node, f"__{_name}__", _operator(_sign, False))
    setattr(Node, f"__r{_name}__", _operator(_sign, True))
for _name, _sign in {"neg": "-", "pos": "+", "invert": "~", "abs": "abs"}.items():
    setattr(Node, f"__{_name}__", functools.partialmethod(lambda self, sign: Call(sign, self), _sign))


def _divided(a: Any, b: Any) -> float:
    if b:
        return float(a / b)
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a)


def _exp2(x: float) -> float:
    return math.inf if x > 1023 else 2.0**x


def _log2(x: float) -> float:
    return math.log2(x) if x > 0 else (-math.inf if x == 0 else math.nan)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "divided": _divided,
    "exp2": _exp2,
    "exp": lambda x: _exp2(x * math.log2(math.e)),
    "log2": _log2,
    "log": lambda x: _log2(x) * math.log(2),
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "abs": abs,
    "max": max,
    "min": min,
    "clamp": lambda x, low, high: min(max(x, low), high),
    "ceildiv": lambda a, b: -(-a // b),
    "where": lambda condition, yes, no: yes if condition else no,
}
_IGNORED = frozenset({"use_swizzle", "annotate_layout", "annotate_l2_hit_ratio", "sync_threads", "assume"})
"""What a kernel tells the compiler, without a bearing on what comes out."""


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts():
        yield from _walk(part)


def _node(value: object) -> Node:
    if isinstance(value, Node):
        return value
    if isinstance(value, int | float):
        return Constant(value)
    raise CannotTell(f"a kernel computes with {type(value).__name__}, which this probe does not know")


class _Emit:
    """Names for what an expression holds, so that the same statement of another block is the same code."""

    def __init__(self) -> None:
        self.values: list[Any] = []

        self._places = 0

    def name(self, value: Any) -> str:
        self.values.append(value)
        return f"p{len(self.values) - 1}"

    def place(self) -> str:
        """A name for something that is computed once and read twice."""
        self._places += 1
        return f"w{self._places}"


@functools.lru_cache(maxsize=1024)
def _compiled(body: str, parameters: int) -> Callable[..., Any]:
    names = ", ".join(f"p{number}" for number in range(parameters))
    scope: dict[str, Any] = dict(_FUNCTIONS)
    exec(f"def statement({names}):\n    {body}\n", scope)  # noqa: S102 - our own text, of operators and names
    statement: Callable[..., Any] = scope["statement"]
    return statement


Block = list[tuple[int, int]]
"""The first index and the size along every axis."""


def _indices(block: Block) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(start, start + size) for start, size in block))


# --- memory -----------------------------------------------------------------------------------------


class Array:
    """Numbers in row-major order.

    Args:
        shape: its sizes.
        data: the numbers, or the one that it starts with.
        dtype: its element type, for the source that asks.
        loops: sizes of the parallel loops that are open when it is written to.
        guarded: whether what lies beyond is 0, as of an operand; a kernel's own memory has no beyond.
    """

    def __init__(
        self, shape: Sequence[int], data: Any, dtype: object, loops: list[int], *, guarded: bool = False
    ) -> None:
        self.shape = tuple(shape)
        self.data: list[Any] = data if isinstance(data, list) else [data] * math.prod(self.shape)
        self.dtype, self._loops, self.guarded = dtype, loops, guarded
        self.strides = tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    def get(self, *index: int) -> Any:
        """A number."""
        place = self._place(index)
        return 0 if place is None else self.data[place]

    def put(self, value: Any, *index: int) -> None:
        """Write a number."""
        place = self._place(index)
        if place is not None:
            self.data[place] = value

    def taken(self, block: Block) -> list[Any]:
        """The numbers of a part, in order."""
        if places := self._places(block):
            return [number for place, length in places for number in self.data[place : place + length]]
        return [self.get(*index) for index in _indices(block)]

    def filled(self, block: Block, numbers: Sequence[Any]) -> None:
        """Write a part, in order."""
        if places := self._places(block):
            for count, (place, length) in enumerate(places):
                self.data[place : place + length] = numbers[count * length : (count + 1) * length]
        else:
            for index, number in zip(_indices(block), numbers, strict=True):
                self.put(number, *index)

    def _places(self, block: Block) -> list[tuple[int, int]]:
        """Where the rows of a part are, and how long; nothing where some of it lies beyond the array."""
        if not block or any(n < 0 or n + size > s for (n, size), s in zip(block, self.shape, strict=True)):
            return []
        *outer, (first, length) = block
        starts = (sum(map(operator.mul, index, self.strides)) for index in _indices(outer))
        return [(start + first, length) for start in starts]

    def _place(self, index: Sequence[int]) -> int | None:
        place = 0
        for number, size, stride in zip(index, self.shape, self.strides, strict=True):
            if not 0 <= number < size:
                if self.guarded:
                    return None
                raise CannotTell(f"a kernel reaches {number} of {size} in its own memory")
            place += number * stride
        return place

    def __getitem__(self, key: Any) -> Any:
        index = key if isinstance(key, tuple) else (key,)
        if len(index) == len(self.shape) and not any(isinstance(part, slice) for part in index):
            return Load(self, tuple(_node(part) for part in index))
        return Region(self, index)

    def __setitem__(self, key: Any, value: Any) -> None:
        """For every index of the loops around it."""
        index = [_node(part) for part in (key if isinstance(key, tuple) else (key,))]
        emit = _Emit()
        text = _node(value).code(emit)
        if _within(self, index):
            line = f"{emit.name(self.data)}[{_flat(self, index, emit)}] = {text}"
        else:
            line = f"{emit.name(self.put)}({text}, {', '.join(part.code(emit) for part in index)})"
        for depth in reversed(range(len(self._loops))):
            line = f"for i{depth} in range({self._loops[depth]}):\n{'    ' * (depth + 2)}{line}"
        _compiled(line, len(emit.values))(*emit.values)


def _within(array: Array, index: Sequence[Node]) -> bool:
    """Whether every index is surely in range, so that nothing need be asked."""
    return len(index) == len(array.shape) and all(map(_in_range, index, array.shape))


def _in_range(part: Node, size: int) -> bool:
    if isinstance(part, Constant):
        return isinstance(part.number, int) and 0 <= part.number < size
    return isinstance(part, Axis) and part.size <= size


def _flat(array: Array, index: Sequence[Node], emit: _Emit) -> str:
    return " + ".join(f"{part.code(emit)} * {step}" for part, step in zip(index, array.strides, strict=True))


@dataclass(frozen=True, eq=False)
class Region:
    """A part of an array, by slices; of axes that are not named, all."""

    array: Array
    key: tuple[Any, ...]

    def extents(self) -> Block:
        """The first index and the size along every axis."""
        named = []
        for part, size in zip(self.key, self.array.shape, strict=False):
            if isinstance(part, slice):
                start = 0 if part.start is None else int(part.start)
                named.append((start, (size if part.stop is None else int(part.stop)) - start))
            else:
                named.append((int(part), 1))
        return named + [(0, size) for size in self.array.shape[len(self.key) :]]


def _region(value: Any, like: Block | None = None) -> tuple[Array, Block]:
    """An array and the part of it that is meant; of a place where one begins, as much as ``like`` has."""
    if isinstance(value, Region):
        return value.array, value.extents()
    if isinstance(value, Array):
        return value, [(0, size) for size in value.shape]
    if isinstance(value, Load) and like is not None:
        sizes = [1] * (len(value.index) - len(like)) + [size for _, size in like]
        return value.array, [(int(n), size) for n, size in zip(value.index, sizes, strict=True)]
    raise CannotTell(f"a kernel copies {type(value).__name__}, which this probe does not know")


def _rows(value: Any) -> list[list[Any]]:
    """A two-dimensional array, or part of one, as rows."""
    array, block = _region(value)
    sizes = [size for _, size in block]
    if len(sizes) > 2:
        sizes = [size for size in sizes if size != 1]
    if len(sizes) != 2:
        raise CannotTell("a gemm or a reduction takes something that is not two-dimensional")
    numbers = array.taken(block)
    return [numbers[start : start + sizes[1]] for start in range(0, len(numbers), max(sizes[1], 1))]


# --- the language -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """What a kernel says of one of its operands."""

    shape: tuple[Any, ...]
    dtype: object


class Language:
    """``tilelang.language`` for one run of a kernel.

    Args:
        dtypes: element types by the names that the language has for them.
    """

    def __init__(self, dtypes: Mapping[str, object]) -> None:
        self._types = dict(dtypes)
        self._loops: list[int] = []
        self._block: tuple[int, ...] = ()
        self._grid: tuple[int, ...] = ()
        self._operands: dict[str, Operand] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._types:
            return self._types[name]
        if name in _FUNCTIONS:
            return functools.partial(Call, name)
        if name in _IGNORED:
            return lambda *_, **__: None
        raise CannotTell(f"a kernel uses T.{name}, which this probe does not know how to compute")

    # the kernel and its operands

    def prim_func(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Note the operands; their shapes are annotations, which are evaluated where they stand."""
        scope = sys._getframe(1)
        names = _Names(scope.f_locals, scope.f_globals)
        for name, text in function.__annotations__.items():
            if name != "return":
                said = eval(text, {}, names) if isinstance(text, str) else text  # noqa: S307 - the source's
                if not isinstance(said, Operand):
                    raise CannotTell(f"a kernel's operand {name} is a {type(said).__name__}")
                self._operands[name] = said
        return function

    @property
    def Tensor(self) -> Any:  # noqa: N802 - tilelang's names, here and below
        return _OperandMaker()

    def symbolic(self, name: str, *_: object) -> Symbol:
        return Symbol(name)

    dynamic = symbolic

    def Kernel(self, *grid: Any, threads: int = 128, **_: object) -> _Blocks:  # noqa: N802
        self._grid = tuple(int(size) for size in grid)
        return _Blocks(self._block or (0,) * len(grid))

    def run(self, main: Callable[..., Any], given: Mapping[str, Array]) -> dict[str, Array]:
        """Run every block.

        Args:
            main: what :meth:`prim_func` was given.
            given: operands by name; those that are not there are made, of NaN.

        Returns:
            Every operand.
        """
        for name, array in given.items():
            for said, size in zip(self._operands[name].shape, array.shape, strict=True):
                if isinstance(said, Symbol) and said.size is None:
                    said.size = size
                if int(said) != size:
                    raise CannotTell(f"a kernel's operand {name} has {size} where it says {int(said)}")
        arrays = dict(given)
        for name, said in self._operands.items():
            if name not in arrays:
                shape = [int(size) for size in said.shape]
                arrays[name] = self.operand(shape, math.nan, said.dtype)
        ordered = [arrays[name] for name in self._operands]
        main(*ordered)
        if math.prod(self._grid) > BLOCKS_LIMIT:
            raise CannotTell(f"a kernel has more than {BLOCKS_LIMIT} blocks")
        for block in itertools.islice(itertools.product(*map(range, self._grid)), 1, None):
            self._block = block
            main(*ordered)
        return arrays

    def operand(self, shape: Sequence[int], data: Any, dtype: object) -> Array:
        """An operand to be handed to :meth:`run`."""
        return Array(shape, data, dtype, self._loops, guarded=True)

    @property
    def GemmWarpPolicy(self) -> Opaque:  # noqa: N802
        return Opaque("T.GemmWarpPolicy")

    # memory

    def alloc_shared(self, shape: Any, dtype: object, *_: object, **__: object) -> Array:
        sizes = [shape] if isinstance(shape, int) else [int(size) for size in shape]
        return Array(sizes, math.nan, dtype, self._loops)

    alloc_fragment = alloc_local = alloc_shared

    def fill(self, target: Any, value: Any) -> None:
        array, block = _region(target)
        array.filled(block, [_node(value).value()] * math.prod(size for _, size in block))

    def clear(self, target: Any) -> None:
        self.fill(target, 0)

    def copy(self, source: Any, target: Any, *_: object, **__: object) -> None:
        whole = next((_region(v)[1] for v in (source, target) if not isinstance(v, Load)), None)
        (origin, taken), (array, place) = _region(source, whole), _region(target, whole)
        sizes = [[size for _, size in block if size != 1] for block in (taken, place)]
        if sizes[0] != sizes[1]:
            raise CannotTell(f"a kernel copies {sizes[0]} to {sizes[1]}")
        array.filled(place, origin.taken(taken))

    # loops

    def Parallel(self, *extents: Any, **_: object) -> Iterator[Any]:  # noqa: N802
        sizes = [int(extent) for extent in extents]
        first = len(self._loops)
        axes = tuple(Axis(first + number, size) for number, size in enumerate(sizes))
        self._loops += sizes
        try:
            yield axes if len(axes) > 1 else axes[0]
        finally:
            del self._loops[first:]

    def serial(self, *bounds: Any, **_: object) -> Iterator[int]:
        yield from range(*(int(bound) for bound in bounds))

    unroll = Unroll = Serial = Pipelined = serial
    vectorized = Vectorized = Parallel

    # what is computed

    def gemm(
        self,
        a: Any,
        b: Any,
        c: Any,
        transpose_A: bool = False,  # noqa: N803
        transpose_B: bool = False,  # noqa: N803
        *_: object,
        clear_accum: Any = False,
        **__: object,
    ) -> None:
        left, right = _rows(a), _rows(b)
        rows = [list(row) for row in zip(*left, strict=True)] if transpose_A else left
        columns = right if transpose_B else [list(column) for column in zip(*right, strict=True)]
        if len(rows[0]) != len(columns[0]):
            raise CannotTell(f"a gemm is over {len(rows[0])} and {len(columns[0])} columns")
        array, block = _region(c)
        made = [sum(map(operator.mul, row, column)) for row in rows for column in columns]
        array.filled(block, made if clear_accum else list(map(operator.add, array.taken(block), made)))

    wgmma_gemm = gemm

    def reduce_max(self, source: Any, target: Any, dim: int = -1, clear: Any = True, **_: object) -> None:
        self._reduce(max, source, target, dim, clear)

    def reduce_min(self, source: Any, target: Any, dim: int = -1, clear: Any = True, **_: object) -> None:
        self._reduce(min, source, target, dim, clear)

    def reduce_sum(self, source: Any, target: Any, dim: int = -1, clear: Any = True, **_: object) -> None:
        self._reduce(sum, source, target, dim, clear)

    def _reduce(
        self, how: Callable[[list[Any]], Any], source: Any, target: Any, dim: int, clear: Any
    ) -> None:
        rows = _rows(source)
        lines = rows if dim in (1, -1) else [list(column) for column in zip(*rows, strict=True)]
        array, block = _region(target)
        before = [[] if clear else [number] for number in array.taken(block)]
        array.filled(block, [how([*was, *line]) for was, line in zip(before, lines, strict=True)])

    # numbers

    def if_then_else(self, condition: Any, yes: Any, no: Any) -> Node:
        return Call("where", condition, yes, no)

    Select = if_then_else

    def infinity(self, *_: object) -> float:
        return math.inf

    def Cast(self, dtype: object, value: Any) -> Any:  # noqa: N802
        return value

    cast = Cast


class _Names(dict[str, Any]):
    """Where a function is defined: its locals, then its module's globals, which are bound when read."""

    def __init__(self, here: Mapping[str, Any], around: Mapping[str, Any]) -> None:
        super().__init__(here)
        self._around = around

    def __missing__(self, name: str) -> Any:
        return self._around[name]


class _OperandMaker:
    def __call__(self, shape: Sequence[Any], dtype: object = None, *_: object) -> Operand:
        return Operand(tuple(shape), dtype)

    def __getitem__(self, said: Any) -> Operand:
        return self(*said)


class _Blocks:
    def __init__(self, block: tuple[int, ...]) -> None:
        self._block = block

    def __enter__(self) -> Any:
        return self._block if len(self._block) > 1 else _OneAxis(self._block[0])

    def __exit__(self, *_: object) -> None:
        pass


class _OneAxis(int):
    """The index of a grid of one axis, which sources take as it is or unpack: ``as (bx,)``."""

    def __iter__(self) -> Iterator[int]:
        yield int(self)
