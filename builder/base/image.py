"""The base image: chosen by digest and platform, and what its own layers say of the files to be patched.

What was verified is a value (:class:`BaseFiles`) that goes into the lock under the base's digest: the next
build, on any machine, asks for no layer at all.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from builder.base.startup import deciding
from builder.errors import ImageMismatch, InvalidInput, UsageError
from builder.oci.append import (
    base_config,
    base_layers,
    check_base,
    depth_warning,
    diff_ids,
    labels_of,
    platform_of,
)
from builder.oci.index import index_images
from builder.oci.layer import parent_directories
from builder.oci.model import ByteProgress, Descriptor, ImageSource, Platform, RawManifest, is_digest
from builder.oci.reference import LayoutReference, Reference, parse_location
from builder.oci.settings import Settings, settings_of
from builder.printable import counted
from builder.project.pin import no_base
from builder.project.spec import BaseSpec, SourcePath, Spec
from builder.source.files import SourceFile

if TYPE_CHECKING:
    from builder.base.python_path import Interpreter, Roots
    from builder.oci.layer_index import LayerIndex
    from builder.oci.rootfs import Found, RootFS

OVERLAY_LABEL = "dev.sglang-overlay.name"
BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"

# What reads layers is imported where it is used: a build on a locked base reads none.


@dataclass(frozen=True)
class Base:
    """One platform's base image.

    Args:
        source: where its blobs are read from.
        location: its repository or layout, without tag and digest.
        index: digest of the index it was chosen from; None when it was named itself.
        manifest: its platform manifest, as stored.
        config: its config, as stored.
        platform: what its config says it is for.
    """

    source: ImageSource
    location: Reference | LayoutReference
    index: str | None
    manifest: RawManifest
    config: bytes = field(repr=False)
    platform: Platform

    @property
    def name(self) -> str:
        """The repository as records name it; a layout's path is its machine's own and is left out."""
        return self.location.name if isinstance(self.location, Reference) else "oci-layout"

    @property
    def reference(self) -> str:
        """How ``FROM`` names it: by digest, never by tag."""
        return f"{self.name}@{self.manifest.digest}"


def _bits(value: object) -> object:
    return int(value, 8) if isinstance(value, str) else value


# The facts as the lock may hold them. Permission bits are octal there, as people read them.
Mode = Annotated[
    int, Field(ge=0, le=0o7777), BeforeValidator(_bits), PlainSerializer(lambda bits: f"{bits:04o}")
]
Owner = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Blob = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
BytecodePath = Annotated[SourcePath, StringConstraints(pattern=r"\.pyc$")]


@dataclass(frozen=True)
class RootFact:
    """Where a package of the upstream is in the image (without a leading slash), and what the spec asked."""

    path: SourcePath
    image_path: SourcePath
    asked: str
    distribution: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class FileFact:
    """A file of the image: real path, git blob id (None: no such file), permission bits and owner."""

    image_path: SourcePath
    blob: Blob | None
    mode: Mode = 0o644
    uid: Owner = 0
    gid: Owner = 0


@dataclass(frozen=True)
class DirectoryFact:
    """A directory of the image: permission bits, owner, and modification time in seconds since 1970."""

    mode: Mode
    uid: Owner
    gid: Owner
    mtime: Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class StartFact:
    """How containers of the image start, as far as that decides where Python imports from.

    Args:
        environment: the variables that count, the spec's and the template's among them.
        working_dir, user, command: as the image has them, the command after its entry point.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = "/"
    user: str = ""
    command: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> StartFact:
        return cls(deciding(settings), settings.start_directory, settings.user, settings.started)


@dataclass(frozen=True)
class BaseFiles:
    """What the layers of one base say of what a series touches.

    Args:
        python: cache tag of the image's Python, such as ``cpython-312``; None when there is none.
        roots: where each package is.
        files: by upstream path.
        directories: the parents of everything that will be written, by path in the image.
        bytecode: compiled files of modules that will be patched, by path in the image.
        warnings: what a person should know, such as a second copy of SGLang.
        layers: digests of the blobs that say so, lowest first.
        installed: versions of what is demanded, ``cuda`` among it; None for what is not there.
        start: how containers of the image start that is built; what Python imports was decided for that.
        interpreter: the Python of the entry point, else the one that ``PATH`` names; None for none.
        searched: the directories that it looks into, also those that are not there.
    """

    python: str | None
    roots: tuple[RootFact, ...]
    files: Mapping[str, FileFact]
    directories: Mapping[SourcePath, DirectoryFact]
    bytecode: Mapping[BytecodePath, FileFact]
    warnings: tuple[str, ...] = ()
    layers: tuple[Digest, ...] = ()
    installed: Mapping[str, str | None] = field(default_factory=dict)
    start: StartFact | None = None
    interpreter: str | None = None
    searched: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For the lock."""
        value: dict[str, Any] = _facts_of_lock().dump_python(self, mode="json")
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BaseFiles | None:
        """From the lock; None when the entry is not of this shape (it is then verified anew)."""
        try:
            return _facts_of_lock().validate_python(value)
        except ValidationError:
            return None

    def answer(
        self,
        layers: Sequence[str],
        paths: Collection[str],
        roots: Mapping[str, str],
        demanded: Collection[str] = (),
        start: StartFact | None = None,
    ) -> bool:
        """Whether these are the facts of these layers, paths and distributions alone, with the spec's roots.

        And for containers that start like that: another environment can mean another Python, or another copy.

        Facts of more paths would bring along the bytecode of modules that are not patched any more. Facts
        that put a file elsewhere than below its root, or empty the bytecode of other modules, do not count.
        """
        asked = {root.path: root.asked for root in self.roots}
        is_asked = self.files.keys() == set(paths) and asked == dict(roots)
        is_asked = is_asked and self.installed.keys() == set(demanded)
        is_asked = is_asked and self.start is not None and self.start == start
        return is_asked and self.layers == tuple(layers) and self._hang_together()

    def _hang_together(self) -> bool:
        """Whether each path follows from its root and file, as without symbolic links inside a package."""
        for root in self.roots:
            wanted = root.path.rpartition("/")[2] if root.asked == "auto" else root.asked.strip("/")
            if root.image_path != wanted and not root.image_path.endswith("/" + wanted):
                return False
        places = {root.path: root for root in self.roots}
        for path, file in self.files.items():
            root = places[_root_of(path, places)]
            if file.image_path != root.image_path + path[len(root.path) :]:
                return False
        present = [file.image_path for file in self.files.values() if file.blob is not None]
        if not self.directories.keys() >= set(parent_directories(present)):
            return False
        sources = {file.image_path.removesuffix(".py") for file in self.files.values()}
        return all(_source_of(path) in sources for path in self.bytecode)


def _source_of(bytecode: str) -> str:
    """The source that a compiled file is of (PEP 3147), without its ending."""
    directory, _, name = bytecode.rpartition("/")
    parent, _, last = directory.rpartition("/")
    return f"{parent if last == '__pycache__' else directory}/{name.partition('.')[0]}"


@cache
def _facts_of_lock() -> TypeAdapter[BaseFiles]:
    return TypeAdapter(BaseFiles)


# --- which image --------------------------------------------------------------------------------------------


def base_locations(
    text: str | None, spec: Spec, platforms: Sequence[Platform]
) -> list[Reference | LayoutReference]:
    """What ``--base`` names, always with a digest; of a spec that pins no index, each platform's own image.

    Args:
        text: ``sha256:…`` (of the spec's image), ``IMAGE@sha256:…``, ``IMAGE:TAG@sha256:…`` or
            ``oci:DIR@sha256:…``; None for the spec's own pin.
        spec: the overlay's.
        platforms: those that are wanted; none means the spec's.

    Raises:
        InvalidInput: a bare tag, with the command that pins it; or no reference at all.
        ImageMismatch: the spec pins no image for a platform.
    """
    if text is not None:
        return [_base_location(text, spec)]
    if spec.base.index:
        return [_base_location(spec.base.index, spec)]
    pinned = {Platform.parse(name): digest for name, digest in spec.base.platforms.items() if digest}
    if not pinned:
        raise no_base(spec)
    missing = [platform for platform in platforms if platform not in pinned]
    if missing:
        raise ImageMismatch(
            "the spec pins no image for the platform",
            where=f"{spec.name}: base.platforms",
            expected=", ".join(map(str, missing)),
            found=", ".join(map(str, pinned)),
        )
    wanted = dict.fromkeys(pinned[platform] for platform in platforms or pinned)
    return [_base_location(digest, spec) for digest in wanted]


def _base_location(text: str, spec: Spec) -> Reference | LayoutReference:
    if is_digest(text):
        text = f"{spec.base.image.split('@')[0]}@{text}"
    location = parse_location(text)
    if location.digest is None:
        raise InvalidInput(
            "a tag can move: the base is named by digest",
            where=text,
            expected=f"{text}@sha256:…",
            hint=f"pin it first: overlay pin {spec.name} --base {text}",
        )
    return location


def resolve_bases(
    location: Reference | LayoutReference, source: ImageSource, spec: BaseSpec, platforms: Sequence[Platform]
) -> list[Base]:
    """The platform images that a digest stands for.

    Args:
        location: with a digest.
        source: the repository or layout it names.
        spec: the spec's ``base``; its platforms serve where none is asked for and the index is its own.
        platforms: what ``--platform`` asks for; none means the only one, or the spec's.

    Raises:
        ImageMismatch: no such digest; no image for a platform (says which there are); or an image that
            contradicts itself, its index, or has no room for a layer.
        UsageError: the index has several platforms, and nobody chose.
    """
    manifest = source.get_manifest(location.digest or "")
    if not manifest.is_index:
        base = _read_base(location, source, manifest, _index_of(location, source, spec))
        for name, digest in spec.platforms.items():
            if digest == base.manifest.digest and Platform.parse(name) != base.platform:
                raise _another_image(name, digest, f"an image for {base.platform}")
        if set(platforms) - {base.platform}:
            raise ImageMismatch(
                "the digest is of one platform's image, and of another than asked for",
                where=str(location),
                expected=", ".join(map(str, platforms)),
                found=str(base.platform),
                hint="name the digest of the image index, or of that platform's image",
            )
        return [base]
    there = {child.platform: child for child in index_images(manifest, source) if child.platform}
    if location.digest == spec.index:
        _check_platforms(spec, there)
    if not there:
        raise ImageMismatch(
            "the image index holds no image for any platform",
            where=str(location),
            hint="name another index, or one image's digest",
        )
    chosen = list(dict.fromkeys(platforms)) or _default_platforms(location, spec, there)
    missing = [platform for platform in chosen if platform not in there]
    if missing:
        raise ImageMismatch(
            "the image index has no image for the platform",
            where=str(location),
            expected=", ".join(map(str, missing)),
            found=", ".join(map(str, there)),
        )
    bases = [
        _read_base(location, source, source.get_manifest(there[platform].digest), location.digest)
        for platform in chosen
    ]
    for platform, base in zip(chosen, bases, strict=True):
        if base.platform != platform:
            raise ImageMismatch(
                "an image is for another platform than its index says",
                where=f"{location.name}@{base.manifest.digest}",
                expected=str(platform),
                found=f"{base.platform}, by its config",
            )
    return bases


def _default_platforms(
    location: Reference | LayoutReference, spec: BaseSpec, there: Mapping[Platform, Descriptor]
) -> list[Platform]:
    if len(there) == 1:
        return list(there)
    if location.digest == spec.index and spec.platforms:
        return [Platform.parse(name) for name in spec.platforms]
    raise UsageError(
        "the image index has several platforms: choose",
        where=str(location),
        found=", ".join(map(str, there)),
        hint=" ".join(f"--platform {platform}" for platform in there),
    )


def _index_of(location: Reference | LayoutReference, source: ImageSource, spec: BaseSpec) -> str | None:
    """The spec's index, when the spec says that this platform image is one of its children, and it is.

    Raises:
        ImageMismatch: it is not.
    """
    if spec.index is None or location.digest not in spec.platforms.values():
        return None
    images = index_images(source.get_manifest(spec.index), source)
    _check_platforms(spec, {child.platform: child for child in images if child.platform})
    return spec.index


def _check_platforms(spec: BaseSpec, there: Mapping[Platform, Descriptor]) -> None:
    """Each digest that the spec has for a platform must be what its index has for it."""
    for name, digest in spec.platforms.items():
        child = there.get(Platform.parse(name))
        if digest and (child is None or child.digest != digest):
            others = {one.digest: f"the image for {platform}" for platform, one in there.items()}
            raise _another_image(
                name, digest, others.get(digest, "not in the index"), child.digest if child else None
            )


def _another_image(name: str, digest: str, what: str, right: str | None = None) -> ImageMismatch:
    return ImageMismatch(
        "the spec's digest for a platform is of another image",
        where=f"base.platforms: {name}",
        expected=right or f"the digest of an image for {name}",
        found=f"{digest}: {what}",
        hint="write the right one into the spec; the registry was asked for both by digest",
    )


def _read_base(
    location: Reference | LayoutReference, source: ImageSource, manifest: RawManifest, index: str | None
) -> Base:
    config = source.read_blob(base_config(manifest))
    check_base(manifest, config)
    where = location.with_digest(manifest.digest)
    bare = (
        Reference(where.registry, where.repository)
        if isinstance(where, Reference)
        else LayoutReference(where.path)
    )
    return Base(source, bare, index, manifest, config, platform_of(config).canonical)


# --- what is in it ------------------------------------------------------------------------------------------


def look_up_base_files(
    base: Base,
    paths: Collection[str],
    *,
    known: BaseFiles | None,
    cache: Path,
    roots: Mapping[str, str],
    beside: Collection[str] = (),
    demanded: Collection[str] = (),
    progress: ByteProgress,
    settings: Settings | None = None,
) -> BaseFiles:
    """Look up every path in the base: in what is known of it already, else in its layers.

    Args:
        base: the base image.
        settings: of the image that is built on it; None for the base's own.
        paths: upstream paths.
        known: from the lock, for this base's digest.
        cache: where layer indexes are kept.
        roots: upstream path → path in the image or ``auto``, from the spec.
        beside: paths in the image that are written beside these files.
        demanded: distributions whose versions are asked for, by normalised name; ``cuda`` among them.
        progress: makes a byte counter for a layer that is read.

    Raises:
        ImageMismatch: no Python of the image imports the package, or it imports something else than what
            would be patched; or a layer is not what its digest says.
        InvalidInput: a path is below no root.
    """
    for path in paths:
        _root_of(path, roots)
    settings = settings_of(base.config) if settings is None else settings
    layers = [layer.digest for layer in base_layers(base.manifest)]
    if known is not None and known.answer(layers, paths, roots, demanded, StartFact.of(settings)):
        return known
    from builder.oci.rootfs import RootFS

    fs = RootFS(layer_indexes(base, cache, progress))
    facts = _read_facts(base, paths, fs, roots, beside, settings)
    return _with_installed(facts, settings, fs, demanded) if demanded else facts


def _with_installed(facts: BaseFiles, settings: Settings, fs: RootFS, demanded: Collection[str]) -> BaseFiles:
    from builder.base.installed import find_installed

    environment, working_dir = settings.environment, settings.start_directory
    installed, notes = find_installed(fs, demanded, environment, working_dir=working_dir)
    return replace(facts, installed=installed, warnings=(*facts.warnings, *notes))


def layer_indexes(base: Base, cache: Path, progress: ByteProgress) -> list[LayerIndex]:
    """An index of each of the base's layers, lowest first; a layer is read once in its life."""
    from builder.oci.layer_index import cached_index, index_layer

    indexes = []
    for descriptor, diff_id in zip(base_layers(base.manifest), diff_ids(base.config), strict=True):
        index = cached_index(cache / "layers", descriptor, diff_id)
        if index is None:
            count = progress(f"reading layer {descriptor.digest[7:19]}", descriptor.size)
            with base.source.open_blob(descriptor) as chunks:
                counted = _counted(chunks, count)
                index = index_layer(counted, descriptor, cache_dir=cache / "layers", diff_id=diff_id)
        indexes.append(index)
    return indexes


def wrong_files(facts: BaseFiles, before: Mapping[str, SourceFile | None]) -> list[str]:
    """The paths of ``before`` that are not, in the base, what they are in the pinned upstream."""
    return [
        path
        for path, source in before.items()
        if (there := facts.files.get(path)) is None or there.blob != (None if source is None else source.blob)
    ]


def check_pre_images(
    base: Base,
    facts: BaseFiles,
    before: Mapping[str, SourceFile | None],
    after: Mapping[str, SourceFile | None],
    *,
    cache: Path,
    progress: ByteProgress,
) -> None:
    """Every file to be patched must be, in the base, the pinned pre-image.

    Args:
        base, facts: the base, and what is known of it.
        before: the touched files of the pinned upstream; None where there is none.
        after: the same with the series applied.
        cache, progress: as in :func:`look_up_base_files`.

    Raises:
        ImageMismatch: naming each file, the expected and the found blob, and showing the diff; it says so
            where the base has the series already, or differs in line endings alone.
    """
    wrong = wrong_files(facts, before)
    if not wrong:
        return
    found = _read_back(
        base, [facts.files[path].image_path for path in wrong if facts.files[path].blob], cache, progress
    )
    kinds = {path: _kind(facts.files[path], before[path], after.get(path), found) for path in wrong}
    shown = [_difference(path, facts.files[path], before[path], kinds[path], found) for path in wrong]
    first = wrong[0]
    source = before[first]
    what, hint = _in_short(base, set(kinds.values()), len(wrong))
    raise ImageMismatch(
        f"{what}; nothing was written",
        where=f"{base.name}@{base.manifest.digest[:19]}…: /{facts.files[first].image_path} ({first})",
        expected=f"blob {source.blob}" if source else "no such file",
        found=f"blob {facts.files[first].blob}" if facts.files[first].blob else "no such file",
        hint=hint,
        details="\n".join(shown),
        facts={
            "files": [
                {
                    "path": path,
                    "image_path": "/" + facts.files[path].image_path,
                    "expected": None if (wanted := before[path]) is None else wanted.blob,
                    "found": facts.files[path].blob,
                    "kind": kinds[path],
                }
                for path in wrong
            ]
        },
    )


# How a file of the base is another than the pinned one, as the details say it.
Kind = Literal["other", "patched", "line-endings", "last-newline"]
_KINDS: Mapping[Kind, str] = {
    "patched": "what the series makes of it: the base has the patches of this file already",
    "line-endings": "the same but for its line endings (CRLF)",
    "last-newline": "the same but for the newline at its end",
}


def _kind(
    fact: FileFact, source: SourceFile | None, patched: SourceFile | None, found: Mapping[str, bytes]
) -> Kind:
    if fact.blob == (patched and patched.blob):
        return "patched"
    there = found.get(fact.image_path)
    if there is None or source is None:
        return "other"
    if there.rstrip(b"\r\n") == source.data.rstrip(b"\r\n"):
        return "last-newline"
    unix, wanted = (data.replace(b"\r\n", b"\n").rstrip(b"\n") for data in (there, source.data))
    return "line-endings" if unix == wanted else "other"


def _in_short(base: Base, kinds: Collection[Kind], count: int) -> tuple[str, str]:
    """What is wrong with a base's files, and what to do."""
    labels = labels_of(base.config)
    files = f"{counted(count, 'file')} of the base"
    if held := labels.get(OVERLAY_LABEL):
        digest = labels.get(BASE_DIGEST, "sha256:…")
        name = labels.get(BASE_NAME, "").partition("@")[0]
        below = f"--base {name}@{digest}" if name else digest
        return (
            f"the base is an image that holds the overlay {held} already: {files} "
            f"{'is' if count == 1 else 'are'} not the pinned source",
            f"build on what that one was built on: {below}",
        )
    if kinds == {"patched"}:
        return (
            f"the base has it already: {files} {'is' if count == 1 else 'are'} what the series makes of "
            f"{'it' if count == 1 else 'them'}",
            "overlay verify tells an image of overlay's; of any other base, leave out what it has "
            "(patches.except), or take the release as it was published",
        )
    for kind in ("line-endings", "last-newline"):
        if kinds == {kind}:
            return (
                f"{files} {'is' if count == 1 else 'are'} {_KINDS[kind]}",
                "a checkout or an editor rewrote them: take a base that has the release's own bytes",
            )
    return (
        f"{files} {'is' if count == 1 else 'are'} not what the series was made for",
        "take the base of the overlay's own release, or carry the series over: overlay rebase",
    )


def _counted(chunks: Iterator[bytes], count: Callable[[int], None]) -> Iterator[bytes]:
    for chunk in chunks:
        count(len(chunk))
        yield chunk


def _root_of(path: str, roots: Collection[str]) -> str:
    """The longest root above an upstream path."""
    above = [root for root in roots if path == root or path.startswith(root + "/")]
    if not above:
        raise InvalidInput(
            "a patch touches a path that is nowhere in the image",
            where=path,
            expected=f"a path below {', '.join(roots)}",
            hint="name its place under base.roots in the spec, or leave it out with patches.drop",
        )
    return max(above, key=len)


def _read_facts(
    base: Base,
    paths: Collection[str],
    fs: RootFS,
    roots: Mapping[str, str],
    beside: Collection[str],
    settings: Settings,
) -> BaseFiles:
    placed: dict[str, RootFact] = {}
    too_deep = depth_warning(base.manifest)
    warnings: list[str] = [too_deep] if too_deep else []
    interpreter: Interpreter | None = None
    searched: dict[str, None] = {}
    for root, place in roots.items():
        try:
            found = _imported(base, fs, root.rsplit("/", 1)[-1], place, settings)
        except ImageMismatch as error:
            if place == "auto" or error.facts.get("instead"):
                raise
            warnings.append(f"{error.what}: {root} is taken to be at {place}, as the spec says")
            placed[root] = RootFact(root, place.strip("/"), place)
            continue
        interpreter = interpreter or found.interpreter
        warnings += [*found.warnings, *map(str, found.code)]
        searched |= dict.fromkeys(found.watched)
        chosen = found.root
        placed[root] = RootFact(root, chosen.path.strip("/"), place, chosen.distribution, chosen.version)
    files = {path: _file_fact(path, placed[_root_of(path, roots)], fs) for path in sorted(paths)}
    bytecode = _bytecode(settings, files.values(), fs)
    written = [*(fact.image_path for fact in files.values()), *bytecode, *beside]
    return BaseFiles(
        python=interpreter.cache_tag if interpreter else None,
        roots=tuple(placed.values()),
        files=files,
        directories=_directories(written, fs),
        bytecode=bytecode,
        warnings=tuple(dict.fromkeys(warnings)),
        layers=tuple(layer.digest for layer in base_layers(base.manifest)),
        start=StartFact.of(settings),
        interpreter=interpreter.path if interpreter else None,
        searched=tuple(searched),
    )


def _imported(base: Base, fs: RootFS, package: str, place: str, settings: Settings) -> Roots:
    """The copy of a package that Python imports in the image, however that is started.

    Raises:
        ImageMismatch: there is none, or it is another than the one that the spec wants to have patched.
    """
    from builder.base.python_path import find_roots

    found = find_roots(
        fs,
        settings.environment,
        package,
        working_dir=settings.start_directory,
        user=settings.user,
        command=settings.started,
        read=reader_of(base),
    )
    wanted = found.root.path if place == "auto" else f"/{fs.real_path(place) or place.strip('/')}"
    instead = [str(rival) for rival in found.rivals]
    if wanted != found.root.path:
        instead.insert(0, f"{found.root.path} ({found.root.reason})")
    if instead:
        raise ImageMismatch(
            f"Python would import another {package} than the one that is patched",
            where=f"{base.name}@{base.manifest.digest[:19]}…, in the environment that the image gets",
            expected=wanted,
            found="; ".join(instead),
            hint="look at environment and base.roots in the spec, at ENV in the template, and at the base's "
            "PATH, PYTHONPATH and working directory",
            facts={"instead": instead},
        )
    return found


def reader_of(base: Base) -> Callable[[Found], bytes | None]:
    """Reads single files of an image that its indexes found, by a pass over their layer."""
    from builder.base.providers import MAX_ARCHIVE
    from builder.oci.layer_index import read_files

    def read(found: Found) -> bytes | None:
        layer = base_layers(base.manifest)[found.stored_layer]
        with base.source.open_blob(layer) as chunks:
            return read_files(chunks, layer, [found.stored], limit=MAX_ARCHIVE).get(found.stored)

    return read


def _file_fact(path: str, root: RootFact, fs: RootFS) -> FileFact:
    image_path = root.image_path + path[len(root.path) :]
    found = fs.lookup(image_path)
    if found is None:
        return FileFact(_real_path_of_new(image_path, fs), None)
    if not found.is_file or found.blob is None:
        raise ImageMismatch(
            "a file to be patched is not a regular file of a sensible size",
            where="/" + image_path,
            found=f"{found.kind.value}, {counted(found.size, 'byte')}",
        )
    return FileFact(found.path, found.blob, found.mode, found.uid, found.gid)


def _real_path_of_new(image_path: str, fs: RootFS) -> str:
    """Where a file that is not there would be written: its nearest existing parent, links followed."""
    parent, _, name = image_path.rpartition("/")
    if not parent:
        return image_path
    real = fs.lookup(parent)
    return f"{real.path if real else _real_path_of_new(parent, fs)}/{name}"


def _bytecode(settings: Settings, files: Collection[FileFact], fs: RootFS) -> dict[str, FileFact]:
    """The compiled files that the base has of modules to be patched; they would run instead, or look stale.

    Raises:
        ImageMismatch: Python imports something else than the source that would be patched.
    """
    from builder.base.python_path import bytecode_of, shadows_of

    found = {}
    environment = settings.environment
    for fact in files:
        if shadows := shadows_of(fs, fact.image_path):
            raise ImageMismatch(
                "Python would not import the patched file: something beside it comes first",
                where="/" + fact.image_path,
                found=", ".join("/" + path for path in shadows),
                hint="this image was built differently; its maker must say how the module is compiled",
            )
        for there in bytecode_of(fs, fact.image_path, environment):
            found[there.path] = FileFact(there.path, there.blob, there.mode, there.uid, there.gid)
    return found


def _directories(written: Collection[str], fs: RootFS) -> dict[str, DirectoryFact]:
    found = {}
    for path in parent_directories(written):
        there = fs.lookup(path)
        if there is not None:
            found[path] = DirectoryFact(there.mode, there.uid, there.gid, there.mtime)
    return found


def _read_back(
    base: Base, image_paths: Sequence[str], cache: Path, progress: ByteProgress
) -> dict[str, bytes]:
    """The bytes of a few files of the base, for showing how they differ."""
    from builder.oci.layer_index import read_files
    from builder.oci.rootfs import RootFS

    fs = RootFS(layer_indexes(base, cache, progress))
    layers = base_layers(base.manifest)
    found: dict[str, bytes] = {}
    for path in image_paths:
        place = fs.lookup(path)
        if place is None:
            continue
        with base.source.open_blob(layers[place.stored_layer]) as chunks:
            read = read_files(chunks, layers[place.stored_layer], [place.stored])
        if place.stored in read:
            found[path] = read[place.stored]
    return found


def _difference(
    path: str, fact: FileFact, source: SourceFile | None, kind: Kind, found: Mapping[str, bytes]
) -> str:
    """One differing file, as a diff from the pinned upstream to the image, cut to a readable length."""
    expected = source.blob if source else "no such file"
    found_blob = fact.blob or "no such file"
    head = f"{path}\n  in the image: /{fact.image_path}\n  expected {expected}\n  found    {found_blob}"
    if kind in _KINDS:
        return f"{head}\n  it is {_KINDS[kind]}"
    there = found.get(fact.image_path)
    if source is None or there is None:
        return head
    lines = list(
        difflib.unified_diff(
            source.data.decode("utf-8", "replace").splitlines(),
            there.decode("utf-8", "replace").splitlines(),
            "upstream/" + path,
            "image/" + fact.image_path,
            lineterm="",
        )
    )
    more = [f"… {len(lines) - 40} more lines"] if len(lines) > 40 else []
    return "\n".join([head, *lines[:40], *more])
