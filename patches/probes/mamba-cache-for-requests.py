"""How many of the requests that were asked for does the state cache of a hybrid model serve?

The sizing code gets a budget for attention KV and state together. With p bytes a state, D draft tokens and 5
slots a request (3, and 2 overlap buffers), p(1+D) is spent before the first request and each takes p(5+D).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

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

SIZING = ["python/sglang/srt/mem_cache/kv_cache_configurator.py"]
HOOK = "python/sglang/srt/arg_groups/speculative_hook.py"
GIB = 1 << 30
DRAFT_TOKENS, SLOTS, RATIO, RESOLVER_DEFAULT = 16, 5, 0.9, 48


class Log:
    """Stands in for a module's logger; keeps what is said at warning level and above."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []

    def log(self, level: int, message: object, *args: object, **kwargs: object) -> None:
        self.lines.append((level, str(message) % args if args else str(message)))

    def __getattr__(self, name: str) -> Any:
        levels = {"error": logging.ERROR, "critical": logging.CRITICAL, "exception": logging.ERROR}
        level = levels.get(name, logging.WARNING if name.startswith("warn") else logging.INFO)
        return lambda message, *args, **kwargs: self.log(level, message, *args)

    @property
    def errors(self) -> list[str]:
        return [text for level, text in self.lines if level >= logging.ERROR]


class Settings:
    """All the settings that the sizing reads, whatever accessor a release reads them through."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def override(self, source: str, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        raise CannotTell(f"the sizing reads the setting {name}, which this probe does not know")


@dataclass(frozen=True)
class Case:
    """A server: GiB for KV and state, bytes of one state, what --max-running-requests asks for."""

    memory: float
    state: int
    asked: int | None


@dataclass(frozen=True)
class Sizing:
    """What came of it: slots, requests served, GiB left for attention KV, or the error that was raised."""

    slots: int
    served: int
    left: float
    errors: list[str]
    raised: str = ""


def _settings(case: Case) -> Settings:
    return Settings(
        max_running_requests=case.asked if case.asked is not None else RESOLVER_DEFAULT,
        max_mamba_cache_size=None,
        mamba_full_memory_ratio=RATIO,
        disable_radix_cache=False,
        disable_overlap_schedule=False,
        speculative_num_draft_tokens=DRAFT_TOKENS,
        max_speculative_num_draft_tokens=DRAFT_TOKENS,
        mem_fraction_static=0.9,
        enable_linear_replayssm_spec=False,
        linear_replayssm_cache_len=0,
        disaggregation_mode="null",
        mamba_radix_cache_strategy="extra_buffer",
        enable_mamba_extra_buffer=lambda: True,
        enable_mamba_extra_buffer_lazy=lambda: False,
    )


def _configurator(tree: Tree, path: str, case: Case, log: Log) -> tuple[Any, Settings]:
    """A configurator of the tree for this server, and the settings it reads and writes."""
    settings = _settings(case)
    mamba = SimpleNamespace(
        enable_mamba_extra_buffer=True,
        enable_mamba_extra_buffer_lazy=False,
        enable_linear_replayssm_spec=False,
        linear_replayssm_cache_len=0,
    )
    program = Program(
        tree,
        {
            "logger": log,
            "get_schedule": lambda: settings,
            "get_memory": lambda: settings,
            "get_spec": lambda: settings,
            "get_disagg": lambda: settings,
            "get_context": lambda: settings,
            "get_exec": lambda: SimpleNamespace(mamba=mamba),
            "mamba_extra_buffer_enabled": lambda: True,
            "mamba_extra_buffer_lazy_enabled": lambda: False,
            "kimi_linear_config": lambda config: None,
        },
    )
    layers = list(range(34))
    known = {
        "mambaish_config": Opaque(
            "mambaish_config",
            mamba2_cache_params=Opaque("cache_params", layers=layers, mamba_cache_per_req=case.state),
        ),
        "hybrid_gdn_config": None,
        "hybrid_kda_config": None,
        "server_args": _server_args(tree, case, settings),
        "spec_algorithm": SimpleNamespace(is_none=lambda: False),
        "model_config": Opaque("model_config", context_len=32768, num_hidden_layers=45),
        "ps": Opaque("ps", pp_size=1, attn_dp_size=1),
        "pp_size": 1,
        "attn_dp_size": 1,
        "is_draft_worker": False,
        "extra_mamba_cache_bytes_per_req": 0,
        "fused_entry_bytes": lambda self, kind: None,
    }
    kind = program.module(path).KVCacheConfigurator
    return object.__new__(type("Configurator", (kind,), known)), settings


def _server_args(tree: Tree, case: Case, settings: Settings) -> Settings:
    """The server's arguments: as typed, save in releases whose resolvers write their defaults onto them."""
    if HOOK in tree and b"server_args.max_running_requests = " in tree.read(HOOK):
        return settings
    return Settings(**vars(settings) | {"max_running_requests": case.asked, "mamba_full_memory_ratio": None})


def _size(tree: Tree, path: str, case: Case) -> Sizing:
    log = Log()
    configurator, settings = _configurator(tree, path, case, log)
    with environment():
        try:
            left = configurator._handle_max_mamba_cache(case.memory)
            served = configurator.resolve_max_num_reqs(1_000_000)
        except RuntimeError as error:
            return Sizing(settings.max_mamba_cache_size or 0, 0, 0.0, log.errors, str(error))
    return Sizing(settings.max_mamba_cache_size, served, left, log.errors)


def _expected_left(case: Case, sizing: Sizing) -> float:
    """GiB that must remain after what the pools allocate: one a slot, D a request, and padding."""
    states = sizing.slots + 1 + (sizing.served + 1) * DRAFT_TOKENS
    return case.memory - states * case.state / GIB


def probe(tree: Tree) -> Answer:
    path = locate(tree, SIZING, b"def _handle_max_mamba_cache")
    if path is None:
        return unknown("the state cache's size was not found: nothing defines _handle_max_mamba_cache")
    fits = Case(16.0, 64 << 20, 8)
    tight = Case(7.0, 128 << 20, 1)
    greedy = Case(16.0, 64 << 20, 64)
    unasked = Case(16.0, 64 << 20, None)
    by_ratio = int(16.0 * RATIO / (1 + RATIO) * GIB / unasked.state / (1 + DRAFT_TOKENS / SLOTS))

    sized = {case: _size(tree, path, case) for case in (fits, tight, greedy, unasked)}
    faults = []
    if sized[fits].served < 8:
        faults.append(
            f"8 asked, {sized[fits].served} served of 16 GiB ({sized[fits].slots} slots, {SLOTS} each)"
        )
    elif abs(sized[fits].left - _expected_left(fits, sized[fits])) > 0.1:
        faults.append(
            f"{sized[fits].left:.2f} GiB are said to be left, {_expected_left(fits, sized[fits]):.2f} are"
        )
    if sized[tight].served < 1:
        faults.append("1 asked, none served of 7 GiB although one takes 4.8")
    if sized[greedy].left < 16 * 0.1:
        faults.append(f"64 asked: {sized[greedy].left:.2f} of 16 GiB are left for attention KV")
    if not any(_helps(line, sized[greedy].served) for line in sized[greedy].errors):
        faults.append(f"64 asked, {sized[greedy].served} served, and no error says so with the figures")
    if sized[unasked].slots > by_ratio:
        faults.append(f"nothing asked, but {sized[unasked].slots} slots where the ratio gives {by_ratio}")
    if faults:
        return defect("; ".join(faults))
    done = sized[fits]
    return fixed(
        f"8 asked, {done.served} served of 16 GiB ({done.slots} slots), {done.left:.1f} left for KV; "
        f"64 asked: {sized[greedy].served}, {sized[greedy].left:.1f} left, and an error with the figures"
    )


def _helps(line: str, served: int) -> bool:
    """Whether an error line has the figures and a flag that changes them."""
    return (
        str(served) in line
        and "64" in line
        and ("--max-mamba-cache-size" in line or "--mem-fraction" in line)
    )
