"""Where a build goes: registries, layouts and a Docker Engine, with attestations beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from builder.build.result import BuildResult
from builder.errors import InvalidInput, Unavailable, UsageError
from builder.oci.model import DOCKER_MANIFEST, ByteProgress, Descriptor, ImageSink, ImageSource
from builder.oci.parallel import Check, Task, run_parallel
from builder.oci.reference import LayoutReference, Reference, is_tag, parse_reference

if TYPE_CHECKING:
    from builder.build.pipeline import Patched
    from builder.oci.registry.artifact import Place
    from builder.oci.registry.client import Network, Repository
    from builder.publish.docker_engine.bake import EngineImage
    from builder.publish.docker_engine.connection import Engine
    from builder.record.document import Document
    from builder.record.signature import SigningKey

DEFAULT_TAG = "{release}-{name}-{patchset}"
# ECR answers 400 (TAG_INVALID), Harbor 412, Nexus 400 where a tag may not move; 403, 405 and 409 are near.
_TAG_REFUSED = frozenset({400, 403, 405, 409, 412})
_IMMUTABLE = frozenset({"TAG_INVALID", "PRECONDITION"})  # ECR's code, and Harbor's
Say = Callable[[str], None]


@dataclass(frozen=True)
class Delivery:
    """Where a build is to go.

    Args:
        targets: repositories and layouts.
        complete: whether a layout gets the base's layers too.
        load: whether a Docker Engine gets the image.
        tag_template: the tag of targets without one.
        attach: whether attestations are attached to what is pushed.
        attest: a directory for attestations as files.
        key: signs them.
    """

    targets: tuple[Reference | LayoutReference, ...]
    complete: bool
    load: bool
    tag_template: str
    attach: bool
    attest: Path | None
    key: SigningKey | None

    @property
    def needs_documents(self) -> bool:
        """Whether attestations are to be made."""
        return self.attest is not None or (
            self.attach and any(isinstance(target, Reference) for target in self.targets)
        )


@dataclass(frozen=True)
class Delivered:
    """Where a build went.

    Args:
        digest: of the index or image; the engine's id of an image that was not pushed.
        references: by name, tag and digest.
        loaded: its name in the Docker Engine.
        loaded_id: the engine's own id of that: the image's digest where it keeps blobs, else the config's.
        documents: the attestations that were written as files.
        moved: what a tag led to before, by name and tag; of tags that led to something else.
        notes: what a person should know of it.
    """

    digest: str
    references: tuple[str, ...] = ()
    loaded: str | None = None
    documents: tuple[Path, ...] = ()
    moved: Mapping[str, str] = field(default_factory=dict)
    loaded_id: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def shared(self) -> tuple[str, ...]:
        """The references that mean the same on every machine."""
        return tuple(text for text in self.references if not text.startswith("oci:"))


def check_engine_delivery(delivery: Delivery) -> list[Reference]:
    """The repositories that a Docker Engine pushes to; what it cannot deliver is refused before it bakes.

    Raises:
        UsageError: a layout, or attestations of an image that is not pushed.
    """
    targets = []
    for target in delivery.targets:
        if isinstance(target, LayoutReference):
            raise UsageError("a Docker Engine writes no layouts: bake with --engine oci", found=str(target))
        targets.append(target)
    if delivery.attest and not targets:
        raise UsageError("an image has a digest to attest once it is pushed", hint="add --push REF")
    return targets


def deliver(
    finished: BuildResult,
    delivery: Delivery,
    network: Network,
    *,
    before: Sequence[str] = (),
    say: Say,
    progress: ByteProgress,
    on_named: Callable[[str], None] = lambda _: None,
) -> Delivered:
    """Bring a finished build to where it is to go.

    Args:
        finished: the build.
        delivery: where it goes.
        network: the registries.
        before: references under which the same images were pushed before; a repository of the same registry
            can give what is in them without sending.
        say: told what takes time.
        progress: makes a byte counter for a layer that is streamed.
        on_named: told each reference that means the same everywhere, as soon as it can be pulled.

    Raises:
        UsageError: an engine is to get an index of several platforms.
        Unavailable: a registry, a disk or the engine failed.
    """
    from builder.oci.registry.location import open_sink

    if delivery.load and len(finished.images) != 1:
        raise UsageError("a Docker Engine takes one image: choose with --platform")
    tag = tag_of(delivery.tag_template, finished.tag_values)
    references = []
    moved: dict[str, str] = {}
    for target in delivery.targets:
        sink = open_sink(target, network, complete=delivery.complete)
        say(f"writing to {sink.name}")
        mount_from = _mount_source(target, before, network)
        name = f"{target.name}:{target.tag or tag}"
        old = bring_blobs(
            finished, sink, network, mount_from=mount_from, tag=target.tag or tag, progress=progress
        )
        attachable = isinstance(target, Reference) and delivery.attach
        for image in finished.images if finished.index or attachable else ():
            sink.put_manifest(image.image.manifest)
        if isinstance(target, Reference) and delivery.attach:
            say(f"attaching attestations to {sink.name}")
            for image in finished.images:
                _attach(network.repository(target), image.image.descriptor, image.documents, mount_from)
        # A registry's tag that is right already is let be: where tags are immutable, it could not be written.
        if old != finished.digest or isinstance(target, LayoutReference):
            _put_tag(finished, sink, target.tag or tag, old)
        if old not in (None, finished.digest):
            moved[name] = str(old)
        references.append(f"{name}@{finished.digest}")
        if isinstance(target, Reference):
            on_named(references[-1])
    loaded, loaded_id = _load(finished, tag, network, progress) if delivery.load else (None, None)
    made = [(str(image.image.platform.canonical), image.documents) for image in finished.images]
    written = _write(delivery.attest, made)
    return Delivered(
        finished.digest, tuple(references), loaded, written, moved, loaded_id, _notes(finished, delivery)
    )


def _notes(finished: BuildResult, delivery: Delivery) -> tuple[str, ...]:
    """A layout with an image in Docker's media types: the OCI's specification of layouts knows none."""
    is_docker = any(image.image.manifest.media_type == DOCKER_MANIFEST for image in finished.images)
    return tuple(
        f"{target} holds an image in Docker's media types, as its base has them, which skopeo, podman and "
        "umoci do not read from a layout: --format oci converts it"
        for target in delivery.targets
        if is_docker and isinstance(target, LayoutReference)
    )


def bring_blobs(
    finished: BuildResult,
    sink: ImageSink,
    network: Network,
    *,
    mount_from: Repository | None = None,
    tag: str,
    progress: ByteProgress,
) -> str | None:
    """Write a build's layers and configs to a registry or layout; manifests name them, and come afterwards.

    Args:
        finished: the build.
        sink: where to; the bases' layers are mounted, streamed or left out, as the sink has it.
        network: where the bases' layers are.
        mount_from: where the new blobs may be already.
        tag: the name for the whole.
        progress: makes a byte counter for a layer that is streamed.

    Returns:
        What the tag leads to now, as far as the sink says.

    Raises:
        ImageMismatch, Unavailable: a base or the sink fails.
    """
    from builder.oci.registry.location import open_source

    before: list[str | None] = []
    tasks: list[Task] = [lambda check: before.append(sink.find_tag(tag))]
    for image in finished.images:
        tasks.append(_putting(sink, image.layer_descriptor, image.layer, mount_from))
        tasks.append(
            _putting(sink, image.image.config_descriptor, image.image.config, mount_from, is_new=True)
        )
        source = open_source(image.base, network)
        tasks += [_copying(sink, source, layer, progress) for layer in image.image.layers[:-1]]
    run_parallel(tasks, sink.workers)
    return before[0]


def _put_tag(finished: BuildResult, sink: ImageSink, tag: str, old: str | None) -> None:
    """The last request: only now can the image be pulled by name.

    Raises:
        Unavailable: the registry refuses; where it does not let tags move, that is said.
    """
    try:
        sink.put_manifest(finished.index or finished.images[0].image.manifest, tag=tag)
    except Unavailable as error:
        from builder.oci.registry.transport import error_codes

        is_tag = old or _IMMUTABLE & error_codes(error)
        if error.facts.get("status") not in _TAG_REFUSED or not is_tag:
            raise
        raise Unavailable(
            f"the registry does not let the tag move: {error.what}",
            where=f"{sink.name}:{tag}",
            expected=f"{finished.digest}, or no such tag",
            found=old,
            hint="where tags are immutable each build needs its own: "
            f"--tag-template '{DEFAULT_TAG}', or another tag in --push",
            facts=error.facts,
        ) from None


def _mount_source(
    target: Reference | LayoutReference, before: Sequence[str], network: Network
) -> Repository | None:
    """Another repository of the target's registry among these references, which may say anything."""
    if not isinstance(target, Reference):
        return None
    for text in before:
        with suppress(InvalidInput):
            found = parse_reference(text)
            if found.registry == target.registry and found.repository != target.repository:
                return network.repository(found)
    return None


def _putting(
    sink: ImageSink,
    descriptor: Descriptor,
    data: bytes,
    mount_from: Repository | None,
    *,
    is_new: bool = False,
) -> Task:
    return lambda check: sink.put_blob(descriptor, data, is_new=is_new, mount_from=mount_from)


def _copying(sink: ImageSink, source: ImageSource, layer: Descriptor, progress: ByteProgress) -> Task:
    def copy(check: Check) -> None:
        count = progress(f"copying layer {layer.digest[7:19]}", layer.size)

        def stored(size: int) -> None:
            check()
            count(size)

        sink.copy_blob(source, layer, progress=stored)

    return copy


def tag_of(template: str, values: Mapping[str, str]) -> str:
    """A tag from ``--tag-template``.

    Args:
        template: with ``{name}`` for each of ``values``.
        values: what it may use (see :func:`builder.build.plan.tag_values`).

    Raises:
        InvalidInput: it uses another name, or what comes out is not a tag.
    """
    tag = template
    for key, value in values.items():
        tag = tag.replace("{" + key + "}", value)
    if not is_tag(tag):
        raise InvalidInput(
            "tag template gives no tag",
            where=f"--tag-template {template}",
            expected="at most 128 letters, digits and . _ -; {" + "} {".join(values) + "} are filled in",
            found=tag,
        )
    return tag


def deliver_from_engine(
    engine: Engine,
    images: Sequence[EngineImage],
    delivery: Delivery,
    patched: Patched,
    network: Network,
    *,
    say: Say,
) -> Delivered:
    """Name what a Docker Engine baked, and push it from there.

    Raises:
        UsageError: see :func:`check_engine_delivery`.
        Unavailable: a registry or the engine failed.
    """
    from builder.build.pipeline import documents_of
    from builder.build.plan import engine_name, tag_values
    from builder.publish.docker_engine.bake import push_image, tag_image

    targets = check_engine_delivery(delivery)
    (image,) = images
    tag = tag_of(delivery.tag_template, tag_values(patched.spec, patched.applied.series.digest))
    name = engine_name(patched.spec)
    tag_image(engine, image.id, name, tag)
    references, digest = [], image.id
    made: tuple[Document, ...] = ()
    for target in targets:
        named = target if target.tag else target.with_tag(tag)
        repository = network.repository(target)
        pushed = push_image(engine, image, named, repository, say)
        digest = pushed.digest
        references.append(f"{named.name}:{named.tag}@{digest}")
        made = documents_of(image.plan, digest, patched, delivery.key)
        if delivery.attach:
            _attach(repository, pushed, made)
    written = _write(delivery.attest, [(str(image.plan.base.platform), made)])
    return Delivered(digest, tuple(references), f"{name}:{tag}", written, loaded_id=image.id)


def _attach(
    place: Place, image: Descriptor, documents: tuple[Document, ...], mount_from: Place | None = None
) -> None:
    from builder.oci.registry.artifact import attach_artifacts

    attach_artifacts(place, image, [document.artifact for document in documents], mount_from=mount_from)


def _load(finished: BuildResult, tag: str, network: Network, progress: ByteProgress) -> tuple[str, str]:
    """The image's name in the Docker Engine, and the engine's id of it."""
    from builder.oci.registry.location import open_source
    from builder.publish.docker_engine.connection import connect
    from builder.publish.docker_engine.load import load_image

    name = f"{finished.engine_name}:{tag}"
    (image,) = finished.images
    with connect() as engine:
        return name, load_image(engine, image, open_source(image.base, network), name, progress=progress)


def _write(directory: Path | None, documents: Sequence[tuple[str, tuple[Document, ...]]]) -> tuple[Path, ...]:
    """Into the directory itself for one platform, else into one below it for each."""
    from builder.record.document import write_documents

    if directory is None:
        return ()
    written: list[Path] = []
    for platform, made in documents:
        below = directory / platform.replace("/", "-") if len(documents) > 1 else directory
        written += write_documents(made, below)
    return tuple(written)
