"""Is what runs what was built: every post-image recomputed, nothing above it, nothing beside it.

Nothing that the image says is believed: the manifest in it is held against the bytes, the labels, the base,
and, where they are given, the lock and a key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from builder.base.python_path import bytecode_of, shadows_of
from builder.errors import ImageMismatch
from builder.oci.model import sha256_digest
from builder.oci.rootfs import Files, Found
from builder.oci.tarwalk import Kind
from builder.patch.series import Series, patchset_digest
from builder.project.lock import Lock
from builder.record.manifest import MANIFEST_PATH, FileRecord, Manifest, read_manifest
from builder.verify.bytecode import Standing, standing_of
from builder.verify.layered import Subject
from builder.verify.read_record import expected_labels, read_record

MAX_SOURCE = 4 << 20  # bytes of a patched file or of its bytecode


@dataclass(frozen=True)
class Deviation:
    """One thing that is not as it should be.

    Args:
        kind: ``file``, ``mode``, ``removed``, ``bytecode``, ``shadow``, ``undeclared``, ``manifest``,
            ``label``, ``annotation``, ``base``, ``lock`` or ``signature``.
        where: the file, label or layer.
        what: what is wrong with it.
    """

    kind: str
    where: str
    what: str
    expected: str | None = None
    found: str | None = None

    def __str__(self) -> str:
        values = f": expected {self.expected}, found {self.found}" if self.expected else ""
        values = values or (f": {self.found}" if self.found else "")
        return _one_line(f"{self.where}: {self.what}{values}")


@dataclass(frozen=True)
class Verified:
    """What was found out of a subject.

    Args:
        subject: its name.
        manifest: the applied-patch manifest in it.
        deviations: what is not as it should be.
        notes: what was not or could not be checked, and what a person should know.
        files: how many files were recomputed.
    """

    subject: str
    manifest: Manifest
    deviations: tuple[Deviation, ...]
    notes: tuple[str, ...]
    files: int

    def with_deviations(self, more: Iterable[Deviation]) -> Verified:
        """The same with what was found elsewhere."""
        return replace(self, deviations=(*self.deviations, *more))

    def as_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "overlay": self.manifest.overlay.model_dump(),
            "base": self.manifest.base.model_dump(),
            "patchset": self.manifest.patchset,
            "files": self.files,
            "deviations": [asdict(deviation) for deviation in self.deviations],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class BaseLayers:
    """The layers of the base that a manifest names: diff IDs and blob digests, lowest first."""

    diff_ids: tuple[str, ...]
    digests: tuple[str, ...]


def verify(subject: Subject, base: BaseLayers | None) -> Verified:
    """Hold a subject against its own manifest, and its base's layers against the base.

    Args:
        subject: an image or a container.
        base: the layers of the base that the manifest names; None where nobody could be asked.

    Raises:
        ImageMismatch: it was not made by overlay, or its manifest is missing or cannot be read.
    """
    manifest = subject_manifest(subject)
    final = final_files(manifest)
    directories = [root.image_path for root in manifest.roots]
    files = subject.open_files(directories)
    deviations = [*_check_files(subject, files, final), *_check_bytecode(subject, files, manifest, final)]
    deviations += _check_shadows(files, final)
    deviations += _check_roots(subject, manifest)
    deviations += _check_words(subject, manifest)
    deviations += _check_patchset(manifest)
    notes: list[str] = []
    if base is None:
        notes.append("the base's layers were not compared: name the base with --base")
    else:
        deviations += _check_base(subject, manifest, base)
        notes += _layer_notes(subject, base)
        declared = frozenset(path.lstrip("/") for path in [*final, *manifest.bytecode, MANIFEST_PATH])
        deviations += [
            Deviation("undeclared", f"/{path}", "the overlay's layer has it, the manifest does not name it")
            for path in subject.undeclared(declared, len(base.diff_ids))
        ]
    return Verified(subject.name, manifest, tuple(deviations), tuple(notes), len(final))


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


def final_files(manifest: Manifest) -> dict[str, FileRecord | None]:
    """Every file that the series touches as the last patch leaves it, by path in the image; None: removed."""
    final: dict[str, FileRecord | None] = {}
    for patch in manifest.patches:
        for file in patch.files:
            if file.kind == "rename" and file.old_path is not None:
                final[_image_path(manifest, file.old_path)] = None
            final[file.image_path] = None if file.post is None else file
    return final


def _image_path(manifest: Manifest, path: str) -> str:
    """Where a path of the upstream is in the image, by the manifest's roots."""
    above = [root for root in manifest.roots if path.startswith(root.path + "/")]
    root = max(above, key=lambda r: len(r.path), default=None)
    return f"/{path}" if root is None else root.image_path + path[len(root.path) :]


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
) -> Iterator[Deviation]:
    """Bytecode that was emptied must not be back, and none may run in the place of a patched source."""
    emptied = set(manifest.bytecode)
    for source, record in final.items():
        yield from _check_cache_directory(files, source)
        beside = [found for found in bytecode_of(files, source, subject.environment) if not _is_empty(found)]
        back = [found for found in beside if _is_back(subject, f"/{found.path}", emptied)]
        for found in back:
            yield Deviation(
                "bytecode", f"/{found.path}", "bytecode that the build emptied is back: it is stale"
            )
        there = found_at(files, source) if record else None
        if there is not None:  # without a source Python takes no bytecode from __pycache__
            yield from _check_running(subject, there, [found for found in beside if found not in back])


def _check_cache_directory(files: Files, source: str) -> Iterator[Deviation]:
    cache = files.lookup(f"{source.rpartition('/')[0]}/__pycache__")
    if cache is not None and cache.kind is Kind.SYMLINK:
        what = "a symbolic link where Python looks for bytecode: it is not followed here"
        yield Deviation("bytecode", f"/{cache.path}", what, found=cache.link)


def _is_empty(found: Found) -> bool:
    return found.is_file and found.size == 0


def _is_back(subject: Subject, path: str, emptied: Collection[str]) -> bool:
    return path in emptied and not subject.written_since_start(path)


def _check_running(subject: Subject, source: Found, beside: Sequence[Found]) -> Iterator[Deviation]:
    """Bytecode that Python would run in the place of a source, unless a container's Python made it itself."""
    if not beside:
        return
    small = [found for found in (source, *beside) if found.is_file and found.size <= MAX_SOURCE]
    data = subject.read(small)
    for found in beside:
        standing = Standing.UNCHECKED
        if found.path in data and source.path in data:
            standing = standing_of(data[found.path], data[source.path], source.mtime)
        own = subject.written_since_start(f"/{found.path}")
        if standing is Standing.IGNORED or (standing is Standing.TRUSTED and own):
            continue
        what = "Python may run this bytecode in the place of the patched source, and nothing shows that it "
        what += "was compiled from it"
        yield Deviation("bytecode", f"/{found.path}", what, found=f"{standing} ({subject.origin(found)})")


def _check_shadows(files: Files, final: Mapping[str, FileRecord | None]) -> Iterator[Deviation]:
    for path, record in final.items():
        for shadow in shadows_of(files, path) if record else ():
            yield Deviation("shadow", path, "Python imports something else instead", found=shadow)


def _check_roots(subject: Subject, manifest: Manifest) -> Iterator[Deviation]:
    for root in manifest.roots:
        package = root.path.rpartition("/")[2]
        imported = subject.imported_from(package)
        if imported not in (None, root.image_path):
            what = f"Python imports {package} from another place than the patched one"
            yield Deviation("shadow", root.image_path, what, root.image_path, imported)


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


def _check_base(subject: Subject, manifest: Manifest, base: BaseLayers) -> Iterator[Deviation]:
    found = subject.diff_ids
    for number, expected in enumerate(base.diff_ids):
        there = found[number] if number < len(found) else "no layer"
        if there != expected:
            where = f"layer {number + 1} of {len(found)}"
            what = f"not the base's ({manifest.base.ref}@{manifest.base.digest[:19]}…)"
            yield Deviation("base", where, what, f"diff ID {expected}", there)
            return  # those above differ too, or tell nothing more


def _layer_notes(subject: Subject, base: BaseLayers) -> Iterator[str]:
    more = len(subject.diff_ids) - len(base.diff_ids)
    if more > 1:
        yield f"{more} layers lie over the base; the embedded engine adds one"
    digests = subject.layer_digests
    if digests is not None and digests[: len(base.digests)] != base.digests:
        yield "the base's layers were compressed anew on their way here: compared by diff ID"


# --- against what else is known ---------------------------------------------------------------------------


def against_lock(subject: Subject, manifest: Manifest, lock: Lock) -> Iterator[Deviation]:
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


def _one_line(text: str) -> str:
    """What an image says must not look like a line of ours."""
    return text.replace("\n", "\\n").replace("\r", "\\r")


def against_series(manifest: Manifest, series: Series) -> list[str]:
    """What today's series has that an image has not, and the reverse; an older image is no deviation."""
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
        _one_line(f"{first.where}: {first.what}")
        if len(deviations) == 1
        else f"{len(deviations)} deviations",
        where=verified.subject,
        expected=_one_line(first.expected) if first.expected and len(deviations) == 1 else None,
        found=_one_line(first.found) if first.found and len(deviations) == 1 else None,
        details="\n".join(map(str, deviations)) if len(deviations) > 1 else None,
        hint="nothing else deviates: whoever built it can sign it (overlay attest REF --sign-key FILE)"
        if {deviation.kind for deviation in deviations} == {"signature"}
        else "do not serve from it: build it again from the lock, or find out who changed it",
        facts=verified.as_json(),
    )


def differences(names: Sequence[str], manifests: Sequence[Manifest]) -> Iterable[Deviation]:
    """What differs between two images: base, source, patches, files."""
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
