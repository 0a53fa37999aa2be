"""The memory of one rank: weights, recurrent state and attention KV, before anything is started.

The laws of the state pool are in :mod:`builder.launch.state_pool`. What is planned with are the server's own
arguments, so that the plan and the command line cannot disagree.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from builder.errors import UsageError
from builder.launch.arguments import Arguments
from builder.launch.state_pool import DEFAULT_RATIO, Holding, StatePool, state_budget

MIN_ATTENTION_SHARE = Fraction(1, 4)  # of states and attention KV: what a growing pool leaves to attention KV

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?i?B?)", re.IGNORECASE)
_BAR = 60


@dataclass(frozen=True)
class Sizes:
    """What a model takes on one rank, in bytes.

    Args:
        memory: of the GPU (of the whole machine where it is shared).
        weights: of this rank's part.
        kv_token: attention KV of one token; 0 where nobody said.
        state: one recurrent state of all linear-attention layers; 0 for a model without.
    """

    memory: int
    weights: int
    kv_token: int = 0
    state: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """How a rank's memory is used, in bytes.

    Args:
        sizes: what was asked about.
        static: what ``--mem-fraction-static`` allows for weights and pools.
        state: the state pool with its intermediate states.
        attention: what is left for attention KV.
        slots, served: of the state pool; None for a model without recurrent state.
        tokens: how many fit the attention KV; None where a token's bytes are not known.
        warning: that fewer requests are served than are asked for, and the arguments that change it.
    """

    sizes: Sizes
    static: int
    state: int
    attention: int
    slots: int | None
    served: int | None
    tokens: int | None
    warning: str | None

    def lines(self) -> list[str]:
        """The plan as a bar with its legend."""
        parts = [("W", self.sizes.weights), ("S", self.state), ("K", self.attention)]
        bar = "".join(letter * round(_BAR * size / self.sizes.memory) for letter, size in parts)
        rest = self.sizes.memory - self.static
        lines = [
            f"memory of a rank: {shown(self.sizes.memory)}",
            f"[{bar[:_BAR]:.<{_BAR}}]",
            f"W {shown(self.sizes.weights):>10}  weights",
        ]
        if self.slots is not None:
            lines.append(
                f"S {shown(self.state):>10}  recurrent state: {self.slots} slots, {self.served} requests"
            )
        tokens = "" if self.tokens is None else f": {self.tokens:,} tokens"
        lines.append(f"K {shown(self.attention):>10}  attention KV{tokens}")
        return [
            *lines,
            f". {shown(rest):>10}  left by --mem-fraction-static to activations, graphs and the host",
        ]

    def as_json(self) -> dict[str, int | str | None]:
        return {
            "memory": self.sizes.memory,
            "weights": self.sizes.weights,
            "static": self.static,
            "state": self.state,
            "attention": self.attention,
            "slots": self.slots,
            "served": self.served,
            "tokens": self.tokens,
            "warning": self.warning,
        }


def read_size(text: str) -> int:
    """Bytes of ``71.7MiB``, ``120GB`` or ``1048576``; raise :class:`UsageError` otherwise."""
    match = _SIZE.fullmatch(text.strip())
    unit = match[2].upper() if match else None
    if match is None or unit not in _UNITS:
        raise UsageError(
            "not a size", found=text, expected="bytes, or a number with KB, MB, GB, KiB, MiB, GiB"
        )
    return int(Fraction(match[1]) * _UNITS[unit])


def shown(size: int) -> str:
    """A size for people."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"


def plan_memory(sizes: Sizes, arguments: Arguments, *, pool_grows: bool) -> MemoryPlan:
    """Plan a rank.

    Args:
        sizes: what the model takes.
        arguments: of the server.
        pool_grows: whether a patch makes the state pool grow for the requests that are asked for.

    Raises:
        UsageError: no server starts with these; with the flag to turn.
    """
    static = int(sizes.memory * _fraction(arguments))
    pools = static - sizes.weights
    if pools <= 0:
        raise UsageError(
            "the weights do not fit",
            where="--mem-fraction-static",
            expected=f"more than {shown(sizes.weights)} for weights and pools",
            found=f"{shown(static)} of {shown(sizes.memory)}",
            hint="more ranks (--tp-size), smaller weights, or a higher --mem-fraction-static",
        )
    pool, asked = _pool(sizes, arguments), _asked(arguments)
    slots = served = warning = None
    state = 0
    if pool is not None:
        slots = _slots(pool, sizes, arguments, pools, grows=pool_grows)
        served = pool.requests_of(slots) if asked is None else min(asked, pool.requests_of(slots))
        if served == 0:
            raise _none_served(pool, slots, asked or 1, pools, _workers(arguments))
        if asked is not None and served < asked:
            warning = _fewer_served(pool, arguments, served, asked, pools)
        state = pool.allocated(slots, served)
    attention = pools - state
    tokens = attention // sizes.kv_token if sizes.kv_token else None
    plan = MemoryPlan(sizes, static, state, attention, slots, served, tokens, warning)
    _check_attention(plan, arguments)
    return plan


def _fraction(arguments: Arguments) -> Fraction:
    fraction = _share(arguments, "--mem-fraction-static")
    if fraction is None:
        raise UsageError(
            "a memory plan needs the share of the memory that weights and pools may take",
            where="server arguments",
            expected="--mem-fraction-static",
            hint="without it the server chooses one when it starts, from what it finds there",
        )
    if fraction >= 1:
        raise UsageError(
            "not a share", where="--mem-fraction-static", expected="between 0 and 1", found=str(fraction)
        )
    return fraction


def _share(arguments: Arguments, name: str) -> Fraction | None:
    """A positive number that an argument gives; None where it is not given."""
    said = arguments.first(name)
    if said is None:
        return None
    try:
        share = Fraction(said)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if share <= 0:
        raise UsageError("not a share", where=name, expected="a number above 0", found=said)
    return share


def _pool(sizes: Sizes, arguments: Arguments) -> StatePool | None:
    """The model's recurrent state; None where it has none."""
    if not sizes.state:
        return None
    drafts = arguments.number("--speculative-num-draft-tokens", 0)
    return StatePool(sizes.state, _holding(arguments).slots_per_request, drafts)


def _workers(arguments: Arguments) -> int:
    """Data-parallel workers of attention: what is said of requests and slots is for all of them."""
    return arguments.number("--dp-size", 1) if arguments.has("--enable-dp-attention") else 1


def _asked(arguments: Arguments) -> int | None:
    """The requests that one worker is asked to run; None where nothing is asked for."""
    said = arguments.first("--max-running-requests")
    return None if said is None else max(1, int(said) // _workers(arguments))


def _slots(pool: StatePool, sizes: Sizes, arguments: Arguments, pools: int, *, grows: bool) -> int:
    """Slots of the state pool of one worker, as the server comes to them."""
    explicit, asked = arguments.first("--max-mamba-cache-size"), _asked(arguments)
    if explicit is not None:
        return int(explicit) // _workers(arguments)
    if asked is not None and arguments.has("--disable-radix-cache"):
        return asked
    ratio = _share(arguments, "--mamba-full-memory-ratio")
    slots = pool.slots_within(state_budget(pools, DEFAULT_RATIO if ratio is None else ratio))
    if not grows or asked is None or ratio is not None or arguments.number("--pp-size", 1) > 1:
        return slots
    left = pools - pool.bytes_for(asked)
    return max(slots, pool.slots_for(asked)) if _attention_keeps(left, sizes, arguments, pools) else slots


def _attention_keeps(left: int, sizes: Sizes, arguments: Arguments, pools: int) -> bool:
    """Whether ``left`` bytes are the share that attention keeps, and one context as far as that is known."""
    context = arguments.first("--context-length")
    holds_context = context is None or not sizes.kv_token or left // sizes.kv_token >= int(context)
    return left >= pools * MIN_ATTENTION_SHARE and holds_context


def _fewer_served(pool: StatePool, arguments: Arguments, served: int, asked: int, pools: int) -> str:
    workers, needed = _workers(arguments), pool.bytes_for(asked)
    each = " by each of the data-parallel workers" if workers > 1 else ""
    said = f"{asked} requests are asked for and {served} would be served{each}: "
    slots = f"--max-mamba-cache-size {pool.slots_for(asked) * workers}"
    if needed >= pools:
        return (
            f"{said}their states take {shown(needed)} of {shown(pools)} for states and attention KV; "
            "raise --mem-fraction-static, or halve the states with --mamba-ssm-dtype bfloat16"
        )
    if arguments.first("--max-mamba-cache-size") is not None:
        return f"{said}{slots} serves them all and leaves {shown(pools - needed)} to attention KV"
    ratio = math.ceil(100 * needed / (pools - needed)) / 100
    return (
        f"{said}{slots} or --mamba-full-memory-ratio {ratio} serves them all "
        f"and leaves {shown(pools - needed)} to attention KV"
    )


def _none_served(pool: StatePool, slots: int, asked: int, pools: int, workers: int) -> UsageError:
    if pool.bytes_for(1) < pools:
        hint = f"--max-mamba-cache-size {pool.slots_for(1) * workers}; attention KV gives that up"
    else:
        hint = "fewer draft tokens, --mamba-ssm-dtype bfloat16, a higher --mem-fraction-static"
    return UsageError(
        "the recurrent states of one request do not fit",
        where="--max-running-requests",
        expected=f"1 request: {pool.slots_for(1)} slots, {shown(pool.bytes_for(1))}",
        found=f"{max(slots, 0)} slots of {shown(pool.state_bytes)}, "
        f"out of {shown(pools)} for states and attention KV; {asked} asked for",
        hint=hint,
    )


def _holding(arguments: Arguments) -> Holding:
    strategy = arguments.first("--mamba-radix-cache-strategy")
    try:
        return Holding(
            strategy="extra_buffer" if strategy is None or strategy == "auto" else strategy,
            overlap=not arguments.has("--disable-overlap-schedule") and arguments.number("--pp-size", 1) == 1,
            radix_cache=not arguments.has("--disable-radix-cache"),
        )
    except ValueError as error:
        raise UsageError(
            "this holding of states is not one there is",
            where="--mamba-radix-cache-strategy",
            found=str(error),
        ) from error


def _check_attention(plan: MemoryPlan, arguments: Arguments) -> None:
    if plan.attention <= 0:
        raise UsageError(
            "nothing is left for attention KV",
            where="--max-mamba-cache-size" if plan.slots else "--mem-fraction-static",
            found=f"{shown(plan.state)} of recurrent state and {shown(plan.sizes.weights)} of weights "
            f"in {shown(plan.static)}",
            hint="ask for fewer requests or state slots",
        )
    context = arguments.first("--context-length")
    if plan.tokens is not None and context is not None and plan.tokens < int(context):
        raise UsageError(
            "one request of the full context does not fit the attention KV",
            where="--context-length",
            expected=f"at most {plan.tokens:,} tokens",
            found=context,
            hint="a shorter --context-length, fewer state slots, or --kv-cache-dtype fp8_e4m3",
        )
