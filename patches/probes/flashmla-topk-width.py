"""How wide is the index table that reaches FlashInfer's SM12x kernels, and has it kernels for that width?

FlashInfer compiles its DSV4 kernels by width. The pinned release decides what it has: the tables below were
read from the sources of 0.6.14, 0.6.15.post1, 0.6.17, 0.6.18 and 0.7.2.
"""

from __future__ import annotations

import ast
import re
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
HEADS = 64
DECODE, PREFILL = 5, 80  # tokens; FlashInfer's decode kernels end at 64
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
    """The pinned FlashInfer: what it says it has, and the table it was called with."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.calls: list[dict[str, Any]] = []
        self.widths = OLD_WIDTHS if release(version) < (0, 6, 18) else WIDTHS_0_6_18

    def stubs(self) -> dict[str, object]:
        kernels = SimpleNamespace(
            _sparse_mla_sm120_paged_attention=self._paged_attention,
            _DECODE_MAX_TOKENS=64,
            _DECODE_DSV4_DISPATCH=frozenset((h, w) for h in (8, 16, 32, 64, 128) for w in self.widths),
        )
        mla = SimpleNamespace(_sparse_mla_sm120=kernels)
        if release(self.version) >= (0, 7):
            dsv4 = SimpleNamespace(supports_decode=lambda num_heads, topk, **_: topk in self.widths)
            mla.supported_sparse_mla_sm120_configs = lambda **_: {"dsv4": dsv4}
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
        self.calls.append({"indices": indices, "topk_length": named.get("topk_length")})


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


def reaches_kernel(
    tree: Tree, path: str, version: str, width: int, tokens: int
) -> tuple[list[list[int]], FlashInfer]:
    """The index table that FlashInfer gets for one of ``width`` columns; its first row counts up from 0."""
    flashinfer = FlashInfer(version)
    stubs = {
        "torch.uint8": "uint8",
        "torch.int32": "int32",
        "torch.full": full,
        "torch.cat": cat,
        "torch.concat": cat,
        "torch.nn.functional.pad": pad,
    }
    module = Program(tree, cuda_device(GB10) | stubs | flashinfer.stubs()).module(path)
    cache = Opaque("k_cache", dtype="uint8", ndim=4, shape=(100, 64, 1, 584))
    squeezed = Opaque("q", ndim=3, shape=(tokens, HEADS, 512), device="cuda:0")
    queries = Opaque("q", ndim=4, shape=(tokens, 1, HEADS, 512), device="cuda:0", squeeze=lambda *_: squeezed)
    lengths = Opaque("topk_length")
    module.flash_mla_with_kvcache_sm120(
        q=queries,
        k_cache=cache,
        indices=Table([list(range(width)) for _ in range(tokens)]),
        topk_length=lengths,
        attn_sink=Opaque("attn_sink"),
        head_dim_v=512,
        softmax_scale=0.04,
    )
    if len(flashinfer.calls) != 1 or flashinfer.calls[0]["topk_length"] is not lengths:
        raise CannotTell(f"FlashInfer was called {len(flashinfer.calls)} times, or with other lengths")
    return flashinfer.calls[0]["indices"].rows, flashinfer


def probe(tree: Tree) -> Answer:
    dispatch = locate(tree, DISPATCH, b"_sparse_mla_sm120_paged_attention", "python/sglang/kernels/")
    builder = locate(tree, BUILDER, b"def build_dspark_swa_page_indices_triton", "python/sglang/")
    if dispatch is None and not tree.grep(b"def flash_mla_with_kvcache_sm120", "python/sglang/kernels/"):
        return unknown("FlashMLA for SM12x was not found: nothing defines flash_mla_with_kvcache_sm120")
    if builder is None and not tree.grep(b"target_width", "python/sglang/srt/speculative/"):
        return unknown(
            "DSpark's index table was not found: nothing defines build_dspark_swa_page_indices_triton"
        )
    if dispatch is None or builder is None:
        raise CannotTell("DSpark's index tables do not reach FlashInfer's SM12x kernels in a way known here")
    version = pinned(tree)
    said, wrong = [], []
    for width in (128, *(table_width(tree, builder, block) for block in BLOCKS)):
        for tokens in (DECODE, PREFILL):
            rows, flashinfer = reaches_kernel(tree, dispatch, version, width, tokens)
            got = len(rows[0])
            said.append(f"{width} -> {got}")
            if got not in flashinfer.widths:
                wrong.append(f"{width} columns and {tokens} tokens: no kernel for {got}")
            elif width == 128 and got != 128:
                wrong.append(f"128 columns widened to {got}")
            elif any(row[:width] != list(range(width)) or set(row[width:]) - {-1} for row in rows):
                wrong.append(f"{width} columns: not the indices and then -1")
    have = f"FlashInfer {version} has {', '.join(map(str, FlashInfer(version).widths))}"
    if wrong:
        return defect(f"{have}; {'; '.join(wrong)}", PACKAGE)
    return fixed(f"{have}; {', '.join(dict.fromkeys(said))}", PACKAGE)
