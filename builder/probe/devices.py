"""GPUs that a probe can tell the source it runs on. Standard library only, like the harness."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

HOPPER = (9, 0)
BLACKWELL = (10, 0)
RTX_BLACKWELL = (12, 0)
GB10 = (12, 1)

SM12X = (RTX_BLACKWELL, GB10)

SHARED_MEMORY = {HOPPER: 232_448, BLACKWELL: 232_448, RTX_BLACKWELL: 101_376, GB10: 101_376}
"""Bytes of dynamic shared memory that one block can have."""


def cuda_device(capability: tuple[int, int], cuda: str = "13.0") -> dict[str, object]:
    """Stubs for :class:`builder.probe.harness.Program`: one NVIDIA GPU, and no other accelerator.

    Only what torch reports is replaced; the source's own helpers (``get_device_sm``, ``get_platform``)
    run as they are.

    Args:
        capability: compute capability, e.g. ``(12, 1)``.
        cuda: version of CUDA that torch was built for.
    """
    properties = SimpleNamespace(
        major=capability[0],
        minor=capability[1],
        shared_memory_per_block_optin=SHARED_MEMORY.get(capability, 101_376),
    )
    no: Callable[..., bool] = lambda *_: False  # noqa: E731 - one stub for several names
    return {
        "torch.cuda.is_available": lambda *_: True,
        "torch.cuda.is_initialized": lambda *_: True,
        "torch.cuda.device_count": lambda *_: 1,
        "torch.cuda.current_device": lambda *_: 0,
        "torch.cuda.get_device_capability": lambda *_: capability,
        "torch.cuda.get_device_properties": lambda *_: properties,
        "torch.version.cuda": cuda,
        "torch.version.hip": None,
        "torch.version.musa": None,
        "torch.version.xpu": None,
        "torch.xpu.is_available": no,
        "is_npu": no,  # asks whether torch has such an attribute, and a stand-in has them all
        "torch.mps.is_available": no,
    }


def named(capability: tuple[int, int]) -> str:
    """``12.1`` for ``(12, 1)``."""
    return f"{capability[0]}.{capability[1]}"
