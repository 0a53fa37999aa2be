"""Of which memory may the indexer's logits take a share: the GPU's own, or the host's where it has none?"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from builder.probe.devices import GB10, RTX_BLACKWELL, cuda_device
from builder.probe.harness import (
    Answer,
    CannotTell,
    Opaque,
    Program,
    Tree,
    defect,
    environment,
    fixed,
    locate,
    unknown,
)

BUDGET = ("python/sglang/srt/layers/attention/mqa_logits_utils.py",)
INDEXER = ("python/sglang/srt/layers/attention/dsa/dsa_indexer.py",)
GIB = 1 << 30
SHARE = 0.2  # SGLANG_DSA_MQA_LOGITS_FREE_MEM_FRACTION


@dataclass(frozen=True)
class Memory:
    """A device's memory in GiB.

    Args:
        integrated: whether it is the host's.
        free: what ``mem_get_info`` says.
        available: what the host's kernel says, page cache that can be given back included.
    """

    integrated: bool
    free: int
    available: int
    total: int = 120


LOADED = Memory(integrated=True, free=1, available=30)  # the page cache still holds the weights' files
FULL = Memory(integrated=True, free=1, available=2)
ROOMY = Memory(integrated=True, free=90, available=100)
OWN = Memory(integrated=False, free=3, available=100, total=96)
STATIC = 0.5  # --mem-fraction-static: of the rest, the share is the most that any budget may be


def _program(tree: Tree, memory: Memory) -> Program:
    gpu = GB10 if memory.integrated else RTX_BLACKWELL
    properties = SimpleNamespace(
        major=gpu[0], minor=gpu[1], is_integrated=int(memory.integrated), total_memory=memory.total * GIB
    )
    host = SimpleNamespace(available=memory.available * GIB, free=memory.free * GIB, total=memory.total * GIB)
    free = (memory.free * GIB, memory.total * GIB)
    settings = SimpleNamespace(mem_fraction_static=STATIC)
    return Program(
        tree,
        cuda_device(gpu)
        | {
            "torch.cuda.get_device_properties": lambda *_: properties,
            "torch.cuda.mem_get_info": lambda *_: free,
            "psutil.virtual_memory": lambda: host,
            "get_device_module": lambda: SimpleNamespace(get_device_properties=lambda *_: properties),
            "get_schedule": lambda: settings,
            "get_server_args": lambda: settings,
            "get_is_capture_mode": lambda: False,
            "is_hip": lambda: False,
            "is_xpu": lambda: False,
            "logger": Opaque("logger"),
        },
    )


def _budget(tree: Tree, memory: Memory) -> float:
    """The budget in GiB that the indexer measures outside of a graph's capture."""
    path = locate(tree, BUDGET, b"def mqa_logits_budget_bytes")
    with environment():
        if path is not None:
            measure = _program(tree, memory).module(path).mqa_logits_budget_bytes
            return _gib(measure(device_index=0, allow_sync=True))
        path = locate(tree, INDEXER, b"def _get_mqa_logits_budget_bytes")
        if path is None:
            raise CannotTell("the budget of the indexer's logits was not found")
        indexer = _program(tree, memory).module(path).Indexer
        return _gib(indexer._get_mqa_logits_budget_bytes(indexer.__new__(indexer), 0))


def _gib(size: object) -> float:
    if not isinstance(size, int):
        raise CannotTell(f"the budget is {size!r}")
    return size / GIB


def probe(tree: Tree) -> Answer:
    loaded, full, roomy, own = (_budget(tree, memory) for memory in (LOADED, FULL, ROOMY, OWN))
    if abs(own - SHARE * OWN.free) > 0.01:
        return unknown(f"a GPU with {OWN.free} GiB of its own memory free gives {own:.2f} GiB, not a fifth")
    if roomy > (most := SHARE * (1 - STATIC) * ROOMY.total):
        return defect(f"{roomy:.2f} GiB, and --mem-fraction-static {STATIC} leaves a share of {most:.2f}")
    wrong = [
        f"{budget:.2f} GiB where {memory.available} are available and mem_get_info says {memory.free}"
        for budget, memory in ((loaded, LOADED), (full, FULL))
        if abs(budget - SHARE * memory.available) > 0.01
    ]
    if wrong:
        return defect(f"a GPU in the host's memory: {'; '.join(wrong)}")
    return fixed(
        f"a fifth of what the host has available on an integrated GPU ({loaded:.2f} GiB of "
        f"{LOADED.available}), of what is free on another ({own:.2f} GiB of {OWN.free})"
    )
