"""Does DeepSeek-V4's indexer take a bounded amount of memory for its logits, and select the same?

The real indexer runs with stand-ins that keep account: logits are rows times columns of 4 bytes, with what
PyTorch gathers on the way to them, as long as somebody holds them. What is selected for a row is a note of
all that it was scored and selected with.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from support.rows import Logits, Memory, Rows

from builder.probe.harness import (
    Answer,
    Opaque,
    Program,
    Tree,
    call,
    defect,
    environment,
    fixed,
    locate,
    unknown,
)

INDEXER = ["python/sglang/srt/layers/attention/dsv4/indexer.py"]
METADATA = ["python/sglang/srt/layers/attention/dsv4/metadata.py"]
MIB = 1 << 20
FREE, TOTAL = 400 * MIB, 32 << 30  # what the device says
PAGE = 256
LONG, LONGEST = 131_072, 1_048_576  # tokens that a row may look at; a compressed key for each 4
MANY, FEW = 8192, 1024  # rows: with LONG, and with LONGEST, 1 GiB of logits at 4 bytes
GATHERED = 4 + 132 + 256  # a logit, and a key as it is stored and as it is multiplied, for every row
SETTINGS = {
    "tilelang": {"SGLANG_OPT_USE_TILELANG_INDEXER": "1", "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1"},
    "torch": {"SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1"},
    "deep_gemm": {},
    "nonpaged": {},
}


@dataclass(frozen=True)
class Step:
    """A step of prefill: the kernels that score, the tokens that its rows look at, and how many rows."""

    kernels: str
    tokens: int
    rows: int = FEW
    topk_v2: bool = False
    raw: bool = False
    captured: bool = False

    def __str__(self) -> str:
        return f"{self.kernels}, {self.rows:,} rows, {self.tokens:,} tokens"


STEPS = (
    Step("tilelang", LONG, rows=MANY),
    *(Step(kernels, LONGEST) for kernels in SETTINGS),
    Step("deep_gemm", LONGEST, topk_v2=True),
    Step("tilelang", LONGEST, rows=FEW - 1, raw=True),
    Step("tilelang", 2048, rows=16),
    Step("tilelang", LONGEST, captured=True),
)


class Kernels:
    """Stands in for the kernels that score and select."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.selected: dict[int, list[Any]] = {}

    def paged(self, each: int) -> Any:
        def score(
            q: Any, cache: Any, weights: Rows, lens: Rows, table: Rows, schedule: Any, width: int, *_: Any
        ) -> Logits:
            if schedule is not None and [row[1] for row in schedule.rows] != [row[1] for row in lens.rows]:
                raise ValueError(f"a schedule of {len(schedule)} rows for {len(lens)}")
            return self._logits(each, width, q, weights, lens, table)

        return score

    def nonpaged(
        self, q: Rows, kv: Any, weights: Rows, starts: Rows, ends: Rows, *_: Any, max_seqlen_k: int, **__: Any
    ) -> Logits:
        return self._logits(4, max_seqlen_k, q, weights, starts, ends)

    def _logits(self, each: int, width: int, *columns: Rows) -> Logits:
        if len({len(column) for column in columns}) != 1:
            raise ValueError(f"{[len(column) for column in columns]} rows are scored together")
        return Logits(self.memory, zip(*(column.rows for column in columns), strict=True), width, each)

    def select(self, logits: Rows, lens: Rows, table: Rows, out: Rows, page: int, *last: Any) -> None:
        several = [logits, lens, table, out, *(rows for rows in last if isinstance(rows, Rows))]
        if len({len(rows) for rows in several}) != 1:
            raise ValueError(f"{[len(rows) for rows in several]} rows are selected together")
        for number, place in enumerate(out.rows):
            note = [rows.rows[number] for rows in several]
            self.selected.setdefault(place[1], []).append([*note[0], *note[1:]])


def _column(name: str, count: int, *tail: int) -> Rows:
    return Rows(((name, number) for number in range(count)), *tail)


def _select(tree: Tree, path: str, step: Step) -> Kernels:
    kernels, properties = Kernels(), SimpleNamespace(total_memory=TOTAL, is_integrated=False)
    chosen = {
        "is_hip": lambda: False, "is_npu": lambda: False, "is_xpu": lambda: False, "is_cuda": lambda: True,
        "is_sm120_supported": lambda *_: True,
        "tilelang_fp8_paged_mqa_logits": kernels.paged(4),
        "fp8_paged_mqa_logits_torch_sm120": kernels.paged(GATHERED),
        "fp8_paged_mqa_logits_torch": kernels.paged(GATHERED),
        "deep_gemm.fp8_paged_mqa_logits": kernels.paged(4),
        "deep_gemm.fp8_mqa_logits": kernels.nonpaged,
        "deep_gemm.get_num_sms": lambda: 48,
        "get_paged_mqa_logits_metadata": lambda lens, *_, **__: Rows(lens.rows),
        "deep_gemm.get_paged_mqa_logits_metadata": lambda lens, *_, **__: Rows(lens.rows),
        "plan_topk_v2": lambda lens, *_, **__: Rows(lens.rows),
        "topk_transform_512": kernels.select,
        "topk_transform_512_v2": kernels.select,
        "topk_transform_paged": kernels.select,
        "topk_transform_paged_v2": kernels.select,
        "topk_transform_512_pytorch_vectorized": kernels.select,
        "get_global_indexer_capturer": lambda: None,
        "get_schedule": lambda: SimpleNamespace(mem_fraction_static=0.85),
        "get_device_module": lambda: SimpleNamespace(get_device_properties=lambda *_: properties),
        "torch.cuda.get_device_properties": lambda *_: properties,
        "torch.Tensor": Rows,
        "torch.int32": "int32",
        "torch.empty": lambda size, **_: Rows([()] * size[0]),
        "torch.empty_like": lambda other, **_: Rows(other.rows, *other.tail),
        "torch.zeros_like": lambda other, **_: Rows((("start", row[1]) for row in other.rows), *other.tail),
        "torch.cuda.is_current_stream_capturing": lambda: step.captured,
        "torch.cuda.mem_get_info": lambda *_: (FREE, TOTAL),
    }  # fmt: skip
    settings = SETTINGS[step.kernels] | {
        "SGLANG_OPT_USE_TOPK_V2": "1" if step.topk_v2 else "0",
        "SGLANG_OPT_DSV4_NONPAGED_INDEXER_MIN_QUERY_TOKENS": "1",
    }
    with environment(**settings):
        program = Program(tree, chosen)
        module = program.module(path)
        made = program.module(locate(tree, METADATA, b"class PagedIndexerMetadata") or "")
        pages, count = step.tokens // PAGE, step.rows
        table, lens = _column("table", count, pages), _column("len", count)
        metadata = call(
            made.PagedIndexerMetadata,
            page_size=PAGE,
            page_table=table,
            use_topk_v2=step.topk_v2,
            **{"c4_seq_lens": lens, "compressed_seq_lens": lens, "compressed_page_size": PAGE // 4},
        )
        core = SimpleNamespace(
            positions=_column("position", count),
            page_table=table,
            c4_sparse_page_indices=_column("out", count, 512),
            c4_sparse_raw_indices=_column("raw", count, 512) if step.raw else None,
        )
        cache = Opaque("cache", shape=(9, 64 * 132), dim=lambda: 2)
        pool = SimpleNamespace(
            get_index_k_with_scale_buffer=lambda **_: cache,
            get_index_k_scale_buffer=lambda **_: (Opaque("k"), Opaque("scale")),
        )
        queries, weights = _column("q", count, 64, 128), _column("w", count, 64, 1)
        known = {
            "token_to_kv_pool": pool,
            "forward_metadata": SimpleNamespace(indexer_metadata=metadata, core_metadata=core),
            "hisparse_coordinator": None,
            "debug_use_external_c4_sparse_indices": False,
            "dsa_topk_backend": SimpleNamespace(
                is_torch=lambda: False,
                is_flashinfer=lambda: False,
                is_sgl_kernel=lambda: False,  # it would leave out keys of short rows, which are looked up
                should_use_topk_v2=lambda: step.topk_v2,
            ),
            "_forward_prepare_normal": lambda self, **_: (queries, weights),
            "_can_use_nonpaged_indexer": lambda self, **_: step.kernels == "nonpaged",
        }
        indexer = object.__new__(type("Indexer", (module.C4IndexerBackendMixin,), known))
        batch = Opaque(
            "batch",
            forward_mode=SimpleNamespace(is_idle=lambda: False, is_decode=lambda: False),
            seq_lens=_column("tokens", 1), seq_lens_cpu=[step.tokens], extend_start_loc=_column("first", 1),
            extend_seq_lens=_column("more", 1), extend_seq_lens_cpu=[count], extend_num_tokens=count,
        )  # fmt: skip
        rows = _column("x", count, 4096)
        call(
            indexer.forward_c4_indexer,
            x=rows, q_lora=rows, forward_batch=batch,
            c4_indexer=SimpleNamespace(use_fp4_indexer=False, layer_id=3),
        )  # fmt: skip
    return kernels


def _wrong(step: Step, kernels: Kernels) -> str:
    for number in range(step.rows):
        notes = kernels.selected.get(number, [])
        if len(notes) != 1:
            return f"row {number} is selected {len(notes)} times"
        others = [part for part in notes[0] if part[1] != number]
        if others:
            return f"row {number} is selected with {others[0][0]} of row {others[0][1]}"
        wanted = {"q", "w", "len", "table", "out"} | ({"raw"} if step.raw else set())
        wanted |= {"start"} if step.kernels == "nonpaged" else set()
        if not wanted <= {part[0] for part in notes[0]}:
            return f"row {number} is selected without its {', '.join(wanted - {p[0] for p in notes[0]})}"
    return ""


def probe(tree: Tree) -> Answer:
    path = locate(tree, INDEXER, b"class C4IndexerBackendMixin")
    if path is None:
        return unknown("DeepSeek-V4's indexer was not found: nothing defines class C4IndexerBackendMixin")
    peaks = []
    for step in STEPS:
        kernels = _select(tree, path, step)
        peak = kernels.memory.peak
        if step.captured:
            if kernels.memory.calls != 1:
                return defect(f"{step}: {kernels.memory.calls} calls while a graph is captured")
            continue
        if peak > FREE:
            return defect(f"{step}: {peak / MIB:,.0f} MiB at once, where {FREE // MIB} are free")
        wrong = _wrong(step, kernels)
        if wrong:
            return defect(f"{step}: {wrong}")
        if step.rows < 32 and kernels.memory.calls != 1:
            return defect(f"{step}: {kernels.memory.calls} calls")
        peaks.append(peak)
    return fixed(
        f"at most {max(peaks) / MIB:,.0f} MiB at once; every row is scored and selected once, with its own"
    )
