"""Patching in a container, as docker-image-patcher and hand-written Dockerfiles do: git, patches, ``RUN``."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from benchmarks.stage import OVERLAY, Stage
from tests.integration.judge import series_of

_APPLY = "for patch in /tmp/patches/*; do git apply --exclude='test/*' $patch; done"
_SOURCES = "/sgl-workspace/sglang"


def patching_context(stage: Stage, reference: str) -> Path:
    """A context with the series, and with git and a shell: the base has neither.

    Args:
        stage: where it is made.
        reference: of the base.
    """
    context = stage.directory / "patching"
    shutil.rmtree(context, ignore_errors=True)
    (context / "patches").mkdir(parents=True)
    for number, patch in enumerate(series_of(OVERLAY)):
        shutil.copy(patch, context / "patches" / f"{number:02}.patch")
    for program in ("git", "sh"):
        _copy_program(str(shutil.which(program)), context / "tools")
    lines = [
        f"FROM {reference}",
        "COPY tools/ /",
        "COPY patches/ /tmp/patches/",
        f"WORKDIR {_SOURCES}",
        f"RUN {json.dumps(['/bin/sh', '-ec', _APPLY])}",
    ]
    (context / "Dockerfile").write_text("\n".join(lines) + "\n")
    return context


def _copy_program(path: str, root: Path) -> None:
    """A program with its libraries, at their places below ``root``."""
    name = Path(path).name
    listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    libraries = [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]
    for source, target in [(path, f"/bin/{name}"), *((library, library) for library in libraries)]:
        place = root / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
