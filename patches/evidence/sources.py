"""Load single modules of an SGLang tree, without SGLang's own imports. Standard library only."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from builder.errors import InvalidInput
from builder.probe.harness import Tree

TILELANG_KERNELS = "kernels/ops/attention/dsa/tilelang_kernel.py"
POOL_WRITES = "kernels/ops/kvcache/mla_buffer.py"
FLASHMLA = "kernels/ops/attention/flash_mla_sm120.py"
FLASHMLA_TRITON = "kernels/ops/attention/flash_mla_sm120_triton.py"

_PACKAGE = "python/sglang"


def carry(tree: Tree, directory: Path) -> Path:
    """Write the modules with kernels below ``directory`` and return the package that they make there.

    Raises:
        InvalidInput: the tree has no TileLang kernels.
    """
    if f"{_PACKAGE}/{TILELANG_KERNELS}" not in tree:
        raise InvalidInput(
            "the tree has no TileLang kernels",
            expected=f"{_PACKAGE}/{TILELANG_KERNELS}",
            hint="they are there since v0.5.16; name a checkout, a release or an overlay",
        )
    for path in (TILELANG_KERNELS, POOL_WRITES, FLASHMLA, FLASHMLA_TRITON):
        if f"{_PACKAGE}/{path}" in tree:
            file = directory / "sglang" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(tree.read(f"{_PACKAGE}/{path}"))
    return directory / "sglang"


def _nothing(name: str) -> Any:
    def used(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(f"{name} of sglang was used, which is not loaded here")

    return used


_KNOWN: dict[str, Any] = {
    "is_hip": lambda: False,
    "is_fp8_fnuz": lambda: False,
    "is_gfx95_supported": lambda: False,
    "is_arch_support_pdl": lambda: False,
    "get_parallel": lambda: SimpleNamespace(attn_dcp_size=1, attn_dcp_rank=0),
    "envs": SimpleNamespace(SGLANG_SM120_FLASHMLA_BACKEND=SimpleNamespace(get=lambda: "triton")),
}


class _Answers(ModuleType):
    """A module of sglang of which only a few names are known."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _KNOWN.get(name, _nothing(name))


class SglangStandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Every ``import sglang…`` finds a stand-in, also where SGLang is installed."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "sglang":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Answers(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def load(package: Path, path: str, name: str) -> Any:
    """Run ``package/path`` as a module called ``name``; SGLang's other modules are stand-ins.

    The same file can be loaded under several names, for copies with settings of their own.
    """
    if not any(isinstance(finder, SglangStandIns) for finder in sys.meta_path):
        sys.meta_path.insert(0, SglangStandIns())
    spec = importlib.util.spec_from_file_location(name, package / path)
    if spec is None or spec.loader is None:
        raise InvalidInput("not a Python module", where=str(package / path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class TorchOn:
    """``torch``, with another GPU's properties. Everything else is torch's own.

    Args:
        torch: the module.
        properties: what ``torch.cuda.get_device_properties`` gives.
        capability: what ``torch.cuda.get_device_capability`` gives.
    """

    def __init__(self, torch: Any, properties: object, capability: tuple[int, int]) -> None:
        self._torch = torch
        self.cuda = _CudaOn(torch.cuda, properties, capability)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


class _CudaOn:
    def __init__(self, cuda: Any, properties: object, capability: tuple[int, int]) -> None:
        self._cuda, self._properties, self._capability = cuda, properties, capability

    def get_device_properties(self, *_: object) -> object:
        return self._properties

    def get_device_capability(self, *_: object) -> tuple[int, int]:
        return self._capability

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cuda, name)
