"""How an image's cost grows with its base: overlay, ``docker build``, ``buildah``, and a patching container.

Every tool starts with nothing of the base on its side, makes the same files, and pushes. *RUN git apply* is
what docker-image-patcher and hand-written Dockerfiles do: git and the patches are copied in, and patch the
image's own files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.builds import (
    Base,
    docker_context,
    forget_base,
    forget_builds,
    overlay_command,
    same_files,
    warm_up,
)
from benchmarks.measure import FailedError, Sample, measure, together
from benchmarks.patching import patching_context
from benchmarks.section import Section, at_most
from benchmarks.stage import Stage

NOT_RUN = "not run"
# Tools that are left out above a size, to stay under ten minutes: they cost what the base's bytes cost.
MOST = {"buildah": 1_500_000_000, "docker (classic)": 500_000_000, "RUN git apply": 1_500_000_000}


@dataclass(frozen=True)
class Ground:
    """One base, in the registry, and the context that makes of it what overlay makes."""

    stage: Stage
    base: Base
    context: Path
    name: str


def measure_growth(stage: Stage, sizes: tuple[int, ...], known: Mapping[tuple[int, str], Sample]) -> Section:
    """Each tool once at each size; overlay's locked build is the median of three.

    Args:
        stage: where it is measured.
        sizes: bytes of filler in the bases.
        known: what was measured in this run already, by size and tool.
    """
    rows, data = [], {}
    for size in sizes:
        ground = _prepare(stage, size)
        found: dict[str, Sample | str] = {}
        for tool, run in TOOLS.items():
            if (size, tool) in known:
                found[tool] = known[size, tool]
                continue
            if size > MOST.get(tool, size):
                found[tool] = NOT_RUN
                continue
            try:
                found[tool] = run(ground)
            except FailedError as error:
                # A sandbox may forbid what a container needs; the report says so in the figure's place.
                found[tool] = str(error).strip().splitlines()[-1][:60]
        rows.append([f"{size / 1e9:.1f} GB", *(_cell(value) for value in found.values())])
        data[ground.name] = {
            tool: round(value.seconds, 3) if isinstance(value, Sample) else value
            for tool, value in found.items()
        }
        shutil.rmtree(stage.directory / ground.name)
    locked = [float(one["overlay, locked"]) for one in data.values()]
    return Section(
        "How cost grows with the base",
        "Seconds for build and push, each tool without the base at first. Each once; overlay's locked build "
        "is the median of three, and docker's builds at the size of the main job are those above. "
        f"{NOT_RUN}: to stay under ten minutes in all.",
        ["base", *TOOLS],
        rows,
        data,
        [
            at_most(
                "locked build at the largest base, as times of the smallest",
                locked[-1] / locked[0],
                2,
                "times",
            )
        ],
    )


def _cell(value: Sample | str) -> str:
    return f"{value.seconds:.2f}" if isinstance(value, Sample) else value


def _prepare(stage: Stage, size: int) -> Ground:
    name = f"growth-{size // 1_000_000}"
    heavy = stage.heavy_base(name, size)
    stage.push(heavy, f"bench/{name}")
    base = Base.ask(stage, f"bench/{name}", heavy.digest)
    warm_up(stage, base)
    shutil.rmtree(stage.directory / "context", ignore_errors=True)
    return Ground(stage, base, docker_context(stage, base, "bench/warm-up"), name)


# --- the tools ----------------------------------------------------------------------------------------------


def _locked(ground: Ground) -> Sample:
    samples = [_overlay(ground, f"locked-{number}") for number in range(3)]
    return sorted(samples, key=lambda sample: sample.seconds)[1]


def _unlocked(ground: Ground) -> Sample:
    forget_base(ground.stage)
    return _overlay(ground, "unlocked")


def _overlay(ground: Ground, what: str) -> Sample:
    forget_builds(ground.stage)
    return ground.stage.overlay(*overlay_command(ground.stage, ground.base, f"bench/{ground.name}-{what}"))


def _docker(buildkit: bool) -> Callable[[Ground], Sample]:
    def run(ground: Ground) -> Sample:
        target = f"{ground.stage.registry}/bench/{ground.name}-docker-{int(buildkit)}:built"
        return _built_and_pushed(ground.stage, ground.context, target, buildkit=buildkit)

    return run


def _built_and_pushed(stage: Stage, context: Path, target: str, *, buildkit: bool) -> Sample:
    stage.empty_engine()
    command = ["build", "--no-cache", "--quiet", "--network", "none", "--tag", target, str(context)]
    return together(
        [stage.docker_run(*command, buildkit=buildkit), stage.docker_run("push", "--quiet", target)]
    )


def _buildah(ground: Ground) -> Sample:
    stage = ground.stage
    program = str(shutil.which("buildah"))
    storage = stage.directory / "buildah"
    store = [program, "--root", str(storage), "--runroot", str(stage.directory / "buildah-run")]
    store += ["--storage-driver", "vfs"]
    target = f"{stage.registry}/bench/{ground.name}-buildah:built"
    bud = [*store, "bud", "--quiet", "--isolation", "chroot", "--tls-verify=false", "--tag", target]
    push = [*store, "push", "--quiet", "--tls-verify=false", target]
    try:
        return together(
            [
                measure([*bud, str(ground.context)], os.environ, stage.directory),
                measure(push, os.environ, stage.directory),
            ]
        )
    finally:
        shutil.rmtree(storage, ignore_errors=True)


def _in_container(ground: Ground) -> Sample:
    context = patching_context(ground.stage, ground.base.reference)
    target = f"{ground.stage.registry}/bench/{ground.name}-patched:built"
    sample = _built_and_pushed(ground.stage, context, target, buildkit=True)
    same_files(ground.stage, target.partition("/")[2].partition(":")[0], only=".py")
    return sample


TOOLS: dict[str, Callable[[Ground], Sample]] = {
    "overlay, locked": _locked,
    "overlay, unlocked": _unlocked,
    "docker (BuildKit)": _docker(buildkit=True),
    "docker (classic)": _docker(buildkit=False),
    "buildah": _buildah,
    "RUN git apply": _in_container,
}
