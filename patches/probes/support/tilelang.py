"""A stand-in for tilelang that traces kernels instead of compiling them. Standard library only.

A kernel factory of the source under test runs as it is, and so does the body of its ``T.prim_func``, once
for every way its branches can go. What is looked at is what the compiler would have to do: which shared
buffers are needed and how often, which gemms have how many columns, what is loaded from which operand.
A kernel that is called with tensors that have numbers in them is computed as well
(:mod:`support.compute`).
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from support.compute import Language as ComputedLanguage

from builder.probe.harness import CannotTell, Opaque

PATHS_LIMIT = 256
"""Ways through one kernel's branches that are followed before a probe gives up."""


@dataclass(frozen=True)
class Dtype:
    """An element type, equal to itself and to its name as tilelang writes it."""

    name: str
    itemsize: int

    def __eq__(self, other: object) -> bool:
        return other is self or other == self.name

    def __hash__(self) -> int:
        return hash(self.name)


_SIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float": 4,
    "int32": 4,
    "int64": 8,
}
DTYPES: Mapping[str, Dtype] = {name: Dtype(name, size) for name, size in _SIZES.items()}
FP8 = (DTYPES["float8_e4m3fn"], DTYPES["float8_e4m3fnuz"])


def dtype_of(value: object) -> Dtype:
    """The element type named by a string, a torch dtype or a ``T.float32``."""
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(name, str) or name not in DTYPES:
        raise CannotTell(f"a kernel uses the element type {value!r}, whose size this probe does not know")
    return DTYPES[name]


@dataclass(frozen=True)
class Gemm:
    """One matrix product: rows by columns, over ``depth``."""

    rows: int
    columns: int
    depth: int


@dataclass(frozen=True)
class Kernel:
    """What a traced kernel asks for.

    Args:
        name: of its factory.
        arguments: the factory's arguments, defaults included.
        shared: bytes of dynamic shared memory a block.
        products: its matrix products, in order, along the first way through its branches.
        empty: names or shapes of buffers and copies without a single element.
        loaded_as: by operand, the element types of the shared buffers that it is loaded into.
        operands: its tensors, by name, in order.
        branches: whether warps go different ways; then ``shared`` is right to a few hundred bytes only.
    """

    name: str
    arguments: Mapping[str, Any]
    shared: int
    products: tuple[Gemm, ...]
    empty: frozenset[str]
    loaded_as: Mapping[str, frozenset[Dtype]]
    operands: tuple[str, ...]
    branches: bool


@dataclass(frozen=True)
class Launch:
    """A kernel called with tensors."""

    kernel: Kernel
    tensors: tuple[Tensor, ...]

    def wrongly_typed(self) -> str:
        """The first operand that is read as another type than it is handed over in; empty if none is."""
        for name, tensor in zip(self.kernel.operands, self.tensors, strict=False):
            others = {t.name for t in self.kernel.loaded_as.get(name, frozenset()) if t != tensor.dtype}
            if others:
                read = f"{self.kernel.name} reads {name} as {', '.join(sorted(others))}"
                return f"{read}, gets {tensor.dtype.name}"
        return ""


@dataclass(frozen=True)
class Device:
    """The GPU that a tensor is on."""

    type: str = "cuda"
    index: int = 0

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


E4M3_LIMIT = 464.0
"""Beyond this torch before 2.13 casts to NaN in float8_e4m3fn; what is between 448 and it becomes 448."""


def _as_e4m3(number: float) -> float:
    """A number cast to ``float8_e4m3fn`` by torch before 2.13: three bits of mantissa, and no saturation."""
    if number == 0 or number != number:
        return number
    if abs(number) > E4M3_LIMIT:
        return math.nan
    step = 2.0 ** (max(math.frexp(number)[1] - 1, -6) - 3)
    return round(number / step) * step


class Tensor:
    """A tensor of which shape, type and device are known, and sometimes the numbers in it.

    Args:
        shape, dtype: as torch has them.
        data: the numbers in row-major order; ``None`` where nothing is to be computed with them.
    """

    device = Device()
    is_cuda = True

    def __init__(self, shape: tuple[int, ...], dtype: Dtype, data: list[float] | None = None) -> None:
        self.shape, self.dtype, self.data = shape, dtype, data

    def dim(self) -> int:
        return len(self.shape)

    ndim = property(dim)

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def unsqueeze(self, axis: int) -> Tensor:
        at = axis % (len(self.shape) + 1)
        return Tensor((*self.shape[:at], 1, *self.shape[at:]), self.dtype, self.data)

    def squeeze(self, axis: int) -> Tensor:
        at = axis % len(self.shape)
        shape = self.shape[:at] + self.shape[at + (self.shape[at] == 1) :]
        return Tensor(shape, self.dtype, self.data)

    def contiguous(self) -> Tensor:
        return self

    def clamp(self, min: float | None = None, max: float | None = None) -> Tensor:
        low, high = -math.inf if min is None else min, math.inf if max is None else max
        return self._with(lambda number: low if number < low else high if number > high else number)

    clip = clamp_ = clip_ = clamp

    def to(self, *wanted: object, dtype: Dtype | None = None, **other: object) -> Tensor:
        types = [w for w in (*wanted, dtype) if isinstance(w, Dtype)]
        target = types[-1] if types else self.dtype
        narrowed = target != self.dtype and target == "float8_e4m3fn"
        made = self._with(_as_e4m3) if narrowed else self
        return Tensor(self.shape, target, made.data)

    type = to

    def float(self) -> Tensor:
        return self.to(DTYPES["float32"])

    def bfloat16(self) -> Tensor:
        return self.to(DTYPES["bfloat16"])

    def _with(self, change: Callable[[Any], Any]) -> Tensor:
        data = None if self.data is None else [change(number) for number in self.data]
        return Tensor(self.shape, self.dtype, data)

    def view(self, *shape: Any) -> Tensor:
        if len(shape) == 1 and isinstance(shape[0], Dtype):
            last = self.shape[-1] * self.dtype.itemsize // shape[0].itemsize
            same = self.data if self.dtype.itemsize == shape[0].itemsize else None
            return Tensor(
                (*self.shape[:-1], last), shape[0], same
            )  # of the bytes, the numbers they stood for
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        known = math.prod(s for s in sizes if s != -1)
        made = tuple(s if s != -1 else self.numel() // known for s in sizes)
        return Tensor(made, self.dtype, self.data)

    reshape = view

    def __getitem__(self, key: Any) -> Tensor:
        keys = key if isinstance(key, tuple) else (key,)
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys = (*keys[:at], *[slice(None)] * (len(self.shape) - len(keys) + 1), *keys[at + 1 :])
        pairs = [*zip(self.shape, keys, strict=False), *[(n, slice(None)) for n in self.shape[len(keys) :]]]
        shape = tuple(len(range(*k.indices(n))) for n, k in pairs if isinstance(k, slice))
        return Tensor(shape, self.dtype, self.data if shape == self.shape else None)

    def __getattr__(self, name: str) -> Any:
        raise CannotTell(f"the source uses Tensor.{name}, which this probe does not know")


class _Number:
    """A number known when the kernel runs: a thread, a loop variable, an element."""

    def __init__(self, trace: _Trace) -> None:
        self._trace = trace

    def __bool__(self) -> bool:
        return self._trace.decide()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Opaque(name) if name == "dtype" else (lambda *_, **__: self)

    def __getitem__(self, key: object) -> _Number:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __iter__(self) -> Iterator[_Number]:
        yield self

    def __enter__(self) -> _Number:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __divmod__(self, other: object) -> tuple[_Number, _Number]:
        return self, self

    def __index__(self) -> int:
        raise CannotTell("a kernel's structure hangs on a number that is known only when it runs")


def _numeric(self: _Number, *_: object) -> _Number:
    return self


for _operator in (
    *("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "invert", "abs"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv"),
    *("mod", "rmod", "and", "rand", "or", "ror", "xor", "rxor", "lshift", "rlshift", "rshift", "rrshift"),
):
    setattr(_Number, f"__{_operator}__", _numeric)
_Number.__hash__ = object.__hash__  # type: ignore[method-assign]


@dataclass(eq=False)
class _Buffer:
    """An operand of the kernel, or memory that it allocates."""

    trace: _Trace
    scope: str
    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: Dtype | None = None
    copies: int = 1
    read: bool = False
    filled_from: set[str] = field(default_factory=set)

    def __getitem__(self, key: object) -> _Element:
        self._note_indices(key)
        return _Element(self.trace, self, key)

    def __setitem__(self, key: object, value: object) -> None:
        self._note_indices(key)
        self.fill(value)

    def _note_indices(self, key: object) -> None:
        for index in key if isinstance(key, tuple) else (key,):
            self.trace.note_read(index)

    def fill(self, source: object) -> None:
        """Take what ``source`` holds; in a pipelined loop every stage has a buffer of its own."""
        self.trace.note_read(source)
        if isinstance(source, _Element) and source.buffer.scope == "operand":
            source = source.buffer
        if isinstance(source, _Buffer) and source.scope == "operand":
            self.filled_from.add(source.name)
            if self.scope == "shared":
                self.copies = max(self.copies, self.trace.stages)


class _Element(_Number):
    """One element, or a region, of a buffer."""

    def __init__(self, trace: _Trace, buffer: _Buffer, key: object) -> None:
        super().__init__(trace)
        self.buffer, self.key = buffer, key


def _extent(value: object) -> tuple[int, ...]:
    return value.shape if isinstance(value, _Buffer) else ()


class _Trace:
    """One kernel: everything that any way through its branches does."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[int, int], _Buffer] = {}
        self.products: list[Gemm] = []
        self.empty: set[str] = set()
        self.reductions: set[str] = set()
        self.threads = 0
        self.stages = 1
        self.branches = False
        self._allocated = 0
        self._script: list[bool] = []
        self._taken = 0
        self._first = True

    # branches

    def decide(self) -> bool:
        self.branches = True
        if self._taken == len(self._script):
            self._script.append(True)
        self._taken += 1
        return self._script[self._taken - 1]

    def ways(self) -> Iterator[None]:
        """Once for every way through the branches met so far, depth first."""
        for _ in range(PATHS_LIMIT):
            self._taken = self._allocated = 0
            self._first = not self._script
            yield
            while self._script and not self._script[-1]:
                self._script.pop()
            if not self._script:
                return
            self._script[-1] = False
        raise CannotTell(f"a kernel branches in more than {PATHS_LIMIT} ways")

    # what the kernel does

    def note_read(self, value: object) -> None:
        buffer = value.buffer if isinstance(value, _Element) else value
        if isinstance(buffer, _Buffer):
            buffer.read = True

    def allocate(self, scope: str, shape: Any, dtype: object) -> _Buffer:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        key = (self._allocated, hash(scope))
        self._allocated += 1
        if key not in self.buffers:
            self.buffers[key] = _Buffer(self, scope, f"{scope}{list(sizes)}", sizes, dtype_of(dtype))
        if 0 in sizes:
            self.empty.add(self.buffers[key].name)
        return self.buffers[key]

    def copy(self, source: Any, target: Any, *_: object, **__: object) -> None:
        self.note_read(source)
        if isinstance(target, _Buffer):
            target.fill(source)

    def gemm(self, a: Any, b: Any, c: Any, *_: object, **how: Any) -> None:
        for operand in (a, b):
            self.note_read(operand)
        left, right = _extent(a), _extent(b)
        if len(left) != 2 or len(right) != 2:
            raise CannotTell("a gemm takes something that is not a two-dimensional buffer")
        rows, depth = reversed(left) if how.get("transpose_A") else left
        columns = right[0] if how.get("transpose_B") else right[1]
        if self._first:
            self.products.append(Gemm(rows, columns, depth))

    def reduce(self, kind: str) -> Callable[..., None]:
        def reduction(source: object, target: object, *_: object, **__: object) -> None:
            self.note_read(source)
            self.reductions.add(kind)

        return reduction

    def shared_bytes(self) -> int:
        """Dynamic shared memory a block: buffers that are read, once a stage, and what reductions need.

        A buffer that is only written is dropped by the compiler. Warps exchange the partial results of a
        reduction in one 4-byte word a thread for each kind of reduction. ``overlay probe --compile``
        compares this with what the compiler says.
        """
        shared = (b for b in self.buffers.values() if b.scope == "shared" and b.read and b.dtype)
        held = sum(math.prod(b.shape) * b.dtype.itemsize * b.copies for b in shared if b.dtype)
        return held + 4 * self.threads * len(self.reductions)


class _Language:
    """``tilelang.language``: what matters is traced, numbers are opaque, the rest does nothing."""

    def __init__(self, tracing: Callable[[], _Trace]) -> None:
        self._tracing = tracing
        self.prim_func = lambda function: function
        self.types = {**DTYPES, "float8_e4m3": DTYPES["float8_e4m3fn"]}
        vars(self).update(self.types)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *values, **__: self._unknown(values)

    def _unknown(self, values: tuple[object, ...]) -> _Number:
        trace = self._tracing()
        for value in values:
            trace.note_read(value)
        return _Number(trace)

    @property
    def GemmWarpPolicy(self) -> Opaque:  # noqa: N802 - tilelang's name
        return Opaque("T.GemmWarpPolicy")

    def symbolic(self, name: str, *_: object) -> object:
        return Opaque(name)

    dynamic = symbolic

    def ceildiv(self, a: Any, b: Any) -> Any:
        return -(-a // b) if isinstance(a, int) and isinstance(b, int) else self._unknown((a, b))

    def Kernel(self, *grid: object, threads: int = 128, **_: object) -> _Grid:  # noqa: N802
        trace = self._tracing()
        trace.threads = threads
        return _Grid(trace, len(grid))

    def alloc_shared(self, shape: Any, dtype: object, scope: str = "shared.dyn") -> _Buffer:
        return self._tracing().allocate("static" if scope == "shared" else "shared", shape, dtype)

    def alloc_fragment(self, shape: Any, dtype: object, *_: object, **__: object) -> _Buffer:
        return self._tracing().allocate("registers", shape, dtype)

    alloc_local = alloc_fragment

    def copy(self, *values: Any, **how: Any) -> None:
        self._tracing().copy(*values, **how)

    def gemm(self, *values: Any, **how: Any) -> None:
        self._tracing().gemm(*values, **how)

    wgmma_gemm = gemm

    def reduce_max(self, *values: object, **how: object) -> None:
        self._tracing().reduce("max")(*values, **how)

    def reduce_sum(self, *values: object, **how: object) -> None:
        self._tracing().reduce("sum")(*values, **how)

    def Parallel(self, *extents: object, **_: object) -> Iterator[Any]:  # noqa: N802
        trace = self._tracing()
        if 0 in [e for e in extents if isinstance(e, int)]:
            trace.empty.add(f"a loop over {list(extents)}")
        numbers = tuple(_Number(trace) for _ in extents)
        yield numbers if len(numbers) > 1 else numbers[0]

    def serial(self, *_: object, **__: object) -> Iterator[_Number]:
        yield _Number(self._tracing())

    unroll = vectorized = Unroll = Serial = serial

    def Pipelined(self, *_: object, num_stages: int = 0, **__: object) -> Iterator[_Number]:  # noqa: N802
        trace = self._tracing()
        trace.stages, before = max(num_stages, 1), trace.stages
        yield _Number(trace)
        trace.stages = before


class _Grid:
    def __init__(self, trace: _Trace, axes: int) -> None:
        self._trace, self._axes = trace, axes

    def __enter__(self) -> Any:
        numbers = tuple(_Number(self._trace) for _ in range(self._axes))
        return numbers if self._axes > 1 else numbers[0]  # which can be unpacked as well: ``as (bx,)``

    def __exit__(self, *_: object) -> None:
        pass


class _Either:
    """The language that a kernel is traced with, or the one that it computes with."""

    def __init__(self, current: Callable[[], object]) -> None:
        self._current = current

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._current(), name)


class TileLang:
    """The stand-in: hand :attr:`stubs` to :class:`builder.probe.harness.Program`.

    Attributes:
        built: every kernel that was built, in order.
        launched: every kernel that was called with tensors, in order.
    """

    def __init__(self) -> None:
        self.built: list[Kernel] = []
        self.launched: list[Launch] = []
        self._trace: _Trace | None = None
        self._traced_language = _Language(self._tracing)
        self._computed: ComputedLanguage | None = None
        self.language = _Either(lambda: self._computed or self._traced_language)
        self.math = SimpleNamespace(next_power_of_2=lambda n: 1 << (n - 1).bit_length() if n > 0 else 0)
        self.PassConfigKey = Opaque("tilelang.PassConfigKey", TL_DISABLE_FAST_MATH="fast_math")

    @staticmethod
    def cdiv(a: int, b: int) -> int:
        return -(-a // b)

    @property
    def stubs(self) -> dict[str, object]:
        """Stand-ins for tilelang, its language, and the parts of torch that describe tensors."""
        types = {f"torch.{name}": dtype for name, dtype in DTYPES.items()}
        fp8_max = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0}
        limits: Callable[[Dtype], object] = lambda dtype: SimpleNamespace(  # noqa: E731
            max=fp8_max[dtype.name], min=-fp8_max[dtype.name]
        )
        return {
            "tilelang": self,
            "tilelang.language": self.language,
            "torch.finfo": limits,
            "torch.clamp": Tensor.clamp,
            "is_fp8_fnuz": lambda: False,
            "is_gfx95_supported": lambda: False,
        } | types

    def jit(self, factory: Callable[..., Any] | None = None, **_: object) -> Any:
        if factory is None:
            return self._traced
        return self._traced(factory)

    def _tracing(self) -> _Trace:
        if self._trace is None:
            raise CannotTell("the source uses tilelang's language outside of a kernel")
        return self._trace

    def _traced(self, factory: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(factory)

        def build(*values: Any, **named: Any) -> Callable[..., Tensor]:
            bound = signature.bind(*values, **named)
            bound.apply_defaults()
            kernel = self._build(factory, dict(bound.arguments))
            self.built.append(kernel)

            def launch(*tensors: Any) -> Any:
                self.launched.append(Launch(kernel, tensors))
                made = self._outputs(factory, kernel, tensors)
                return made[0] if len(made) == 1 else made

            return launch

        functools.update_wrapper(build, factory)
        return build

    def _outputs(
        self, factory: Callable[..., Any], kernel: Kernel, tensors: tuple[Tensor, ...]
    ) -> list[Tensor]:
        """The operands that a kernel is not given and returns; computed where all others have numbers."""
        missing = kernel.operands[len(tensors) :]
        if any(tensor.data is None for tensor in tensors):
            return [Tensor((1, 1, 1, 1), DTYPES["bfloat16"]) for _ in missing]
        self._computed = language = ComputedLanguage(self._traced_language.types)
        try:
            main = factory(**kernel.arguments)
            given = {
                name: language.operand(tensor.shape, tensor.data, tensor.dtype)
                for name, tensor in zip(kernel.operands, tensors, strict=False)
            }
            arrays = language.run(main, given)
        finally:
            self._computed = None
        return [
            Tensor(arrays[name].shape, dtype_of(arrays[name].dtype), arrays[name].data) for name in missing
        ]

    def _build(self, factory: Callable[..., Any], arguments: dict[str, Any]) -> Kernel:
        self._trace = trace = _Trace()
        try:
            main = factory(**arguments)
            operands = tuple(inspect.signature(main).parameters)
            for _ in trace.ways():
                main(*(_Buffer(trace, "operand", name) for name in operands))
        finally:
            self._trace = None
        loaded: dict[str, set[Dtype]] = {}
        for buffer in trace.buffers.values():
            for operand in buffer.filled_from:
                if buffer.scope == "shared" and buffer.dtype:
                    loaded.setdefault(operand, set()).add(buffer.dtype)
        return Kernel(
            getattr(factory, "__name__", "kernel"),
            arguments,
            trace.shared_bytes(),
            tuple(trace.products),
            frozenset(trace.empty),
            {name: frozenset(types) for name, types in loaded.items()},
            operands,
            trace.branches,
        )
