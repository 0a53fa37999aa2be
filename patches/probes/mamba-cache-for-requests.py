"""Which requests that were asked for does the state cache of a hybrid model serve, and what is left?

The sizing code gets a budget for attention KV and state together. With p bytes a state, D draft tokens and 5
slots a request (3, and 2 overlap buffers), p(1+D) is spent before the first request and each takes p(5+D).
What is asked for is a cap: the pool grows for all of it, and leaves attention a quarter and a context, or
not at all.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
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
GIB, MIB = 1 << 30, 1 << 20
SLOTS, RATIO, SHARE, RESOLVER_DEFAULT = 5, 0.9, 0.25, 48
CONTEXT, PAGE, ATTENTION_LAYERS, STATE_LAYERS = 32768, 64, 11, 34


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
    def warnings(self) -> list[str]:
        return [text for level, text in self.lines if level >= logging.WARNING]


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
    """A server.

    Args:
        memory: GiB for attention KV and state.
        asked: what ``--max-running-requests`` asks for; None where it is not given.
        state: bytes of one state.
        drafts: draft tokens; 0 without speculative decoding.
        token: bytes that attention KV takes a token.
        workers: data-parallel workers of attention, each of which has its share of the requests.
        stages: of a pipeline.
        ratio: ``--mamba-full-memory-ratio``; None where it is not given.
        models_ratio: the ratio that the model's own defaults declare.
        slots: ``--max-mamba-cache-size``.
        extra: bytes that a draft's state adds to each slot, in releases that have such.
    """

    memory: float
    asked: int | None
    state: int = 64 * MIB
    drafts: int = 16
    token: int = 64 << 10
    workers: int = 1
    stages: int = 1
    ratio: float | None = None
    models_ratio: float = RATIO
    slots: int | None = None
    extra: int = 0

    @property
    def ratio_in_effect(self) -> float:
        return self.models_ratio if self.ratio is None else self.ratio

    def by_ratio(self) -> int:
        """The slots that the ratio's share of the memory makes."""
        ratio = self.ratio_in_effect
        share = self.memory * ratio / (1 + ratio) * GIB - self.state * (1 + self.drafts) - self.extra
        return int(share // (self.state * (1 + self.drafts / SLOTS) + self.extra))

    def __str__(self) -> str:
        details = {
            f"ratio {self.ratio} given": self.ratio is not None,
            f"ratio {self.models_ratio} of the model's": self.models_ratio != RATIO,
            f"{self.slots} slots given": self.slots is not None,
            f"{self.workers} workers": self.workers > 1,
            f"{self.extra >> 20} MiB of a draft's in each slot": self.extra > 0,
            f"{self.token >> 10} KiB a token": self.token != Case.token,
            "no speculation": not self.drafts,
        }
        said = [f"{self.asked or 'none'} asked of {self.memory:g} GiB"]
        said += [text for text, holds in details.items() if holds]
        return ", ".join(said)


@dataclass(frozen=True)
class Sizing:
    """What came of it: slots, requests served, GiB left for attention KV, what was logged or raised."""

    slots: int
    served: int
    left: float
    warnings: list[str]
    raised: str = ""


def _settings(case: Case) -> dict[str, Any]:
    return {
        "max_running_requests": case.asked if case.asked is not None else RESOLVER_DEFAULT,
        "max_mamba_cache_size": case.slots,
        "mamba_full_memory_ratio": case.ratio_in_effect,
        "disable_radix_cache": False,
        "disable_overlap_schedule": False,
        "speculative_num_draft_tokens": case.drafts or None,
        "max_speculative_num_draft_tokens": case.drafts or None,
        "mem_fraction_static": 0.9,
        "page_size": PAGE,
        "max_total_tokens": None,
        "enable_linear_replayssm_spec": False,
        "linear_replayssm_cache_len": 0,
        "disaggregation_mode": "null",
        "mamba_radix_cache_strategy": "extra_buffer",
        "enable_mamba_extra_buffer": lambda: True,
        "enable_mamba_extra_buffer_lazy": lambda: False,
        "enable_unified_memory": False,
        "pp_size": case.stages,
    }


class AttentionPools:
    """Stands in for the sizing of attention KV: so many bytes a token, in pages."""

    def __init__(self, token: int) -> None:
        self.token = token

    def calculate_pool_sizes(self, available_bytes: float, page_size: int) -> SimpleNamespace:
        return self.calculate_pool_sizes_from_max_tokens(int(available_bytes) // self.token, page_size)

    def calculate_pool_sizes_from_max_tokens(self, tokens: int, page_size: int) -> SimpleNamespace:
        tokens = tokens // page_size * page_size
        if tokens <= 0:
            raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static.")
        return SimpleNamespace(max_total_num_tokens=tokens)


def _declares(kind: type, name: str) -> bool:
    """Whether objects of this class have the attribute: none is lent to a release that lacks it."""
    return hasattr(kind, name) or any(name in vars(base).get("__annotations__", {}) for base in kind.__mro__)


class Sizer:
    """The sizing code of a tree, run for one server after the other; each has its own settings and log."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.settings, self.log, self.token = Settings(), Log(), 0
        self.resolved_in_place = HOOK in tree and b"server_args.max_running_requests = " in tree.read(HOOK)
        self.has_extra = b"extra_mamba_cache_bytes_per_req: " in tree.read(path)
        mamba = SimpleNamespace(
            enable_mamba_extra_buffer=True,
            enable_mamba_extra_buffer_lazy=False,
            enable_linear_replayssm_spec=False,
            linear_replayssm_cache_len=0,
        )
        accessors = ("schedule", "memory", "spec", "disagg", "context", "parallel")
        pools = "sglang.srt.model_executor.pool_configurator.create_memory_pool_configurator"
        stubs: dict[str, object] = {
            "logger": self.log,
            "get_exec": lambda: SimpleNamespace(mamba=mamba),
            "mamba_extra_buffer_enabled": lambda: True,
            "mamba_extra_buffer_lazy_enabled": lambda: False,
            "kimi_linear_config": lambda config: None,
            pools: lambda configurator: AttentionPools(self.token),
        }
        stubs |= {f"get_{name}": lambda: self.settings for name in accessors}
        self.kind: type = Program(tree, stubs).module(path).KVCacheConfigurator

    def size(self, case: Case) -> Sizing:
        """Size the pools of this server."""
        vars(self.settings).clear()
        vars(self.settings).update(_settings(case))
        self.log.lines.clear()
        self.token = case.token
        configurator = self._configurator(case)
        with environment():
            try:
                left = configurator._handle_max_mamba_cache(case.memory)
                served = configurator.resolve_max_num_reqs(1_000_000)
            except RuntimeError as error:
                slots = self.settings.max_mamba_cache_size or 0
                return Sizing(slots, 0, 0.0, self.log.warnings, str(error))
        return Sizing(self.settings.max_mamba_cache_size, served, left, self.log.warnings)

    def _configurator(self, case: Case) -> Any:
        layers = list(range(STATE_LAYERS))
        known = {
            "mambaish_config": Opaque(
                "mambaish_config",
                mamba2_cache_params=Opaque("cache_params", layers=layers, mamba_cache_per_req=case.state),
            ),
            "hybrid_gdn_config": None,
            "hybrid_kda_config": None,
            "server_args": self._server_args(case),
            "spec_algorithm": SimpleNamespace(is_none=lambda: not case.drafts),
            "model_config": Opaque("model_config", context_len=CONTEXT, num_hidden_layers=STATE_LAYERS),
            "ps": Opaque("ps", pp_size=case.stages, attn_dp_size=case.workers),
            "pp_size": case.stages,
            "attn_dp_size": case.workers,
            "page_size": PAGE,
            "is_draft_worker": False,
            "extra_mamba_cache_bytes_per_req": case.extra,
            "fused_entry_bytes": lambda self, kind: None,
        }
        known = {name: value for name, value in known.items() if _declares(self.kind, name)}
        defaults = {
            name: field.default
            for name, field in getattr(self.kind, "__dataclass_fields__", {}).items()
            if name not in known and isinstance(field.default, bool | int | float | str | None)
        }
        return object.__new__(type("Configurator", (self.kind,), defaults | known))

    def _server_args(self, case: Case) -> Settings:
        """The arguments as typed, save in releases whose resolvers write their defaults onto them."""
        if self.resolved_in_place:
            return self.settings
        typed = {
            "max_running_requests": case.asked,
            "mamba_full_memory_ratio": case.ratio,
            "max_mamba_cache_size": case.slots,
        }
        return Settings(**vars(self.settings) | typed)


def _allocated(case: Case, slots: int, served: int) -> float:
    """GiB that the pools take: one state a slot, D a request, and a padding entry in both."""
    states = slots + 1 + (served + 1) * case.drafts
    return (states * case.state + (slots + 1) * case.extra) / GIB


# Servers of which all requests fit, with a quarter and one context left to attention.
GROWS = (
    Case(16, 8),
    Case(8, 1, state=128 * MIB),  # the ratio alone serves none
    Case(16, 16, workers=2),
    Case(16, 30, drafts=0),
)
# Servers whose split must be the ratio's, or the operator's.
STAYS = (
    Case(16, 16),
    Case(16, 64),
    Case(16, 1024),
    Case(16, 9),  # would leave 19 %
    Case(15.45, 8),  # would leave 24.8 %
    Case(16, 8, token=160 << 10),  # would leave 28,672 tokens for a context of 32,768
    Case(16, 40, drafts=0),  # would leave 21 %
    Case(16, 18, workers=2),
    Case(100, None),  # the 48 that resolvers declare would fit
    Case(64, 2),  # the ratio makes more slots than two take
    Case(16, 8, ratio=RATIO),
    Case(16, 8, ratio=0.6),
    Case(64, 8, models_ratio=0.1),
    Case(16, 8, slots=20),
    Case(64, 64, workers=2, slots=40),
)
# The same where a draft's state is in every slot. The first leaves 26.3 %, the second 23.2 %.
GROWS_WITH_EXTRA, STAYS_WITH_EXTRA = Case(16, 8, extra=4 * MIB), Case(16, 8, extra=16 * MIB)
# Two stages of one pipeline: of the same state, with more and fewer layers of attention. A pool for each.
STAGES = (Case(16, 16, stages=2), Case(16, 16, stages=2, token=512 << 10))


def probe(tree: Tree) -> Answer:
    path = locate(tree, SIZING, b"def _handle_max_mamba_cache")
    if path is None:
        return unknown("the sizing of the state cache was not found: nothing defines _handle_max_mamba_cache")
    sizer = Sizer(tree, path)
    first = sizer.size(GROWS[0])
    grows = (*GROWS, GROWS_WITH_EXTRA) if sizer.has_extra else GROWS
    stays = (*STAYS, STAYS_WITH_EXTRA) if sizer.has_extra else STAYS
    faults = [fault for case in grows for fault in _grown(case, sizer.size(case))]
    if first.served == GROWS[0].asked:
        faults += [fault for case in stays for fault in _stayed(sizer, case)]
        slots = [sizer.size(case).slots for case in STAGES]
        faults += [f"the stages of a pipeline come to {slots} slots"] * (len(set(slots)) > 1)
    if faults:
        return defect("; ".join(faults[:4]))
    capped = sizer.size(STAYS[1])
    return fixed(
        f"8 asked, {first.served} served of 16 GiB ({first.slots} slots), {first.left:.1f} left for KV; "
        f"64 asked: {capped.served} as by the ratio, {capped.left:.1f} left, and one warning with the figures"
    )


def _grown(case: Case, sizing: Sizing) -> list[str]:
    """What is wrong with a server of which every request fits."""
    asked = (case.asked or 0) // case.workers
    left = case.memory - _allocated(case, sizing.slots, sizing.served)
    if sizing.served < asked:
        return [
            f"{case.asked} asked, {sizing.served} served of {case.memory:g} GiB "
            f"({sizing.slots} slots, {SLOTS} each)"
        ]
    if sizing.slots <= asked * SLOTS:
        return [f"{case}: {sizing.slots} slots, none to spare for caching a prefix"]
    if abs(sizing.left - left) > 0.01:
        return [f"{case}: {sizing.left:.2f} GiB are said to be left, {left:.2f} are"]
    if left < case.memory * SHARE:
        return [f"{case}: {left:.2f} GiB are left for attention KV, less than a quarter"]
    return [f"{case}: all served, and a warning: {line}" for line in sizing.warnings]


def _stayed(sizer: Sizer, case: Case) -> list[str]:
    """What is wrong with a server whose split is not to change."""
    sizing = sizer.size(case)
    slots = case.by_ratio() if case.slots is None else case.slots // case.workers
    asked = (case.asked or RESOLVER_DEFAULT) // case.workers
    served = min(asked, slots // SLOTS)
    if (sizing.slots, sizing.served) != (slots, served):
        return [f"{case}: {sizing.slots} slots, {sizing.served} served; the split gives {slots} and {served}"]
    left = case.memory - _allocated(case, slots, served)
    if abs(sizing.left - left) > 0.01:
        return [f"{case}: {sizing.left:.2f} GiB are said to be left, {left:.2f} are"]
    if case.asked is None or served == asked:
        return []
    telling = [line for line in sizing.warnings if _numbers(line) >= {asked, served}]
    if len(telling) != 1:
        return [f"{case}: {served} served, and {len(telling)} warnings say both"]
    return _advice(sizer, case, telling[0])


def _numbers(line: str) -> set[int]:
    return {int(number) for number in re.findall(r"(?<![\d.])\d+(?![\d.]*\d)", line)}


def _advice(sizer: Sizer, case: Case, line: str) -> list[str]:
    """What is wrong with the flags that a warning names: two at least, and what it gives for them must do."""
    flags = re.findall(r"--[a-z][a-z-]+", line)
    if len(set(flags)) < 2:
        return [f"{case}: the warning names {len(set(flags))} flags that would change it: {line}"]
    faults = []
    for flag, known in (("--max-mamba-cache-size", "slots"), ("--mamba-full-memory-ratio", "ratio")):
        value = re.search(rf"{flag}[ =](\d+(?:\.\d+)?)", line)
        if value is None:
            continue
        number = float(value[1]) if known == "ratio" else int(value[1])
        changed = replace(case, slots=None, ratio=None)
        follows = sizer.size(replace(changed, **{known: number}))
        if follows.served < (case.asked or 0) // case.workers:
            faults.append(f"{case}: with {flag} {value[1]}, as advised, {follows.served} are served")
    return faults
