"""Bake a plan with a Docker Engine: the same rendered Dockerfile, the same files, in a build context."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from builder.base.image import BaseFiles
from builder.build.plan import Plan
from builder.errors import ImageMismatch, InvalidInput, Unavailable, UsageError
from builder.oci.append import base_config, diff_ids
from builder.oci.index import index_images
from builder.oci.model import Descriptor, Platform, RawManifest, is_digest
from builder.oci.reference import Reference
from builder.project.project import cache_path
from builder.publish.docker_engine.connection import Engine, engine_errors
from builder.publish.docker_engine.files import read_files
from builder.publish.docker_engine.inspected import created, open_engine_image
from builder.publish.docker_engine.program import BuildProgram, find_build_program
from builder.temporary import temporary_directory
from builder.verify.layered import LayeredImage
from builder.verify.verify import deviation_error, verify_patched

if TYPE_CHECKING:
    from builder.oci.registry.client import Repository

BUILD_TIMEOUT = 3600.0  # seconds
_KEPT_LINES = 20
_IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}")
_PUSHED = re.compile(r"[^\s:]+: digest: (sha256:[0-9a-f]{64}) size: \d+\s*")
_ERROR_LINES = (
    re.compile(r"Dockerfile:(\d+)"),
    re.compile(r"(?:error|Dockerfile)[^\n]*? line (\d+)"),
)
_FAILED_STEP = re.compile(r"> \[[^\]]*\d+/\d+\] ([^\n]+):\n")

Say = Callable[[str], None]


@dataclass(frozen=True)
class EngineImage:
    """An image in an engine.

    Args:
        id: the engine's name for it, ``sha256:…``.
        plan: what it was made by.
    """

    id: str
    plan: Plan


def bake_in_engine(engine: Engine, plan: Plan, network: str, say: Say) -> EngineImage:
    """All of a bake: bring the base, check it, bake, and verify what came out.

    Args:
        engine: where.
        plan: what goes in.
        network: what RUN sees of the network, as the engine names it: ``default``, ``none``, ``host``.
        say: hears the engine's progress, line by line.

    Raises:
        UsageError: a Docker Engine cannot bake this.
        ImageMismatch: the engine's base, or what it made, is not what it should be.
        Unavailable: the engine failed.
    """
    reference = check_bakeable(plan)
    pull_base(engine, reference, say)
    check_engine_base(engine, plan.facts, reference)
    image = bake_with_engine(engine, plan, network, say)
    with open_engine_image(engine, image.id) as subject:
        # Its other files are the engine's own copy of the base: to compare them would read all of the base.
        verified = verify_patched(subject, LayeredImage(plan.base, cache_path(), _uncounted))
    if verified.manifest != plan.manifest or verified.deviations:
        with engine_errors("removing the image that came out wrong", image.id):
            engine.client.images.remove(image.id)
        if verified.deviations:
            raise deviation_error(verified)
        raise ImageMismatch(
            "the image holds another manifest than was planned",
            where="Dockerfile",
            expected=plan.manifest.digest,
            found=verified.manifest.digest,
        )
    return image


def _uncounted(what: str, size: int) -> Callable[[int], None]:
    """No layer of the base is read to verify what was baked."""
    return lambda _: None


def check_bakeable(plan: Plan) -> Reference:
    """The base as an engine can take it.

    Raises:
        UsageError: the base is in a layout, or the series removes files: no Dockerfile without RUN can.
    """
    location = plan.base.location
    if not isinstance(location, Reference):
        raise UsageError(
            "a Docker Engine takes its base from a registry, not from a layout",
            found=str(location),
            hint="push the base first (skopeo copy oci:DIR docker://REF), or bake with --engine oci --load",
        )
    if plan.removed:
        raise UsageError(
            "the series removes files, and COPY cannot",
            where=", ".join(f"/{path}" for path in plan.removed),
            hint="bake with --engine oci, which writes whiteouts; --load brings the image into the engine",
        )
    return location.with_digest(plan.base.manifest.digest)


def pull_base(engine: Engine, reference: Reference, say: Say) -> None:
    """Bring the base into the engine, by digest, with the engine's own login.

    Raises:
        Unavailable: the engine cannot pull it.
    """
    with engine_errors("pulling the base", str(reference)):
        for event in engine.api.pull(reference.name, tag=reference.digest, stream=True, decode=True):
            _hear(event, say, str(reference))


def check_engine_base(engine: Engine, facts: BaseFiles, reference: Reference) -> None:
    """Every file to be patched must be in the engine's copy of the base what its layers say.

    A container is created and its files are read out; it is never started.

    Raises:
        ImageMismatch: naming each file, the expected and the found blob.
    """
    with created(engine, str(reference)) as container:
        found = read_files(container, ["/" + fact.image_path for fact in facts.files.values()])
    wrong = []
    for path, fact in facts.files.items():
        there = found["/" + fact.image_path]
        if (there.blob if there else None) != fact.blob:
            wrong.append((path, fact.blob, there.blob if there else None))
    if wrong:
        path, expected, actual = wrong[0]
        raise ImageMismatch(
            "the engine's copy of the base is not what its layers say",
            where=f"{reference}: {path}",
            expected=f"blob {expected}" if expected else "no such file",
            found=f"blob {actual}" if actual else "no such file",
            details="\n".join(f"{p}: expected {e}, found {f}" for p, e, f in wrong[1:]) or None,
            hint="remove it from the engine (docker image rm) and pull it again",
        )


def bake_with_engine(engine: Engine, plan: Plan, network: str, say: Say) -> EngineImage:
    """Bake a plan.

    Args:
        engine: where.
        plan: what; see :func:`check_bakeable`.
        network: what RUN sees of the network.
        say: hears the engine's progress, line by line.

    Raises:
        Unavailable: the engine fails; with its words and the Dockerfile's line.
    """
    with temporary_directory("context") as name:
        context = Path(name) / "context"
        write_context(plan, context)
        program = find_build_program()
        if program is None:
            say("no docker client here can use BuildKit: the engine's classic builder bakes")
            return EngineImage(_build_with_sdk(engine, plan, context, network, say), plan)
        return EngineImage(_build_with_program(engine, program, plan, context, network, say), plan)


def write_context(plan: Plan, directory: Path) -> None:
    """Write a build context: the Dockerfile and the files it copies, with their modes and times."""
    directory.mkdir()
    (directory / "Dockerfile").write_text(plan.dockerfile, encoding="utf-8")
    for file in plan.files:
        parts = PurePosixPath(file.context).parts
        if file.context.startswith("/") or ".." in parts:
            raise InvalidInput("a file of the build context lies outside it", where=file.context)
        path = directory.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(file.mode)
        os.utime(path, (plan.created, plan.created))


def tag_image(engine: Engine, image: str, repository: str, tag: str) -> None:
    """Name an image in the engine."""
    with engine_errors("naming the image", f"{repository}:{tag}"):
        engine.api.tag(image, repository, tag, force=True)


def push_image(
    engine: Engine, image: EngineImage, target: Reference, repository: Repository, say: Say
) -> Descriptor:
    """Push an image out of the engine, and ask the registry for it; its manifest there.

    An engine that keeps blobs says the digest only in the last line of its progress, others in ``aux`` too.

    Args:
        engine: where it is.
        image: what is pushed.
        target: its name there, with a tag.
        repository: the same place, as this tool reads it.
        say: hears the engine's progress, line by line.

    Raises:
        Unavailable: the engine cannot push it, or the registry does not answer.
        ImageMismatch: the tag leads to something else than what the engine pushed.
    """
    tag_image(engine, image.id, target.name, target.identifier)
    said = None
    with engine_errors("pushing the image", str(target)):
        events = engine.api.push(target.name, tag=target.identifier, stream=True, decode=True)
        for event in events:
            _hear(event, say, str(target))
            said = pushed_digest(event) or said
        layers = tuple(engine.api.inspect_image(image.id)["RootFS"]["Layers"])
    there = repository.get_manifest(target.identifier)
    if said not in (None, there.digest):
        raise ImageMismatch(
            "the tag leads to another image than the Docker Engine pushed",
            where=str(target),
            expected=said,
            found=there.digest,
            hint="somebody pushed there at the same time? push to a tag of your own with --tag-template",
        )
    pushed = _of_platform(there, repository, image.plan.base.platform)
    found = diff_ids(repository.read_blob(base_config(pushed)))
    if found != layers:
        raise ImageMismatch(
            "the registry holds another image than the Docker Engine pushed",
            where=f"{target}@{pushed.digest}",
            expected=f"layers {', '.join(layers)}",
            found=", ".join(found),
        )
    return pushed.descriptor


def pushed_digest(event: Mapping[str, Any]) -> str | None:
    """The digest that one event of a push says, in ``aux`` or as ``TAG: digest: DIGEST size: N``."""
    aux = event.get("aux")
    said = aux.get("Digest") if isinstance(aux, Mapping) else None
    if isinstance(said, str) and is_digest(said):
        return said
    line = _PUSHED.fullmatch(str(event.get("status", "")))
    return line[1] if line else None


def _of_platform(manifest: RawManifest, repository: Repository, platform: Platform) -> RawManifest:
    """The image itself, where an engine pushed an index over it."""
    if not manifest.is_index:
        return manifest
    for child in index_images(manifest, repository):
        if child.platform == platform.canonical:
            return repository.get_manifest(child.digest)
    raise ImageMismatch(
        "the Docker Engine pushed an index without the platform that was baked",
        where=f"{repository.name}@{manifest.digest}",
        expected=str(platform),
    )


def _build_with_program(
    engine: Engine, program: BuildProgram, plan: Plan, context: Path, network: str, say: Say
) -> str:
    result = context.parent / "result"
    command = [
        *program.command(engine.host, str(result)),
        "--platform",
        str(plan.base.platform),
        "--network",
        network,
        str(context),
    ]
    environment = {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    code, lines = _run(command, os.environ | environment, say)
    if code:
        raise _bake_error(plan.dockerfile, "\n".join(lines))
    return _made_image(engine, program, result.read_text(encoding="utf-8"))


def _made_image(engine: Engine, program: BuildProgram, text: str) -> str:
    """The image that a build program says it made, by the name that the engine knows it under."""
    with engine_errors("looking for the image that was made", program.path):
        there = {str(image["Id"]) for image in engine.api.images()}
    found = next((name for name in named_images(program, text) if name in there), None)
    if found is None:
        raise Unavailable("BuildKit does not say what it made", where=program.path, found=text[:200])
    return found


def named_images(program: BuildProgram, text: str) -> list[str]:
    """The names of an image in what a program wrote: buildx's metadata file, or an image id file.

    Engines that keep blobs call an image by its manifest, the others by its config; both are in the metadata.
    """
    if not program.buildx:
        return _IMAGE_ID.findall(text)
    metadata = json.loads(text)
    keys = ("containerimage.digest", "containerimage.config.digest")
    return [str(metadata[key]) for key in keys if key in metadata]


def _run(command: Sequence[str], environment: Mapping[str, str], say: Say) -> tuple[int, list[str]]:
    """Run a program, hand its lines on as they come, and keep the last ones."""
    kept: list[str] = []
    with subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            if line.strip():
                say(line.strip()[:200])
                kept = [*kept, line.rstrip()][-_KEPT_LINES:]
        return process.wait(BUILD_TIMEOUT), kept


def _build_with_sdk(engine: Engine, plan: Plan, context: Path, network: str, say: Say) -> str:
    image, lines = "", []
    with engine_errors("building", "Dockerfile"):
        events = engine.api.build(
            path=str(context),
            platform=str(plan.base.platform),
            network_mode=network,
            decode=True,
            rm=True,
            forcerm=True,
        )
        for event in events:
            text = str(event.get("stream") or event.get("error") or "").strip()
            if text:
                say(text[:200])
                lines.append(text)
            if "error" in event:
                raise _bake_error(plan.dockerfile, "\n".join(lines[-_KEPT_LINES:]))
            image = (event.get("aux") or {}).get("ID") or image
    if not _IMAGE_ID.fullmatch(image):
        raise Unavailable("the Docker Engine does not say what it made", where="Dockerfile", found=image)
    return image


def _bake_error(dockerfile: str, said: str) -> Unavailable:
    line = _failed_line(dockerfile, said)
    return Unavailable(
        "the Docker Engine could not bake the image",
        where=f"Dockerfile, line {line}" if line else "Dockerfile",
        found=next((text for text in reversed(said.splitlines()) if text.strip()), "no message")[:300],
        details=said,
        hint="overlay build --dry-run prints the Dockerfile",
    )


def _failed_line(dockerfile: str, said: str) -> int | None:
    """The Dockerfile's line that the engine names, by number or by repeating the instruction."""
    for pattern in _ERROR_LINES:
        if match := pattern.search(said):
            return int(match[1])
    step = _FAILED_STEP.search(said) or re.search(r"(?m)^Step \d+/\d+ : (.+)(?![\s\S]*^Step )", said)
    if step is None:
        return None
    wanted = _words(step[1])
    return next((n for n, text in _instructions(dockerfile) if _words(text) == wanted), None)


def _instructions(dockerfile: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(dockerfile.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line


def _words(text: str) -> list[str]:
    return re.sub(r"\\\$", "$", text).split()


def _hear(event: Mapping[str, Any], say: Say, where: str) -> None:
    """One event of a pull or push; an error in it is the engine's own."""
    if "error" in event:
        raise Unavailable(
            "the Docker Engine failed", where=where, found=str(event["error"])[:500], hint="docker login?"
        )
    if status := event.get("status"):
        say(f"{status} {event.get('id', '')} {event.get('progress', '')}".strip()[:200])
