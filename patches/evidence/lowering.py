"""Lower a tree's TileLang kernels for a GPU that is not here, and read what they ask for.

Runs as a process (see :mod:`evidence.compile`): a job as JSON on standard input, the result as the
last line of standard output. Needs tilelang and any build of torch; nvcc where cubins are asked for.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from evidence import sources
from evidence.worker import lacks

LATENT = 512
TOPK = 2048
_INSTALL = "pip install 'sglang-overlay[kernels]', and a CPU build of torch if this machine has no GPU"
_ATTRIBUTE = "dyn_shared_memory_buf"
_PTXAS = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?|(\d+) bytes spill stores", re.DOTALL)


def needs() -> tuple[Any, Any]:
    """torch and tilelang; the process ends, saying what is missing, when they cannot be imported."""
    found = []
    for name in ("torch", "tilelang"):
        try:
            found.append(__import__(name))
        except ImportError as error:
            lacks(
                f"the kernel compiler is not installed: {name} cannot be imported",
                expected="tilelang 0.1.12, apache-tvm-ffi 0.1.11, torch",
                found=str(error),
                hint=_INSTALL,
            )
    return found[0], found[1]


class Factories:
    """A tree's kernel factories, and which of them its dispatcher calls how."""

    def __init__(self, torch: Any, package: Path, shared: int, capability: tuple[int, int]) -> None:
        self._torch = torch
        self._module = sources.load(package, sources.TILELANG_KERNELS, "tilelang_kernels")
        device = SimpleNamespace(shared_memory_per_block_optin=shared, multi_processor_count=48)
        self._module.torch = sources.TorchOn(torch, device, capability)
        self.by_name = {
            name: value for name, value in vars(self._module).items() if hasattr(value, "get_tir")
        }

    def dispatched(self, heads: int, tail: int, dtype: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The factory that ``tilelang_sparse_fwd`` calls first, with its arguments; nothing is run."""
        called: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        torch = self._torch

        def noting(name: str, outputs: int) -> Any:
            def factory(*values: Any, **named: Any) -> Any:
                called.append((name, values, named))
                made = [torch.empty(1, 1, 1, 1) for _ in range(outputs)]
                return lambda *_: made[0] if outputs == 1 else made

            return factory

        for name, factory in self.by_name.items():
            setattr(self._module, name, noting(name, len(factory.out_idx or [0])))
        q = torch.zeros(4, heads, LATENT + tail, dtype=torch.bfloat16)
        kv = torch.zeros(64, 1, LATENT + tail, dtype=getattr(torch, dtype))
        indices = torch.zeros(4, 1, TOPK, dtype=torch.int32)
        try:
            self._module.tilelang_sparse_fwd(q=q, kv=kv, indices=indices, sm_scale=0.05, d_v=LATENT)
        finally:
            for name, factory in self.by_name.items():
                setattr(self._module, name, factory)
        return called[0]


def lower(tilelang: Any, factory: Any, values: Any, named: Mapping[str, Any], target: str) -> tuple[int, str]:
    """Bytes of dynamic shared memory, and the CUDA source."""
    tvm = tilelang.tvm
    on = tvm.target.Target({"kind": "cuda", "arch": target})
    config = {getattr(key, "value", key): value for key, value in (factory.pass_configs or {}).items()}
    with tvm.transform.PassContext(opt_level=3, config=config), on:
        made = tilelang.lower(factory.get_tir(*values, **named), target=on)
    (function,) = made.device_mod.functions.values()
    return int(function.attrs.get(_ATTRIBUTE, 0)), made.kernel_source


def assemble(tilelang: Any, nvcc: str, source: str, target: str) -> dict[str, int]:
    """What ptxas says: registers a thread, bytes of static shared memory, bytes spilled.

    Raises:
        RuntimeError: nvcc refuses the source.
    """
    env = tilelang.env
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "kernel.cu"
        file.write_text(source)
        command = [nvcc, "-std=c++17", f"-arch={target}", "-cubin", "-Xptxas=-v", "--expt-relaxed-constexpr"]
        command += ["-I", env.TILELANG_TEMPLATE_PATH, "-I", env.CUTLASS_INCLUDE_DIR]
        done = subprocess.run(
            [*command, "-o", str(file.with_suffix(".cubin")), str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"nvcc: {done.stderr.strip().splitlines()[-1][:300]}")
    facts = {"registers": 0, "static": 0, "spilled": 0}
    for registers, static, spilled in _PTXAS.findall(done.stderr):
        facts["registers"] = max(facts["registers"], int(registers or 0))
        facts["static"] = max(facts["static"], int(static or 0))
        facts["spilled"] = max(facts["spilled"], int(spilled or 0))
    return facts


def lowered(tilelang: Any, torch: Any, package: Path, job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each kernel of the job."""
    factories = Factories(torch, package, job["shared"], tuple(job["capability"]))
    rows = []
    for wanted in job["kernels"]:
        row = dict(wanted)
        try:
            if "factory" in wanted:
                call = wanted["factory"], tuple(wanted["arguments"]), wanted["options"]
            else:
                call = factories.dispatched(wanted["heads"], wanted["tail"], wanted["dtype"])
            name, values, named = call
            row |= {"factory": name, "options": named}
            row["shared"], source = lower(tilelang, factories.by_name[name], values, named, job["target"])
            if job["nvcc"]:
                row["ptxas"] = assemble(tilelang, job["nvcc"], source, job["target"])
        except Exception as error:  # a tile that does not lower is a row that says why
            row["refusal"] = f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
        rows.append(row)
    return rows


def main() -> None:
    job = json.load(sys.stdin)
    torch, tilelang = needs()
    rows = lowered(tilelang, torch, Path(job["package"]), job)
    versions = {name: metadata.version(name) for name in ("tilelang", "apache-tvm-ffi", "torch")}
    print(json.dumps({"versions": versions, "rows": rows}))


if __name__ == "__main__":
    main()
