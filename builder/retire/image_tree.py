"""The source inside an image as a target: read from its layers, nothing of it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from builder.base.image import Base
from builder.build.plan import LABEL, OCI
from builder.errors import ImageMismatch
from builder.oci.model import ByteProgress
from builder.oci.reference import parse_location
from builder.oci.registry.client import Network
from builder.oci.registry.location import identifier_of, open_source
from builder.oci.rootfs import Files, Found
from builder.record.manifest import MANIFEST_PATH
from builder.source.files import SourceFile
from builder.source.git import GitStore, TreeEntry
from builder.source.revision import Target
from builder.source.upstream import Mount, Upstream
from builder.verify.layered import LayeredImage, open_images

MAX_FILES = 50_000
MAX_FILE_BYTES = 8 << 20
# Names the way in which images are read: another way makes other trees of the same images.
_REFS = "refs/images-2"
_WITHOUT_OVERLAY = "refs/images-without-overlay"


def image_target(text: str, cache: Path, progress: ByteProgress, warn: Callable[[str], None]) -> Target:
    """The source that an image's Python imports, as a commit in the cache.

    Of an index, the first platform's image that has it is read: Python sources are the same for all.

    Args:
        text: a reference, or ``oci:DIR``.
        cache: the cache's directory.
        progress: makes a byte counter for a layer that is read.
        warn: told what a person should know although the work goes on.

    Raises:
        ImageMismatch: the image has no SGLang, or it is not what its digests say.
        Unavailable: the registry fails.
    """
    location = parse_location(text)
    store = GitStore.create(cache / "images.git")
    with Network(warn=warn) as network:
        images = open_images(location, open_source(location, network), identifier_of(location))
        commit = _commit_of(images, store, cache, progress)
    return Target(text, Upstream(text, "image", (Mount("", store, commit),)))


def upstream_image_target(
    text: str, cache: Path, progress: ByteProgress, warn: Callable[[str], None]
) -> Target:
    """The source in an image that holds upstream's and no overlay (see :func:`image_target`).

    Raises:
        ImageMismatch: its labels or a manifest in it say that it holds an overlay: nothing can be learnt from
            it about upstream.
    """
    location = parse_location(text)
    store = GitStore.create(cache / "images.git")
    with Network(warn=warn) as network:
        for image in open_images(location, open_source(location, network), identifier_of(location)):
            _check_without_overlay(LayeredImage(image, cache, progress), store)
    return image_target(text, cache, progress, warn)


def _check_without_overlay(image: LayeredImage, store: GitStore) -> None:
    labels = image.labels
    reference = f"{_WITHOUT_OVERLAY}/{str(image.digest).partition(':')[2]}"
    if any(name.startswith(f"{LABEL}.") for name in labels):
        patches = ", ".join(labels.get(f"{LABEL}.patches", "").split())
        base = (labels.get(f"{OCI}.base.name", "").partition("@")[0], labels.get(f"{OCI}.base.digest", ""))
        found = f"{labels.get(f'{LABEL}.name', 'an overlay')} with {patches or 'no patches named'}"
        raise _holds_an_overlay(image, found, f"--image {'@'.join(base)}" if all(base) else "")
    if store.resolve(reference, "tree"):
        return
    if image.read_manifest_file() is not None:
        raise _holds_an_overlay(image, f"{MANIFEST_PATH} in it", "")
    store.git("update-ref", reference, store.git("mktree").decode().strip())


def _holds_an_overlay(image: LayeredImage, found: str, base: str) -> ImageMismatch:
    return ImageMismatch(
        "the image holds an overlay already: its source says nothing about upstream",
        where=image.name,
        expected="an image with upstream's own source",
        found=found,
        hint=f"ask about {base or 'the base that it was made from'}; overlay inspect shows what is in it",
    )


def _commit_of(images: Sequence[Base], store: GitStore, cache: Path, progress: ByteProgress) -> str:
    """The source of the first image that has one; the last one's error where none has."""
    first, *others = images
    reference = f"{_REFS}/{first.manifest.digest.partition(':')[2]}"
    if known := store.resolve(reference):
        return known
    try:
        commit = _imported(store, LayeredImage(first, cache, progress))
    except ImageMismatch:
        if not others:
            raise
        return _commit_of(others, store, cache, progress)
    store.git("update-ref", reference, commit)
    return commit


def _imported(store: GitStore, image: LayeredImage) -> str:
    files = _sources(image)
    blobs = store.write_blobs([file.data for file in files.values()])
    with store.index() as index:
        index.put(
            {path: TreeEntry(file.mode, oid) for (path, file), oid in zip(files.items(), blobs, strict=True)}
        )
        tree = index.write_tree()
    when = {f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER") for key, value in _WHO.items()}
    return store.git("commit-tree", tree, stdin=b"source of an image\n", env=when).decode().strip()


_WHO = {"NAME": "overlay", "EMAIL": "overlay@localhost", "DATE": "@0 +0000"}


def _sources(image: LayeredImage) -> dict[str, SourceFile]:
    """The package's files at ``python/sglang``, and the project file beside it, which has the pins."""
    root = image.root_of("sglang")
    above = root.rpartition("/")[0]
    seen = image.open_files([above])
    found: dict[str, Found] = {}
    for number, (path, place) in enumerate(_walk(seen, root), 1):
        if number > MAX_FILES:
            raise ImageMismatch(
                "the package has too many files", where=image.name, expected=f"at most {MAX_FILES}"
            )
        if place.is_file:
            found[f"python/sglang/{path}"] = place
    if not found:
        raise ImageMismatch("the image's package sglang has no sources", where=f"{image.name}: {root}")
    project = seen.lookup(f"{above}/pyproject.toml")
    if project is not None and project.is_file:
        found["python/pyproject.toml"] = project
    data = image.read(found.values())
    return {
        path: SourceFile("100755" if place.mode & 0o111 else "100644", data[place.path])
        for path, place in found.items()
        if place.path in data
    }


def _walk(files: Files, root: str) -> Iterator[tuple[str, Found]]:
    """Directories and files below ``root``; no link to a directory is followed: it can lead in a circle."""
    top = files.lookup(root)
    waiting = [""] if top is not None and top.is_directory else []
    while waiting:
        below = waiting.pop()
        for name in files.listdir(f"{root}/{below}".rstrip("/")):
            path = f"{below}{name}"
            place = files.lookup(f"{root}/{path}") if name != "__pycache__" else None
            if place is None or top is None:
                continue
            if place.is_directory and place.path == f"{top.path}/{path}":
                waiting.append(f"{path}/")
                yield path, place
            elif place.is_file and place.size <= MAX_FILE_BYTES and not name.endswith((".so", ".pyc")):
                yield path, place
