"""The main job against ``docker build`` and ``docker push``: same base, registry and files, in one run.

By what is known of the base before:

- *locked*: the spec's lock has seen it. *never pulled*: the engine has not.
- *unlocked*: overlay has seen the sources but not the base.
- *in the engine*: the engine has it; overlay has its lock.

And by what was built before: nothing of these inputs, or, where it says *again*, the same image. Then overlay
recalls it from its cache, and docker has its cache too. Of what was not built before overlay applies, checks
and bakes the series, and docker is given ``--no-cache``; it gets the finished files, or, where it says *RUN
git apply*, applies the series in a container, as people do.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Sample, Series, repeat, together
from benchmarks.patching import patching_context
from benchmarks.stage import OVERLAY, Stage
from benchmarks.traffic import Traffic, traffic

BUILDERS = ("BuildKit", "classic")
PATCHING = "BuildKit, RUN git apply"


@dataclass(frozen=True)
class Base:
    """The base as both sides name it.

    Args:
        reference: ``host:port/repository@sha256:…``.
        repository: its repository in the registry.
        layers: the digests of its layers.
        size: bytes of its layers, as they lie in the registry.
    """

    reference: str
    repository: str
    layers: frozenset[str]
    size: int

    @classmethod
    def ask(cls, stage: Stage, repository: str, digest: str) -> Base:
        layers: Any = stage.manifest(repository, digest)["layers"]
        reference = f"{stage.registry}/{repository}@{digest}"
        digests = frozenset(layer["digest"] for layer in layers)
        return cls(reference, repository, digests, sum(layer["size"] for layer in layers))


@dataclass(frozen=True)
class Bytes:
    """What one build moved.

    Args:
        base_read: bytes of base layers that the registry sent.
        uploaded: bytes of blobs that it was sent.
    """

    base_read: int
    uploaded: int


@dataclass(frozen=True)
class Build:
    """One way of building, in one situation."""

    situation: str
    tool: str
    series: Series
    bytes: Bytes


def measure_builds(stage: Stage, base: Base, runs: int) -> list[Build]:
    """All ways in all situations.

    Raises:
        FailedError: a command failed, or two tools did not make the same files.
    """
    warm_up(stage, base)
    context = docker_context(stage, base, "bench/warm-up")
    builds = [
        overlay_builds(stage, base, "locked", runs),
        overlay_builds(stage, base, "unlocked", runs),
        overlay_builds(stage, base, "locked", runs, tool="overlay, with attestations"),
        docker_builds(stage, base, context, "BuildKit", "never pulled", runs),
        docker_builds(stage, base, context, "classic", "never pulled", 1),
    ]
    stage.docker_run("pull", "--quiet", base.reference)
    builds += [docker_builds(stage, base, context, builder, "in the engine", runs) for builder in BUILDERS]
    patching = patching_context(stage, base.reference)
    builds.append(docker_builds(stage, base, patching, PATCHING, "in the engine", runs))
    # What takes a fifth of a second is measured in turns: a machine is not as fast at every moment.
    turns: list[list[Build]] = [[], [], []]
    for number in range(3 * runs):
        turns[0].append(overlay_builds(stage, base, "in the engine, again", 1, first=number))
        for turn, builder in zip(turns[1:], BUILDERS, strict=True):
            turn.append(docker_builds(stage, base, context, builder, "in the engine, again", 1, first=number))
    return builds + [merged(turn) for turn in turns]


def merged(builds: Sequence[Build]) -> Build:
    """The runs of one way of building as one."""
    first = builds[0]
    samples = tuple(sample for build in builds for sample in build.series.samples)
    series = Series(first.series.name, samples)
    return Build(first.situation, first.tool, series, worst([build.bytes for build in builds]))


def warm_up(stage: Stage, base: Base) -> None:
    """Fill the cache of sources, and write the lock."""
    stage.overlay(*overlay_command(stage, base, "bench/warm-up"))


# --- overlay -----------------------------------------------------------------------------------------------


def overlay_command(stage: Stage, base: Base, repository: str) -> list[str]:
    """The image alone, which is what the others make."""
    target = f"{stage.registry}/{repository}:built"
    return ["build", OVERLAY, "--base", base.reference, "--no-attach", "--push", target]


def overlay_builds(
    stage: Stage, base: Base, situation: str, runs: int, *, tool: str = "overlay", first: int = 0
) -> Build:
    counted: list[Bytes] = []

    def once(number: int) -> Sample:
        repository = f"bench/overlay-{named(situation)}-{first + number}"
        repository += "" if tool == "overlay" else "-attested"
        if situation == "unlocked":
            forget_base(stage)
        if not situation.endswith("again"):
            forget_builds(stage)
        with traffic(stage.log) as seen:
            command = overlay_command(stage, base, repository)
            if tool != "overlay":
                command.remove("--no-attach")
            sample = stage.overlay(*command)
        counted.append(moved(stage, base, repository, seen))
        return sample

    series = repeat(f"overlay build --push, base {situation}", runs, once)
    return Build(situation, tool, series, worst(counted))


def named(situation: str) -> str:
    """A situation as part of a repository's name."""
    return situation.replace(",", "").replace(" ", "-")


def forget_base(stage: Stage) -> None:
    """Remove the lock and the index of layers; the cache of sources stays."""
    (stage.project / "overlays" / f"{OVERLAY}.lock").unlink(missing_ok=True)
    empty(stage.cache / "layers")


def forget_builds(stage: Stage) -> None:
    """Remove the finished builds that overlay keeps, and what the lock says of where they were pushed."""
    empty(stage.cache / "built")
    for path in (stage.project / "overlays").glob("*.lock"):
        lock = json.loads(path.read_bytes())
        path.write_text(json.dumps({key: lock[key] for key in ("schema", "bases", "pins") if key in lock}))


def empty(directory: Path) -> None:
    for entry in directory.rglob("*"):
        if entry.is_file():
            entry.unlink()


# --- docker ------------------------------------------------------------------------------------------------


def docker_context(stage: Stage, base: Base, repository: str) -> Path:
    """A build context that does what overlay did: its layer's files, and its labels and environment."""
    manifest: Any = stage.manifest(repository, "built")
    context = stage.context
    layer = stage.get(f"{repository}/blobs/{manifest['layers'][-1]['digest']}")
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        tar.extractall(context / "files", filter="data")
    settings = [config_of(stage, repository, "built"), config_of(stage, base.repository, base.reference)]
    labels, known = (setting.get("Labels") or {} for setting in settings)
    new = {key: value for key, value in labels.items() if known.get(key) != value}
    variables, old = (setting.get("Env") or [] for setting in settings)
    lines = [f"FROM {base.reference}", "COPY files/ /"]
    lines += [f"LABEL {quoted(key)}={quoted(value)}" for key, value in sorted(new.items())]
    lines += [f"ENV {name}={quoted(value)}" for name, value in variables_added(variables, old)]
    (context / "Dockerfile").write_text("\n".join(lines) + "\n")
    return context


def quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("$", "\\$")


def variables_added(now: list[str], before: list[str]) -> list[tuple[str, str]]:
    pairs = [variable.partition("=") for variable in now if variable not in before]
    return [(name, value) for name, _, value in pairs]


def config_of(stage: Stage, repository: str, reference: str) -> dict[str, Any]:
    manifest: Any = stage.manifest(repository, reference.rpartition("@")[2])
    config: Any = json.loads(stage.get(f"{repository}/blobs/{manifest['config']['digest']}"))
    return dict(config.get("config") or {})


def docker_builds(
    stage: Stage, base: Base, context: Path, builder: str, situation: str, runs: int, *, first: int = 0
) -> Build:
    """``docker build`` and ``docker push``.

    Args:
        builder: ``BuildKit`` or ``classic``, and whatever else is to be said of it.
        situation: what the engine has; ``again``: its cache too.
        runs: how many.
        first: number of the first, for the repository's name.
    """
    buildkit = builder.startswith("BuildKit")
    counted: list[Bytes] = []

    def once(number: int) -> Sample:
        repository = f"bench/docker-{named(builder.lower())}-{named(situation)}-{first + number}"
        target = f"{stage.registry}/{repository}:built"
        if situation == "never pulled":
            stage.empty_engine()
        with traffic(stage.log) as seen:
            fresh = [] if situation.endswith("again") else ["--no-cache"]
            command = ["build", *fresh, "--quiet", "--network", "none", "--tag", target, str(context)]
            built = stage.docker_run(*command, buildkit=buildkit)
            pushed = stage.docker_run("push", "--quiet", target)
        counted.append(moved(stage, base, repository, seen))
        same_files(stage, repository, only=".py" if builder == PATCHING else "")
        return together([built, pushed])

    series = repeat(f"docker build and push, {builder}, base {situation}", runs, once)
    return Build(situation, f"docker ({builder})", series, worst(counted))


def same_files(stage: Stage, repository: str, *, only: str = "") -> None:
    """The image's last layer that has files must hold what overlay's layer holds.

    Args:
        only: how the names end of the files that count: patching in a container writes no manifest.
    """
    manifest: Any = stage.manifest(repository, "built")
    files = stage.context / "files"
    expected = {
        str(path.relative_to(files)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files.rglob("*" + only)
        if path.is_file()
    }
    for layer in reversed(manifest["layers"]):
        data = stage.get(f"{repository}/blobs/{layer['digest']}")
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found = {
                entry.name: hashlib.sha256(file.read()).hexdigest()
                for entry in tar
                if entry.isfile() and (file := tar.extractfile(entry))
            }
        if found:
            break
    if found != expected:
        raise SystemExit(f"{repository}: docker made {sorted(found)}, overlay {sorted(expected)}")


# --- traffic -----------------------------------------------------------------------------------------------


def moved(stage: Stage, base: Base, repository: str, seen: Traffic) -> Bytes:
    """Bytes of base layers read, and of blobs uploaded: of the image, and of what is attached to it."""
    uploaded = sum(stage.blob_size(repository, digest) for digest in seen.uploaded)
    return Bytes(seen.read_of(set(base.layers)), uploaded)


def worst(counted: list[Bytes]) -> Bytes:
    return Bytes(max(one.base_read for one in counted), max(one.uploaded for one in counted))
