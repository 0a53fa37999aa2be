"""Run one of the evidence modules in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import builder
from builder.errors import ProbeFailed, UsageError

TIMEOUT = 3600.0
"""Seconds that all of the evidence may take: compilers are slow."""

ABSENT = 3
"""Exit code of a worker that lacks something; its last line of output says what."""

_IMPORTED = [Path(__file__).resolve().parents[1], Path(builder.__file__).resolve().parents[1]]


def run_worker(module: str, job: Mapping[str, object], *, timeout: float = TIMEOUT) -> Any:
    """What ``python -m module`` answers to ``job``, both as JSON.

    Args:
        timeout: seconds.

    Raises:
        UsageError: something that the evidence needs is not installed here.
        ProbeFailed: the process crashed or ran out of time.
    """
    paths = [*map(str, _IMPORTED), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps(job).encode(),
            capture_output=True,
            env=environment,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProbeFailed(f"{module} took more than {timeout:g} s") from None
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else ""
    if done.returncode == ABSENT and last:
        facts = json.loads(last)
        raise UsageError(facts["what"], expected=facts["expected"], found=facts["found"], hint=facts["hint"])
    if done.returncode != 0 or not last:
        tail = "\n".join(done.stderr.decode(errors="replace").strip().splitlines()[-15:])
        raise ProbeFailed(f"{module} ended with {done.returncode}", details=tail)
    return json.loads(last)


def lacks(what: str, *, expected: str, found: str, hint: str) -> None:
    """In a worker: end, and have :func:`run_worker` say that something is not installed."""
    print(json.dumps({"what": what, "expected": expected, "found": found, "hint": hint}))
    raise SystemExit(ABSENT)
