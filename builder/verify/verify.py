"""Is what runs what was built: every post-image recomputed, nothing above it, nothing beside it.

Nothing that the image says is believed: the manifest in it is held against the bytes, the labels, the base,
and, where they are given, the lock, a key, and the patches of a checkout.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from builder.base.python_path import bytecode_of, shadows_of
from builder.errors import ImageMismatch
from builder.oci.append import annotations_of
from builder.oci.model import sha256_digest
from builder.oci.rootfs import Files, Found
from builder.oci.settings import Settings, settings_of
from builder.oci.tarwalk import Kind
from builder.patch.series import Series, patchset_digest
from builder.printable import counted
from builder.project.lock import Lock
from builder.record.manifest import MANIFEST_PATH, FileRecord, Manifest, read_manifest
from builder.verify.bytecode import Standing, standing_of
from builder.verify.config import (
    RankSettings,
    compare_annotations,
    compare_settings,
    differing,
    expected_settings,
)
from builder.verify.deviation import Deviation, one_line
from builder.verify.imports import check_imports
from builder.verify.layered import BaseFiles, LayeredImage, Subject
from builder.verify.package import compare_package
from builder.verify.read_record import expected_labels, final_files, read_record
from builder.verify.recompile import Compiled, is_recompiled, source_name
from builder.verify.vouched import check_trees

MAX_SOURCE = 4 << 20  # bytes of a patched file or of its bytecode
_NO_RANK = RankSettings()


@dataclass(frozen=True)
class Verified:
    """What was found out of a subject.

    Args:
        subject: its name.
        manifest: the applied-patch manifest in it.
        settings: what it is, or its containers are, started with.
        deviations: what is not as it should be.
        notes: what was not or could not be checked, and what a person should know.
        files: how many patched files were recomputed.
        compared: how many other files below the packages' directories were compared with the base.
        declared: settings beyond the base's that spec, template or launch declare.
        allowed: deviations that the caller allows.
        is_container: whether it is one.
    """

    subject: str
    manifest: Manifest
    settings: Settings
    deviations: tuple[Deviation, ...]
    notes: tuple[str, ...]
    files: int
    compared: int = 0
    declared: tuple[str, ...] = ()
    allowed: tuple[Deviation, ...] = ()
    is_container: bool = False

    def having(self, more: Iterable[Deviation | str]) -> Verified:
        """The same with deviations, and notes (texts), of what was found elsewhere."""
        found = list(dict.fromkeys(more))
        deviations = (one for one in found if isinstance(one, Deviation) and one not in self.deviations)
        notes = (one for one in found if isinstance(one, str) and one not in self.notes)
        return replace(self, deviations=(*self.deviations, *deviations), notes=(*self.notes, *notes))

    def allowing(self, over: Collection[str], settings: Collection[str]) -> Verified:
        """The same, where somebody built on the image on purpose.

        Args:
            over: files, or directories with all below them, that may be others.
            settings: variables, settings and labels that may be others.
        """
        allowed = [one for one in self.deviations if _is_allowed(one, over, settings)]
        kept = tuple(one for one in self.deviations if one not in allowed)
        return replace(self, deviations=kept, allowed=(*self.allowed, *allowed))

    def as_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "overlay": self.manifest.overlay.model_dump(),
            "base": self.manifest.base.model_dump(),
            "patchset": self.manifest.patchset,
            "files": self.files,
            "compared": self.compared,
            "deviations": [asdict(deviation) for deviation in self.deviations],
            "allowed": [asdict(deviation) for deviation in self.allowed],
            "declared": list(self.declared),
            "notes": list(self.notes),
        }


_OF_FILES = frozenset({"file", "package", "mode", "removed", "bytecode"})


def _is_allowed(deviation: Deviation, over: Collection[str], settings: Collection[str]) -> bool:
    if deviation.kind == "config":
        return deviation.where in settings
    if deviation.kind not in _OF_FILES:
        return False
    places = [posixpath.normpath(path).strip("/") for path in over]
    return any(not place or f"{deviation.where}/".startswith(f"/{place}/") for place in places)


def allowed_in_vain(
    allowed: Collection[Deviation], over: Sequence[str], settings: Sequence[str]
) -> Iterator[str]:
    """Notes of what a caller allowed (see :meth:`Verified.allowing`) and is not there.

    Args:
        allowed: what was, in all subjects.
        over, settings: what the caller named.
    """
    for path in over:
        if not any(_is_allowed(one, [path], ()) for one in allowed):
            yield f"--allow-over {path}: no file there is another"
    for key in settings:
        if not any(_is_allowed(one, (), [key]) for one in allowed):
            yield f"--allow-config {key}: it is as declared"


def verify(subject: Subject, base: LayeredImage | None, ranks: RankSettings = _NO_RANK) -> Verified:
    """Hold a subject against its own manifest and against its base.

    Args:
        subject: an image or a container.
        base: the base that the manifest names; None where nobody could be asked. Of an image whose layers
            begin with the base's, those are read, and nothing of the base but manifest and config.
        ranks: what a container may be started with.

    Raises:
        ImageMismatch: it was not made by overlay, or its manifest is missing or cannot be read.
    """
    verified = verify_patched(subject, base, ranks)
    before = subject.base_files(base)
    manifest = verified.manifest
    if before is None:
        what = "the packages' other files, and which copy Python imports, were not looked at"
        return verified.having([f"{what}: name the base with --base"])
    found: list[Deviation | str] = []
    compared = _Compared(subject, manifest, before)
    found += compared.findings()
    packages = [root.path.rpartition("/")[2] for root in manifest.roots]
    whole = subject.whole(base, packages)
    if whole is not None:
        expected = None if base is None else expected_settings(manifest, settings_of(base.image.config))
        found += check_imports(subject, manifest, whole, before.files, expected)
    if beside := subject.changed_beside([root.image_path for root in manifest.roots]):
        more = f" and {len(beside) - 5} more" if len(beside) > 5 else ""
        found.append(f"not the image's, where Python looks for other packages: {', '.join(beside[:5])}{more}")
    return replace(verified.having(found), compared=compared.count)


def verify_patched(subject: Subject, base: LayeredImage | None, ranks: RankSettings = _NO_RANK) -> Verified:
    """The part of :func:`verify` that reads no other files than the patched ones."""
    manifest = subject_manifest(subject)
    final = final_files(manifest)
    directories = [root.image_path for root in manifest.roots]
    files = subject.open_files(directories)
    found: list[Deviation | str] = [*_check_files(subject, files, final)]
    found += _check_bytecode(subject, files, manifest, final)
    found += _check_shadows(files, final)
    found += _check_words(subject, manifest)
    found += _check_patchset(manifest)
    found += check_trees(manifest)
    declared: tuple[str, ...] = ()
    if base is None:
        found.append("the base's layers and config were not compared: name the base with --base")
    else:
        found += _check_base(subject, manifest, base)
        found += _layer_notes(subject, base)
        names = frozenset(path.lstrip("/") for path in [*final, *manifest.bytecode, MANIFEST_PATH])
        found += [
            Deviation("undeclared", f"/{path}", "the overlay's layer has it, the manifest does not name it")
            for path in subject.undeclared(names, len(base.diff_ids))
        ]
        deviations, declared, notes = _check_settings(subject, manifest, base, ranks)
        found += [*deviations, *notes]
    settings, is_container = subject.settings, subject.is_container
    empty = Verified(
        subject.name, manifest, settings, (), (), len(final), declared=declared, is_container=is_container
    )
    return empty.having(found)


def _check_settings(
    subject: Subject, manifest: Manifest, base: LayeredImage, ranks: RankSettings
) -> tuple[Sequence[Deviation], tuple[str, ...], Sequence[str]]:
    """Deviations from what base, spec and template say; what those say over the base; notes."""
    of_base, found = settings_of(base.image.config), subject.settings
    if not subject.is_container:
        ranks = _NO_RANK
    compared = compare_settings(found, expected_settings(manifest, of_base), of_base, ranks)
    deviations = [*compared.deviations]
    deviations += compare_annotations(subject.annotations or {}, annotations_of(base.image.manifest))
    if manifest.entrypoint is not None or not compared.deviations:
        return deviations, compared.declared, ()
    names = ", ".join(dict.fromkeys(one.where for one in compared.deviations))
    what = "made by an older overlay, which recorded neither environment nor entry point"
    return (), compared.declared, (f"{what}; otherwise than the base's are: {names}",)


class _Compared:
    """The packages' directories beside the base's.

    Args:
        subject: an image or container.
        manifest: the one in it.
        before: its base's files.
    """

    def __init__(self, subject: Subject, manifest: Manifest, before: BaseFiles) -> None:
        self._subject, self._manifest = subject, manifest
        self._directories = [root.image_path for root in manifest.roots]
        self._final = final_files(manifest)
        self._files = subject.open_files(self._directories)
        handled = [*self._final, *manifest.bytecode]
        self._package = compare_package(self._files, before.files, self._directories, handled, subject.origin)
        self.count = self._package.compared

    def findings(self) -> Iterator[Deviation | str]:
        yield from self._package.deviations
        if unsure := self._package.unsure:
            yield f"too large to be compared but by size: {', '.join(unsure)}"
        yield from self._bytecode()

    def _bytecode(self) -> Iterator[Deviation | str]:
        """Bytecode that the base has not, of sources that no patch touches."""
        pairs = []
        for found in [*self._package.bytecode, *self._prefixed()]:
            source = self._source(found)
            if source is not None and f"/{source.path}" not in self._final:
                pairs.append((found, source))
        yield from classify_bytecode(self._subject, pairs)

    def _source(self, bytecode: Found) -> Found | None:
        """The source that Python must find to take a file of ``__pycache__``."""
        directory, _, name = bytecode.path.rpartition("/")
        source = source_name(name)
        if source is None:
            return None
        prefix = self._prefix.strip("/")
        if prefix and directory.startswith(f"{prefix}/"):
            return found_at(self._files, f"{directory.removeprefix(prefix)}/{source}")
        return found_at(self._files, f"{directory.rpartition('/')[0]}/{source}")

    @property
    def _prefix(self) -> str:
        return self._subject.settings.environment.get("PYTHONPYCACHEPREFIX", "")

    def _prefixed(self) -> Iterator[Found]:
        """Bytecode that Python keeps elsewhere (``PYTHONPYCACHEPREFIX``)."""
        waiting = [
            f"{self._prefix.rstrip('/')}{directory}" for directory in self._directories if self._prefix
        ]
        while waiting:
            path = waiting.pop()
            found = self._files.at(path)
            if found is not None and found.is_directory:
                waiting += [f"{path}/{name}" for name in self._files.listdir(path)]
            elif found is not None and path.endswith(".pyc"):
                yield found


def subject_manifest(subject: Subject) -> Manifest:
    """The manifest in a subject.

    Raises:
        ImageMismatch: the subject was not made by overlay, or the manifest is missing or cannot be read.
    """
    read_record(subject.labels, subject.name)
    data = subject.read_manifest_file()
    if data is None:
        raise ImageMismatch(
            "the applied-patch manifest is missing from the image", where=subject.name, expected=MANIFEST_PATH
        )
    manifest = read_manifest(data, where=f"{subject.name}: {MANIFEST_PATH}")
    if manifest.as_bytes() != data:
        raise ImageMismatch(
            "the applied-patch manifest is not as overlay writes it",
            where=f"{subject.name}: {MANIFEST_PATH}",
            expected=f"canonical JSON, {manifest.digest}",
            found=sha256_digest(data),
        )
    return manifest


def found_at(files: Files, path: str) -> Found | None:
    """The regular file at a path, reached through no symbolic link."""
    found = files.lookup(path)
    return found if found and found.is_file and found.path == path.lstrip("/") else None


def _check_files(
    subject: Subject, files: Files, final: Mapping[str, FileRecord | None]
) -> Iterator[Deviation]:
    there = {path: found_at(files, path) for path in final}
    data = subject.read(
        found for path, found in there.items() if found and final[path] and found.size <= MAX_SOURCE
    )
    for path, record in final.items():
        found = there[path]
        if record is None or record.post is None:
            if files.lookup(path) is not None:
                yield Deviation("removed", path, "a file that the series removes is there")
            continue
        if found is None:
            yield Deviation("file", path, "no regular file", f"blob {record.post.blob}", "nothing")
            continue
        content = data.get(found.path)
        sha256 = hashlib.sha256(content).hexdigest() if content is not None else found.sha256
        if sha256 != record.post.sha256:
            what = f"not the patched file ({subject.origin(found)})"
            yield Deviation("file", path, what, f"sha256:{record.post.sha256}", f"sha256:{sha256}")
        elif record.mode is not None and f"{found.mode:04o}" != record.mode:
            yield Deviation("mode", path, "another mode", record.mode, f"{found.mode:04o}")


def _check_bytecode(
    subject: Subject, files: Files, manifest: Manifest, final: Mapping[str, FileRecord | None]
) -> Iterator[Deviation | str]:
    """Bytecode that was emptied must not be back, and none may run in the place of a patched source."""
    emptied = set(manifest.bytecode)
    pairs: list[tuple[Found, Found]] = []
    for source, record in final.items():
        yield from _check_cache_directory(files, source)
        beside = [
            found
            for found in bytecode_of(files, source, subject.settings.environment)
            if not _is_empty(found)
        ]
        back = [found for found in beside if _is_back(subject, f"/{found.path}", emptied)]
        for found in back:
            yield Deviation(
                "bytecode", f"/{found.path}", "bytecode that the build emptied is back: it is stale"
            )
        there = found_at(files, source) if record else None
        if there is not None:  # without a source Python takes no bytecode from __pycache__
            pairs += [(found, there) for found in beside if found not in back]
    yield from classify_bytecode(subject, pairs)


def _check_cache_directory(files: Files, source: str) -> Iterator[Deviation]:
    cache = files.lookup(f"{source.rpartition('/')[0]}/__pycache__")
    if cache is not None and cache.kind is Kind.SYMLINK:
        what = "a symbolic link where Python looks for bytecode: it is not followed here"
        yield Deviation("bytecode", f"/{cache.path}", what, found=cache.link)


def _is_empty(found: Found) -> bool:
    return found.is_file and found.size == 0


def _is_back(subject: Subject, path: str, emptied: Collection[str]) -> bool:
    return path in emptied and not subject.written_since_start(path)


def classify_bytecode(subject: Subject, pairs: Sequence[tuple[Found, Found]]) -> Iterator[Deviation | str]:
    """Bytecode that Python would run in the place of its source, unless compiling the source gives just it.

    Args:
        subject: where it is.
        pairs: each bytecode file with the source that it stands for.
    """
    small = [found for pair in pairs for found in pair if found.is_file and found.size <= MAX_SOURCE]
    data = subject.read(small)
    running: list[tuple[Found, Standing]] = []
    asked: list[Compiled] = []
    for found, source in pairs:
        ours, theirs = data.get(source.path), data.get(found.path)
        standing = Standing.UNCHECKED
        if ours is not None and theirs is not None:
            standing = standing_of(theirs, ours, source.mtime)
        if standing is not Standing.IGNORED:
            name = found.path.rpartition("/")[2]
            running.append((found, standing))
            asked.append(Compiled(f"/{source.path}", ours or b"", name, theirs or b""))
    lost: list[str] = []
    for (found, standing), is_right in zip(running, is_recompiled(asked), strict=True):
        own = is_right is None and subject.written_since_start(f"/{found.path}")
        if own:
            lost.append(found.path)
        elif not is_right:
            what = "Python may run this bytecode in the place of its source, and nothing shows that it "
            what += "was compiled from it" if is_right is None else "was: compiling it gives another"
            yield Deviation("bytecode", f"/{found.path}", what, found=f"{standing} ({subject.origin(found)})")
    if lost:
        tags = ", ".join(sorted({path.rpartition("/")[2].split(".")[-2] for path in lost}))
        yield (
            f"{counted(len(lost), 'bytecode file')} that the container wrote could not be recompiled: "
            f"this machine has no Python that writes the same ({tags})"
        )


def _check_shadows(files: Files, final: Mapping[str, FileRecord | None]) -> Iterator[Deviation]:
    for path, record in final.items():
        for shadow in shadows_of(files, path) if record else ():
            yield Deviation("shadow", path, "Python imports something else instead", found=shadow)


def _check_words(subject: Subject, manifest: Manifest) -> Iterator[Deviation]:
    """Labels and annotations must say what the manifest says."""
    labels, annotations = subject.labels, subject.annotations or {}
    for key, expected in expected_labels(manifest).items():
        if labels.get(key) != expected:
            yield Deviation(
                "label", key, "not what the manifest says", expected, labels.get(key, "no such label")
            )
        # A Docker Engine pushes no annotations; where there is one, it must be right.
        if annotations.get(key, expected) != expected:
            yield Deviation("annotation", key, "not what the manifest says", expected, annotations[key])


def _check_patchset(manifest: Manifest) -> Iterator[Deviation]:
    expected = patchset_digest((patch.name, patch.sha256) for patch in manifest.patches)
    if manifest.patchset != expected:
        what = "not the digest of the patches that the manifest names"
        yield Deviation("manifest", "patchset", what, expected, manifest.patchset)


def _check_base(subject: Subject, manifest: Manifest, base: LayeredImage) -> Iterator[Deviation]:
    found = subject.diff_ids
    for number, expected in enumerate(base.diff_ids):
        there = found[number] if number < len(found) else "no layer"
        if there != expected:
            where = f"layer {number + 1} of {len(found)}"
            what = f"not the base's ({manifest.base.ref}@{manifest.base.digest[:19]}…)"
            yield Deviation("base", where, what, f"diff ID {expected}", there)
            return  # those above differ too, or tell nothing more


def _layer_notes(subject: Subject, base: LayeredImage) -> Iterator[str]:
    more = len(subject.diff_ids) - len(base.diff_ids)
    if more > 1:
        yield f"{more} layers lie over the base; the embedded engine adds one"
    digests = subject.layer_digests
    if digests is not None and digests[: len(base.diff_ids)] != base.layer_digests:
        yield "the base's layers were compressed anew on their way here: compared by diff ID"


# --- against what else is known ---------------------------------------------------------------------------


REPACKED = "same image ID, repacked"


def against_lock(subject: Subject, manifest: Manifest, lock: Lock) -> Iterator[Deviation | str]:
    """What a lock says of the image that was built, and of its base's pre-images."""
    platform = manifest.base.platform
    image = lock.images.get(platform)
    if image is None:
        yield Deviation("lock", f"images: {platform}", "the lock knows no image for this platform")
        return
    actual = {"base": manifest.base.digest, "patchset": manifest.patchset, "manifest": manifest.digest}
    if subject.digest is not None:
        actual["digest"] = subject.digest
    for key, found in actual.items():
        if key in image and image[key] != found:
            if key == "digest" and subject.image_id is not None and image.get("config") == subject.image_id:
                yield f"{REPACKED}: its manifest is {found}, and not {image[key]} as in the lock"
                continue
            where = f"images: {platform}: {key}"
            yield Deviation("lock", where, "not what the lock says", str(image[key]), found)
    base = lock.bases.get(manifest.base.digest)
    if base is None:
        yield Deviation("lock", "bases", "the lock has verified no such base", None, manifest.base.digest)
        return
    yield from _pre_images(manifest, base.get("files") or {})


def _pre_images(manifest: Manifest, files: Mapping[str, Any]) -> Iterator[Deviation]:
    seen: set[str] = set()
    for file in (file for patch in manifest.patches for file in patch.files):
        if file.path in seen or file.kind in ("rename", "copy"):
            continue
        seen.add(file.path)
        locked = files.get(file.path)
        blob = locked.get("blob") if isinstance(locked, dict) else "not in the lock"
        pre = file.pre.blob if file.pre else None
        if blob != pre:
            where = f"bases: {file.path}"
            yield Deviation("lock", where, "another pre-image", f"blob {blob}", f"blob {pre}")


def against_series(manifest: Manifest, series: Series) -> list[str]:
    """What today's series has that an image has not, and the reverse; an older image is not a deviation."""
    today = {patch.name: patch.sha256 for patch in series.patches}
    there = {patch.name: patch.sha256 for patch in manifest.patches}
    lines = [f"lacks {name}, which the series has now" for name in today if name not in there]
    lines += [
        f"has {name} in another version than the series"
        for name in today
        if there.get(name, today[name]) != today[name]
    ]
    lines += [f"has {name}, which the series has no more" for name in there if name not in today]
    return lines


def deviation_error(verified: Verified) -> ImageMismatch:
    """The error for a subject that is not what it should be; it names every deviation."""
    deviations = verified.deviations
    first = deviations[0]
    return ImageMismatch(
        one_line(f"{first.where}: {first.what}") if len(deviations) == 1 else f"{len(deviations)} deviations",
        where=verified.subject,
        expected=one_line(first.expected) if first.expected and len(deviations) == 1 else None,
        found=one_line(first.found) if first.found and len(deviations) == 1 else None,
        details="\n".join(map(str, deviations)) if len(deviations) > 1 else None,
        hint="nothing else deviates: whoever built it can sign it "
        f"(overlay attest {verified.subject} --sign-key FILE)"
        if {deviation.kind for deviation in deviations} == {"signature"}
        else "do not serve from it: build it again from the lock, or find out who changed it",
        facts=verified.as_json(),
    )


def differences(first: Verified, second: Verified, ranks: RankSettings = _NO_RANK) -> Iterator[Deviation]:
    """What differs between two images or containers: base, source, patches, files, and how they start.

    Args:
        first, second: what was found out of each; both are otherwise held against their own bases.
        ranks: what each rank has of its own.
    """
    names = (first.subject, second.subject)
    yield from _different_manifests(names, (first.manifest, second.manifest))
    ours, theirs = first.settings, second.settings
    if first.is_container and not second.is_container:  # what a rank is started with, no image says
        ours = ranks.without(ours, theirs)
    elif second.is_container and not first.is_container:
        theirs = ranks.without(theirs, ours)
    yield from differing(names, (ours, theirs), ranks)


def _different_manifests(names: Sequence[str], manifests: Sequence[Manifest]) -> Iterator[Deviation]:
    first, second = (_facts(manifest) for manifest in manifests)
    for key in sorted(first.keys() | second.keys()):
        a, b = first.get(key, "nothing"), second.get(key, "nothing")
        if a != b:
            kind, _, where = key.partition(" ")
            yield Deviation(kind, where or kind, "differs", f"{a} ({names[0]})", f"{b} ({names[1]})")


def _facts(manifest: Manifest) -> dict[str, str]:
    facts = {
        "overlay name": manifest.overlay.name,
        "overlay version": manifest.overlay.version,
        "base digest": manifest.base.digest,
        "base platform": manifest.base.platform,
        "upstream release": manifest.upstream.release,
        "upstream commit": manifest.upstream.commit or "none",
    }
    facts |= {f"patch {patch.name}": patch.sha256 for patch in manifest.patches}
    facts["patch order"] = " ".join(patch.name for patch in manifest.patches)
    for path, record in final_files(manifest).items():
        facts[f"file {path}"] = record.post.sha256 if record and record.post else "removed"
    return facts
