"""How wide is the index table that reaches FlashInfer's SM12x kernels, and has it kernels for that width?

FlashInfer compiles its DSV4 kernels by width. The pinned release decides what it has: the tables below were
read from the sources of 0.6.14, 0.6.15.post1, 0.6.17, 0.6.18 and 0.7.2.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from builder.probe.devices import GB10, cuda_device
from builder.probe.harness import (
    Answer,
    CannotTell,
    Opaque,
    Program,
    Tree,
    call,
    defect,
    fixed,
    locate,
    parse,
    unknown,
)

DISPATCH = ("python/sglang/kernels/ops/attention/flash_mla_sm120.py",)
BUILDER = (
    "python/sglang/kernels/ops/speculative/dspark/dspark_attn_metadata.py",
    "python/sglang/srt/speculative/dspark_components/kernels/dspark_attn_metadata.py",
)
BACKEND = ("python/sglang/srt/layers/attention/deepseek_v4_backend.py",)
PINS = ("python/sglang.dist-info/METADATA", "python/pyproject.toml")
ENGINE = "python/sglang/srt/entrypoints/engine.py"
PACKAGE = "flashinfer-python"

OLD_WIDTHS = (128, 512, 1024)
WIDTHS_0_6_18 = (128, 192, 256, 512, 1024)
KERNEL_HEADS = (8, 16, 32, 64, 128)
HEADS = 64
TILE = 64  # columns of an index table that one split of the decode kernel takes
DECODE, PREFILL = 5, 80  # tokens; FlashInfer's decode kernels end at 64
OTHERS = (
    512,
    576,
    1024,
    2048,
)  # the two with kernels, one between them, and one for which nothing is wide enough
WITH_A_LIST = "0.7.2"
EXTRA = 640  # columns of the target's compressed table, which DSpark's draft has none of
BLOCKS = (5, 65)  # a draft block as DeepSeek-V4-Flash-0731 has it, and one that needs the next 64 columns


class Table:
    """An index table: rows of integers, with as much of a tensor about it as its handling needs."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows
        self.dtype, self.device, self.ndim = "int32", "cuda:0", 2

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), len(self.rows[0]))

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def contiguous(self) -> Table:
        return self

    def clone(self) -> Table:
        return Table([list(row) for row in self.rows])

    def to(self, *_: object, **__: object) -> Table:
        return self

    def new_full(self, size: Any, fill_value: int, **_: object) -> Table:
        return full(size, fill_value)

    def new_empty(self, *size: Any, **_: object) -> Table:
        return full(size[0] if isinstance(size[0], tuple | list) else size, GARBAGE)

    def __setitem__(self, key: Any, value: Table) -> None:
        columns = key[-1] if isinstance(key, tuple) else slice(None)
        if not isinstance(columns, slice):
            raise CannotTell(f"an index table is written at {key!r}")
        for row, new in zip(self.rows, value.rows, strict=True):
            row[columns] = new


GARBAGE = 7_777_777  # what memory holds that nobody has written


def full(size: Any, fill_value: int = 0, **_: object) -> Table:
    rows, columns = size
    return Table([[fill_value] * columns for _ in range(rows)])


def pad(table: Table, pad: Any, mode: str = "constant", value: int = 0) -> Table:
    left, right = pad
    return Table([[value] * left + row + [value] * right for row in table.rows])


def cat(tables: Any, dim: int = 0) -> Table:
    if dim not in (-1, 1):
        raise CannotTell(f"index tables are joined along dimension {dim}")
    joined = zip(*(table.rows for table in tables), strict=True)
    return Table([[value for row in rows for value in row] for rows in joined])


class FlashInfer:
    """A FlashInfer: what it says it has, and the table it was called with.

    Args:
        version: from 0.7 on it has a public list of what it was compiled for.
        widths: those of its kernels; by default what that version has.
    """

    def __init__(self, version: str, widths: tuple[int, ...] = ()) -> None:
        self.version = version
        self.calls: list[dict[str, Any]] = []
        self.widths = widths or (OLD_WIDTHS if release(version) < (0, 6, 18) else WIDTHS_0_6_18)
        self.asked = False

    def configs(self, **_: object) -> dict[str, Any]:
        self.asked = True
        return {"dsv4": SimpleNamespace(supports_decode=self._supports)}

    def _supports(self, num_heads: int, topk: int, **_: object) -> bool:
        return num_heads in KERNEL_HEADS and topk in self.widths

    def stubs(self) -> dict[str, object]:
        kernels = SimpleNamespace(
            _sparse_mla_sm120_paged_attention=self._paged_attention,
            _DECODE_MAX_TOKENS=64,
            _DECODE_DSV4_DISPATCH=frozenset((h, w) for h in KERNEL_HEADS for w in self.widths),
        )
        mla = SimpleNamespace(_sparse_mla_sm120=kernels)
        if release(self.version) >= (0, 7):
            mla.supported_sparse_mla_sm120_configs = self.configs
        return {
            "flashinfer": SimpleNamespace(__version__=self.version, mla=mla),
            "flashinfer.mla": mla,
            "flashinfer.mla._sparse_mla_sm120": kernels,
            "importlib.metadata": SimpleNamespace(
                version=lambda _: self.version, PackageNotFoundError=ModuleNotFoundError
            ),
            "packaging.version": SimpleNamespace(parse=release, Version=release),
        }

    def _paged_attention(self, q: object, kv_cache: object, indices: Table, *_: object, **named: Any) -> None:
        self.calls.append({"indices": indices} | named)


def release(version: str) -> tuple[int, ...]:
    """``0.6.15.post1`` as ``(0, 6, 15)``."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("post")[0])[:3])


def pinned(tree: Tree) -> str:
    """The version of FlashInfer that this tree asks for."""
    for path in PINS:
        found = (
            re.search(rb"flashinfer[-_]python(?:\[[^]]*\])?\s*==\s*([0-9][\w.]*)", tree.read(path))
            if path in tree
            else None
        )
        if found:
            return found[1].decode()
    for node in ast.walk(parse(tree, ENGINE)):
        if isinstance(node, ast.Call) and len(node.args) >= 2:
            words = [arg.value for arg in node.args[:2] if isinstance(arg, ast.Constant)]
            if len(words) == 2 and words[0] == "flashinfer_python":
                return str(words[1])
    raise CannotTell("the tree does not say which FlashInfer it wants")


def table_width(tree: Tree, path: str, block: int) -> int:
    """Columns of the index table that DSpark's draft uses for a block of ``block`` tokens."""
    backend = locate(tree, BACKEND, b"PAGE_INDEX_ALIGNED_SIZE =")
    if backend is None:
        raise CannotTell("nothing says how DSpark's index table is aligned")
    constants = Program(tree, cuda_device(GB10)).module(backend)
    window = constants.SWA_WINDOW
    made: list[int] = []

    def empty(*size: Any, **_: object) -> Opaque:
        shape = size[0] if isinstance(size[0], tuple | list) else size
        if len(shape) == 2:
            made.append(shape[1])
        return Opaque("table", shape=shape)

    stubs = {"torch.empty": empty, "torch.full": empty, "_swa_page_indices_kernel": Opaque("kernel")}
    build = Program(tree, cuda_device(GB10) | stubs).module(path).build_dspark_swa_page_indices_triton
    call(
        build,
        req_to_token=Opaque("req_to_token"),
        full_to_swa_mapping=Opaque("full_to_swa_mapping"),
        req_pool_indices_per_request=Opaque("req_pool_indices"),
        offsets=Opaque("offsets", ndim=2, shape=(2, window)),
        out_loc=Opaque("out_loc"),
        context_lens=Opaque("context_lens"),
        block_size=block,
        swa_window=window,
        page_index_aligned_size=constants.PAGE_INDEX_ALIGNED_SIZE,
    )
    if len(made) != 1:
        raise CannotTell(f"{len(made)} tables were made where one was expected")
    return made[0]


@dataclass(frozen=True)
class Reached:
    """What FlashInfer was called with for a table whose rows count up from 0."""

    width: int
    tokens: int
    rows: list[list[int]]
    splits: int | None  # for how many tiles there is scratch, where there is some
    extra: list[list[int]] | None
    lengths_kept: bool

    @property
    def said(self) -> str:
        return f"{self.width} -> {len(self.rows[0])}"

    @property
    def wider_than_needed(self) -> bool:
        return len(self.rows[0]) > min((w for w in OLD_WIDTHS if w >= self.width), default=self.width)

    def wrong(self, widths: tuple[int, ...]) -> str:
        """What is wrong with it for kernels of these widths; empty when nothing is."""
        got = len(self.rows[0])
        if got not in widths and self.width <= max(widths):
            return f"{self.width} columns and {self.tokens} tokens: no kernel for {got}"
        if got != self.width and (self.width in OLD_WIDTHS or self.width > max(widths)):
            return f"{self.width} columns widened to {got}"
        full = list(range(self.width))
        if any(row[: self.width] != full or set(row[self.width :]) - {-1} for row in self.rows):
            return f"{self.width} columns: not the indices and then -1"
        if self.extra is not None and any(row != list(range(EXTRA)) for row in self.extra):
            return f"extra table of {EXTRA} columns changed, of which there are {len(self.extra[0])} now"
        tiles = -(-got // TILE) + (-(-EXTRA // TILE) if self.extra is not None else 0)
        if self.splits is not None and self.splits < tiles:
            return f"{got} columns: scratch for {self.splits} of {tiles} tiles"
        return ""


def table(width: int, tokens: int) -> Table:
    return Table([list(range(width)) for _ in range(tokens)])


class Dispatch:
    """The way to FlashInfer's kernels on a GB10 with this FlashInfer."""

    def __init__(self, tree: Tree, path: str, flashinfer: FlashInfer) -> None:
        stubs = {
            "torch.uint8": "uint8",
            "torch.int32": "int32",
            "torch.full": full,
            "torch.empty": lambda *size, **_: Opaque("scratch", shape=size),
            "torch.cat": cat,
            "torch.concat": cat,
            "torch.nn.functional.pad": pad,
        }
        self.flashinfer = flashinfer
        self.module = Program(tree, cuda_device(GB10) | stubs | flashinfer.stubs()).module(path)

    def reach(self, width: int, tokens: int, extra: bool = False) -> Reached:
        """What arrives of a table of ``width`` columns, and with ``extra`` of another one of ``EXTRA``."""
        squeezed = Opaque("q", ndim=3, shape=(tokens, HEADS, 512), device="cuda:0")
        shape = (tokens, 1, HEADS, 512)
        lengths = Opaque("topk_length")
        more = {
            "extra_k_cache": Opaque("extra_k_cache", dtype="uint8", ndim=4, shape=(100, 2, 1, 584)),
            "extra_indices_in_kvcache": table(EXTRA, tokens),
            "extra_topk_length": Opaque("extra_topk_length"),
        }
        self.flashinfer.calls.clear()
        self.module.flash_mla_with_kvcache_sm120(
            q=Opaque("q", ndim=4, shape=shape, device="cuda:0", squeeze=lambda *_: squeezed),
            k_cache=Opaque("k_cache", dtype="uint8", ndim=4, shape=(100, 64, 1, 584)),
            indices=table(width, tokens),
            topk_length=lengths,
            attn_sink=Opaque("attn_sink"),
            head_dim_v=512,
            softmax_scale=0.04,
            **(more if extra else {}),
        )
        if len(self.flashinfer.calls) != 1:
            raise CannotTell(f"FlashInfer was called {len(self.flashinfer.calls)} times")
        (given,) = self.flashinfer.calls
        scratch, other = given.get("mid_out"), given.get("extra_indices")
        return Reached(
            width,
            tokens,
            given["indices"].rows,
            None if scratch is None else scratch.shape[2],
            None if other is None else other.rows,
            given.get("topk_length") is lengths,
        )


def probe(tree: Tree) -> Answer:
    dispatch = locate(tree, DISPATCH, b"def flash_mla_with_kvcache_sm120", "python/sglang/kernels/")
    builder = locate(tree, BUILDER, b"def build_dspark_swa_page_indices_triton", "python/sglang/")
    if dispatch is None:
        return unknown("FlashMLA for SM12x was not found: nothing defines flash_mla_with_kvcache_sm120")
    if builder is None:
        return unknown("DSpark's table was not found: nothing defines build_dspark_swa_page_indices_triton")
    version = pinned(tree)
    made = [table_width(tree, builder, block) for block in BLOCKS]
    way = Dispatch(tree, dispatch, FlashInfer(version))
    reached = [
        way.reach(width, tokens, extra)
        for width in dict.fromkeys((128, *made))
        for tokens in (DECODE, PREFILL)
        for extra in ((False, True) if width == 128 else (False,))
    ]
    if any(
        len(one.rows[0]) != one.width for one in reached
    ):  # it widens: see that it does so only as it must
        reached += [way.reach(width, DECODE) for width in OTHERS]
    widths = way.flashinfer.widths
    wrong = [said for one in reached if (said := one.wrong(widths))]
    have = f"FlashInfer {version} has {', '.join(map(str, widths))}"
    if wrong:
        return defect(f"{have}; {'; '.join(wrong)}", PACKAGE)
    if not all(one.lengths_kept for one in reached):
        raise CannotTell("FlashInfer gets other lengths than it was given")
    said = ", ".join(dict.fromkeys(one.said for one in reached))
    wider = [one.said for one in reached if widths == OLD_WIDTHS and one.wider_than_needed]
    newer = ", ".join(wider) or _with_a_list(tree, dispatch, made)
    if newer:
        return unknown(f"{have}; {said}; but {newer}", PACKAGE)
    return fixed(f"{have}; {said}", PACKAGE)


def _with_a_list(tree: Tree, dispatch: str, widths: list[int]) -> str:
    """What is wrong with a FlashInfer that says what it was compiled for; empty when nothing is."""
    for has in (WIDTHS_0_6_18, OLD_WIDTHS):
        way = Dispatch(tree, dispatch, FlashInfer(WITH_A_LIST, has))
        for width in widths:
            one = way.reach(width, DECODE)
            if width in has and len(one.rows[0]) != width:
                return f"{one.said}, although FlashInfer {WITH_A_LIST} says that it has {width}"
            if way.flashinfer.asked and (said := one.wrong(has)):
                return f"FlashInfer {WITH_A_LIST} was asked, and yet {said}"
    return ""
