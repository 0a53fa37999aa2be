"""Does top-k over pooled keys take a bounded amount of memory for its logits, and select the same?

The real indexer runs with stand-ins that keep account: logits are rows times columns of 4 bytes, as long as
somebody holds them, and what is selected for a row is a note of all that it was scored and selected with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from support.rows import Logits, Memory, Rows

from builder.probe.harness import (
    Answer,
    CannotTell,
    Opaque,
    Program,
    Tree,
    absent,
    defect,
    environment,
    fixed,
    locate,
    unknown,
)

INDEXER = ["python/sglang/srt/layers/attention/dsa/dsa_indexer_kpool.py"]
DSA = ["python/sglang/srt/layers/attention/dsa/dsa_indexer.py"]
BACKEND = ["python/sglang/srt/layers/attention/dsa/dsa_topk_backend.py"]
MIB = 1 << 20
FREE, TOTAL = 400 * MIB, 32 << 30  # what the device says; the pools that are sized have the rest
PADDING, KPOOL, TOPK, PAGE = 64, 4, 2048, 64
LONG, LONGEST = 131_072, 1_048_576  # tokens that a row may look at; a pooled key for each 4
MANY, FEW = 8192, 1024  # rows: with LONG, and with LONGEST, 1 GiB of logits
SHORT = 4096
ALL = FEW * LONGEST // KPOOL * 4


class Scorer:
    """Stands in for DeepGEMM, for the kernel that selects, and for torch's makers of tensors."""

    def __init__(self) -> None:
        self.memory = Memory()

    def score(
        self, q: Rows, kv: tuple[Rows, Rows], weights: Rows, starts: Rows, ends: Rows, *_: Any, **__: Any
    ) -> Logits:
        keys, scales = kv
        if len({len(rows) for rows in (q, weights, starts, ends)}) != 1 or len(keys) != len(scales):
            raise ValueError("rows of queries, weights, starts and ends differ in number")
        rows = zip(q.rows, weights.rows, starts.rows, ends.rows, strict=True)
        return Logits(self.memory, rows, len(keys))

    def select(
        self,
        logits: Rows,
        group_lengths: Rows,
        pool_size: int = KPOOL,
        topk: int = TOPK,
        page_table: Rows | None = None,
        topk_offsets: Rows | None = None,
        seq_lens: Rows | None = None,
        row_starts: Rows | None = None,
        out_rows: int | None = None,
        page_table_row_index: Rows | None = None,
        kpool: int = KPOOL,
        **_: Any,
    ) -> Rows:
        if (pool_size, kpool, topk) != (KPOOL, KPOOL, TOPK):
            raise ValueError(f"top {topk} of pools of {pool_size}")
        count = len(logits)
        a_row_each = (group_lengths, seq_lens, row_starts, topk_offsets, page_table_row_index)
        tables = page_table if page_table_row_index is None else None
        if any(rows is not None and len(rows) != count for rows in (*a_row_each, tables)):
            raise ValueError("rows of logits and of what they are selected with differ in number")
        columns = [logits, *a_row_each, tables]
        notes = zip(*([None] * count if rows is None else rows.rows for rows in columns), strict=True)
        shared = page_table.rows[:1] if page_table is not None and tables is None else None
        selected = [(*note, str(shared)) for note in notes]
        selected += [-1] * (max(out_rows or 0, count) - count)
        return Rows(selected, topk + pool_size - 1)

    def made(self, size: Any, fill: Any = -1, *_: Any, **__: Any) -> Rows:
        rows, *tail = size
        return Logits(self.memory, [()] * rows, 0) if tail == [0] else Rows([fill] * rows, *tail)

    def joined(self, parts: Iterable[Rows], *_: Any, **__: Any) -> Rows:
        parts = list(parts)
        return Rows((row for part in parts for row in part.rows), *parts[0].tail)

    def program(self, tree: Tree, pool: object) -> Program:
        properties = SimpleNamespace(total_memory=TOTAL)
        table = SimpleNamespace(req_to_token=Rows([("table", 0)] * 4, 1))
        stubs: dict[str, object] = {name: lambda: False for name in ("is_hip", "is_npu", "is_xpu", "is_musa")}
        stubs |= {
            "is_cuda": lambda: True,
            "deep_gemm.fp8_mqa_logits": self.score,
            "topk_from_pooled_history_logits": self.select,
            "gather_index_k_scale_prefix_into": lambda **_: None,
            "build_pooled_page_table_64": lambda table, size: table,
            "get_token_to_kv_pool": lambda: pool,
            "get_req_to_token_pool": lambda: table,
            "get_is_capture_mode": lambda: False,
            "capture_mode": SimpleNamespace(is_capture_mode=False),
            "get_schedule": lambda: SimpleNamespace(mem_fraction_static=0.85),
            "get_device_module": lambda: SimpleNamespace(get_device_properties=lambda *_: properties),
            "torch.empty": self.made,
            "torch.full": self.made,
            "torch.zeros": lambda size, *_, **__: self.made(size, 0),
            "torch.empty_like": lambda other, **_: self.made(other.shape),
            "torch.cat": self.joined,
            "torch.concat": self.joined,
            "torch.tensor": lambda data, **_: Rows(data),
            "torch.cuda.mem_get_info": lambda *_: (FREE, TOTAL),
            "torch.cuda.is_current_stream_capturing": lambda: False,
            "torch.cuda.get_device_properties": lambda *_: properties,
            "logger": Opaque("logger"),
        }
        return Program(tree, stubs)


@dataclass(frozen=True)
class Prompt:
    """Query rows of one step, the tokens that they look at, and how what is selected is translated."""

    tokens: int
    method: str = "RAGGED"
    padding: int = 0
    planned: bool = True
    rows: int = FEW

    def __str__(self) -> str:
        way = "planned" if self.planned else "request by request"
        return f"{self.rows:,} rows, {self.tokens:,} tokens, {self.method.lower()}, {way}"


PROMPTS = (
    Prompt(LONG, padding=PADDING, rows=MANY),
    *(Prompt(LONGEST, method, PADDING) for method in ("PAGED", "RAGGED")),
    *(Prompt(LONGEST, method, planned=False) for method in ("PAGED", "RAGGED")),
    Prompt(SHORT, padding=PADDING),
    Prompt(2, padding=PADDING),  # no pooled key yet
    Prompt(2, planned=False),
    Prompt(LONGEST, rows=FEW - 1, padding=1),
)


def _column(name: str, count: int) -> Rows:
    return Rows((name, number) for number in range(count))


def _keys(count: int) -> Rows:
    """Of keys only the number matters."""
    return Rows([None] * count)


def _topk(tree: Tree, path: str, prompt: Prompt) -> tuple[Rows, Memory]:
    """What is selected for each row, and what the logits took."""
    columns, count = prompt.tokens // KPOOL, prompt.rows
    pool = SimpleNamespace(
        page_size=PAGE,
        index_page_size=PAGE,
        get_index_k_with_scale_buffer=lambda **_: Opaque("buffer"),
        get_index_k_scale_buffer=lambda *_: (_keys(columns), _keys(columns)),
    )
    scorer = Scorer()
    program = scorer.program(tree, pool)
    methods = program.module(locate(tree, BACKEND, b"class TopkTransformMethod") or "").TopkTransformMethod
    per_row = {name: _column(name, count) for name in ("start", "end", "pooled", "seq", "offset", "request")}
    plan = SimpleNamespace(
        seq_lens_expanded=per_row["seq"],
        pooled_seq_lens_expanded=per_row["pooled"],
        ragged_q_ks=per_row["start"],
        ragged_q_ke=per_row["end"],
        ragged_total_k_rows=columns,
        ragged_k_u8=_keys(columns) if columns else None,
        ragged_k_scale=_keys(columns) if columns else None,
        ragged_concat_page_table=Opaque("page table"),
        ragged_paged_page_table=Rows([("table", 0)] * 4, 1) if prompt.method == "PAGED" else None,
        ragged_paged_page_table_row_index=per_row["request"] if prompt.method == "PAGED" else None,
        topk_v2_plan=None,
        cp=None,
    )
    attention = SimpleNamespace(
        kpool_extend_plan=plan if prompt.planned else None,
        topk_indices_offset=per_row["offset"],
        kpool_extend_pooled_page_tables=[_column("pages", 4)] * 2,
        kpool_extend_zero_starts=None,
        page_size=PAGE,
        kpool_seqlens_expanded=per_row["pooled"],
    )
    metadata = SimpleNamespace(
        attn_metadata=attention,
        topk_transform_method=methods[prompt.method],
        force_unfused_topk=False,
        get_page_table_64=lambda: _column("pages", 4),
        get_seqlens_expanded=lambda: per_row["seq"],
    )
    first = count // 3
    batch = SimpleNamespace(
        batch_size=2,
        extend_seq_lens_cpu=[first, count - first],
        seq_lens_cpu=[SimpleNamespace(item=lambda: prompt.tokens)] * 2,
        req_pool_indices=[SimpleNamespace(item=lambda: 0)] * 2,
    )
    kind = program.module(path).IndexerKPool
    known = {"index_kpool": KPOOL, "index_topk": TOPK, "head_dim": 128, "alt_stream": None}
    indexer = object.__new__(type("Indexer", (kind,), known))
    total = count + prompt.padding
    queries, weights = Rows(_column("q", total).rows, 32, 128), Rows(_column("w", total).rows, 32, 1)
    with environment():
        if prompt.planned:
            result = indexer._get_topk_ragged_kpool_plan(batch, 0, queries, weights, metadata)
        else:
            result = indexer._get_topk_ragged_kpool(batch, 0, queries, weights.squeeze(-1), metadata)
    if not isinstance(result, Rows):
        raise CannotTell(f"the indexer gives a {type(result).__name__}")
    return result, scorer.memory


def _wrong_rows(prompt: Prompt, result: Rows) -> str:
    """How what was selected differs from one note for each row, in order, and padding after them."""
    selected, padding = result.rows[: prompt.rows], result.rows[prompt.rows :]
    if len(selected) != prompt.rows or padding != [-1] * prompt.padding:
        return f"{len(result.rows)} rows come of {prompt.rows}, and {prompt.padding} of padding"
    for number, row in enumerate(selected):
        if not isinstance(row, tuple):
            return f"row {number} is never selected"
        scores, *others = row
        parts = [*scores, *others]
        numbers = [part[1] for part in parts if isinstance(part, tuple) and part[0] != "table"]
        names = {part[0] for part in parts if isinstance(part, tuple)}
        # One request's rows start at key 0, and its table is the same for all of its rows.
        strangers = [found for found in numbers if found != number]
        wanted = {"q", "w", "pooled", "seq"} if prompt.tokens >= KPOOL else {"pooled", "seq"}
        if prompt.method == "RAGGED":
            wanted |= {"offset"}
        elif prompt.planned:
            wanted |= {"request"}
        if prompt.planned:
            wanted |= {"start", *({"end"} if prompt.tokens >= KPOOL else ())}
        if strangers or not wanted <= names:
            lacking = ", ".join(sorted(wanted - names))
            return f"row {number} is selected with " + (
                f"row {strangers[0]}" if strangers else f"no {lacking}"
            )
    return ""


def probe(tree: Tree) -> Answer:
    path = locate(tree, INDEXER, b"class IndexerKPool")
    if path is None:
        if not tree.grep(b"index_kpool", "python/sglang/srt/"):
            dsa = locate(tree, DSA, b"class Indexer(")
            if dsa is not None:
                return absent("nothing reads index_kpool: DSA's indexer pools no keys", f"{dsa}:Indexer")
        return unknown("the indexer over pooled keys was not found: nothing defines class IndexerKPool")
    peaks = []
    for prompt in PROMPTS:
        result, memory = _topk(tree, path, prompt)
        if memory.peak > FREE:
            return defect(
                f"{prompt}: {memory.peak / MIB:,.0f} MiB of logits at once, where {FREE // MIB} are free"
            )
        wrong = _wrong_rows(prompt, result)
        if wrong:
            return defect(f"{prompt}: {wrong}")
        if prompt.tokens == SHORT and memory.calls != 1:
            return defect(f"{prompt}: {memory.calls} calls for {memory.peak / MIB:.0f} MiB of logits")
        peaks.append(memory.peak)
    return fixed(
        f"at most {max(peaks) / MIB:,.0f} MiB of logits at once, where all of them would be up to "
        f"{ALL / MIB:,.0f}; every row is scored and selected once, with its own"
    )
