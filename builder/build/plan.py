"""From a patched tree to an image: the Dockerfile, the one layer, the manifest, the labels.

Nothing here reads or writes anything but values; :mod:`builder.build.pipeline` brings them and stores the
result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

from builder import __version__
from builder.base.claims import contradictions
from builder.base.image import Base, BaseFiles, DirectoryFact
from builder.build.declared import declare
from builder.build.dockerfile import Recipe, parse_dockerfile
from builder.build.template import render_template
from builder.errors import InvalidInput
from builder.oci.append import append, as_oci, labels_of, timestamp
from builder.oci.layer import (
    Layer,
    LayerDirectory,
    LayerEntry,
    LayerFile,
    Whiteout,
    build_layer,
    layer_media_type,
    parent_directories,
)
from builder.oci.model import Format, NewImage, RawManifest, canonical_json, format_input, sha256_digest
from builder.oci.settings import Settings, said_over, settings_of
from builder.patch.apply import AppliedSeries
from builder.project.requirements import Requirement, facts_of
from builder.project.spec import Spec
from builder.record.manifest import (
    MANIFEST_PATH,
    MANIFEST_SCHEMA,
    BaseRecord,
    EntrypointRecord,
    Manifest,
    OverlayRecord,
    RequirementRecord,
    RootRecord,
    UpstreamRecord,
    as_text,
    patch_record,
    skipped_record,
)
from builder.source.files import SourceFile

LABEL = "dev.sglang-overlay"
INPUTS_LABEL = f"{LABEL}.inputs"
OCI = "org.opencontainers.image"
RECORD_LABELS = frozenset(
    [f"{OCI}.{key}" for key in ("base.name", "base.digest", "source", "version", "created", "revision")]
    + [f"{LABEL}.{key}" for key in ("name", "patches", "patchset", "manifest", "hardware", "requires")]
    + [f"{LABEL}.notes", f"{LABEL}.arguments", INPUTS_LABEL]
)


@dataclass(frozen=True)
class BakedFile:
    """A file that goes into the image: its place in the build context and in the image."""

    context: str
    image_path: str
    data: bytes = field(repr=False)
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True)
class Plan:
    """Everything that will be in an image beyond its base.

    Args:
        base, facts: the base and what is known of it.
        manifest: the applied-patch manifest.
        files: what is copied in, sorted by path.
        removed: paths of the base that the series deletes.
        dockerfile: the rendered recipe.
        labels: of its record.
        created: seconds since 1970.
        format: which media types the image gets.
    """

    base: Base
    facts: BaseFiles
    manifest: Manifest
    files: tuple[BakedFile, ...]
    removed: tuple[str, ...]
    dockerfile: str
    labels: Mapping[str, str]
    created: int
    format: Format = "base"

    @property
    def below(self) -> RawManifest:
        """The base's manifest in the media types that the image gets."""
        return _in_format(self.base.manifest, self.format)


def make_plan(
    spec: Spec,
    applied: AppliedSeries,
    base: Base,
    facts: BaseFiles,
    *,
    template: Path,
    probes: Mapping[str, str],
    requirements: Sequence[Requirement],
    settings: Settings,
    created: int,
    format: Format = "base",
) -> Plan:
    """Plan an image.

    Args:
        spec: the overlay.
        applied: its series, applied.
        base, facts: the base; its pre-images were checked.
        template: ``Dockerfile.in``.
        probes: what each patch's probe said, by patch.
        requirements: what is demanded of the base; it was checked.
        settings: what containers of the image will have, as :func:`expected_settings` says; the facts were
            found for them.
        created: the time of everything new, in seconds since 1970.
        format: which media types the image gets.

    Raises:
        InvalidInput: the template cannot be rendered, or sets something else now than for a draft.
    """
    files = _post_images(applied, facts)
    modes = {path: f"{file.mode:04o}" for path, file in files.items()}
    image_paths = {path: "/" + fact.image_path for path, fact in facts.files.items()}
    manifest = _manifest(
        spec, applied, base, facts, probes, requirements, image_paths, modes, settings, format
    )
    record = _context_file(MANIFEST_PATH.lstrip("/"), manifest.as_bytes(), 0o644, 0, 0)
    empty = [_context_file(path, b"", fact.mode, fact.uid, fact.gid) for path, fact in facts.bytecode.items()]
    baked = tuple(sorted([*files.values(), *empty, record], key=lambda file: file.image_path))
    labels = _labels(spec, applied, base, manifest, template, created, format)
    dockerfile = render_template(template, _values(spec, applied, base, _copies(baked), labels))
    _check_settings(declare(dockerfile, settings_of(base.config)), settings, labels)
    removed = tuple(
        sorted(
            facts.files[path].image_path
            for path, source in applied.after.items()
            if source is None and applied.before[path] is not None
        )
    )
    return Plan(base, facts, manifest, baked, removed, dockerfile, labels, created, format)


def expected_settings(spec: Spec, applied: AppliedSeries, base: Base, template: Path) -> Settings:
    """What containers of the image will have, but for the labels of its record: the base's, and the recipe's.

    The template is rendered for that with a draft of what is not known before the base was looked into.

    Raises:
        InvalidInput: the template cannot be rendered.
    """
    copies = [{"directory": "/", "uid": 0, "gid": 0, "sources": ["files/draft"]}]
    labels = dict.fromkeys(RECORD_LABELS, "")
    dockerfile = render_template(template, _values(spec, applied, base, copies, labels))
    return _without(declare(dockerfile, settings_of(base.config)), labels)


def _values(
    spec: Spec,
    applied: AppliedSeries,
    base: Base,
    copies: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """What a template may use."""
    return {
        "overlay": {"name": spec.name, "version": spec.version, "summary": spec.summary},
        "base": {
            "reference": base.reference,
            "name": base.name,
            "digest": base.manifest.digest,
            "platform": str(base.platform),
        },
        "upstream": spec.upstream.model_dump(mode="json", include={"repository", "release", "commit"}),
        "patches": [
            {"name": patch.name, "subject": as_text(patch.subject)} for patch in applied.series.patches
        ],
        "copies": copies,
        "environment": dict(spec.environment),
        "labels": labels,
    }


def _without(settings: Settings, labels: Collection[str]) -> Settings:
    kept = {
        key: text for key, text in settings.labels.items() if key not in labels and key not in RECORD_LABELS
    }
    return replace(settings, labels=kept)


def _check_settings(found: Settings, expected: Settings, labels: Collection[str]) -> None:
    if (actual := _without(found, labels)) != expected:
        names = [
            one.name for one in fields(Settings) if getattr(actual, one.name) != getattr(expected, one.name)
        ]
        raise InvalidInput(
            "the template sets something else for other files or labels",
            where="Dockerfile",
            found=", ".join(names),
            hint="environment, entry point and the like may follow from the overlay and the base alone",
        )


def bake(plan: Plan) -> tuple[NewImage, Layer]:
    """Bake a plan with the embedded engine: follow its Dockerfile, make one layer, append it to the base.

    Raises:
        InvalidInput: the Dockerfile asks for what only a Docker Engine can do.
        ImageMismatch: the base contradicts itself or has no room for a layer.
    """
    recipe = parse_dockerfile(plan.dockerfile)
    if recipe.base != plan.base.reference:
        raise InvalidInput(
            "Dockerfile is not FROM the pinned base",
            where="Dockerfile",
            expected=plan.base.reference,
            found=recipe.base,
        )
    entries = _copied(recipe, plan)
    entries += [Whiteout(path) for path in plan.removed]
    entries += _parents(entries, plan.facts.directories)
    layer = build_layer(entries, mtime=plan.created, media_type=layer_media_type(plan.below.media_type))
    overlay = plan.manifest.overlay
    image = append(
        plan.below,
        plan.base.config,
        layer,
        created=plan.created,
        created_by=f"overlay build {overlay.name} {overlay.version}",
        labels=recipe.labels,
        env=recipe.environment,
        annotations=plan.labels,
    )
    return image, layer


def tag_values(spec: Spec, patchset: str) -> dict[str, str]:
    """What a tag template is filled in with (see :func:`builder.publish.push.tag_of`).

    Args:
        spec: the overlay.
        patchset: digest of its series.
    """
    return {
        "release": spec.upstream.release,
        "name": spec.name,
        "version": spec.version,
        "patchset": patchset.removeprefix("sha256:")[:12],
    }


def engine_name(spec: Spec) -> str:
    """What an overlay's images are called in a Docker Engine: as the base's repository, without its owner."""
    return spec.base.image.rpartition("/")[2].partition(":")[0]


def base_name_label(manifest: Manifest) -> dict[str, str]:
    """The base's full name by digest, as ``crane rebase`` and others read it; a layout has none to give."""
    base = manifest.base
    return {f"{OCI}.base.name": f"{base.ref}@{base.digest}"} if "/" in base.ref else {}


def required_label(manifest: Manifest) -> str:
    """What was demanded of the base, as a label says it: ``cuda>=13.0 tilelang<0.1.13,>=0.1.10``."""
    return " ".join(dict.fromkeys(f"{one.name}{one.specifier}" for one in manifest.requires))


def notes_label(manifest: Manifest) -> str:
    """Where the base's own word is not the pin's, as a label holds it: a JSON list."""
    return json.dumps(manifest.base.notes, separators=(",", ":"))


def _in_format(manifest: RawManifest, format: Format) -> RawManifest:
    return as_oci(manifest) if format == "oci" else manifest


def inputs_digest(
    spec: Spec, patchset: str, base_digest: str, template: Path, format: Format = "base"
) -> str:
    """One digest of everything an image is made from: spec, series, template, base, and the tool's schema.

    Args:
        spec: the overlay.
        patchset: digest of its series.
        base_digest: of the platform's base.
        template: ``Dockerfile.in``.
        format: which media types are asked for, whatever the base's are.
    """
    said = spec.model_dump(mode="json", by_alias=True, exclude={"base": {"index", "platforms"}})
    value = {
        "schema": MANIFEST_SCHEMA,
        "tool": __version__,
        "spec": said,
        "patchset": patchset,
        "base": base_digest,
        "template": hashlib.sha256(template.read_bytes()).hexdigest(),
        **format_input(format),
    }
    return sha256_digest(canonical_json(value))


def _post_images(applied: AppliedSeries, facts: BaseFiles) -> dict[str, BakedFile]:
    """Every file the series leaves changed, with the base's mode and owner, by upstream path."""
    files = {}
    for path, after in applied.after.items():
        if after is None or after == applied.before[path]:
            continue
        fact = facts.files[path]
        mode = _mode(fact.mode, applied.before[path], after)
        files[path] = _context_file(fact.image_path, after.data, mode, fact.uid, fact.gid)
    return files


def _mode(base_mode: int, before: SourceFile | None, after: SourceFile) -> int:
    """The base file's bits; a patch that changes the mode sets or clears the executable ones."""
    if before is None:
        return 0o755 if after.mode == "100755" else 0o644
    if before.mode == after.mode:
        return base_mode
    return base_mode | 0o111 if after.mode == "100755" else base_mode & ~0o111


def _context_file(image_path: str, data: bytes, mode: int, uid: int, gid: int) -> BakedFile:
    return BakedFile(f"files/{image_path}", image_path, data, mode, uid, gid)


def _copies(files: Sequence[BakedFile]) -> list[dict[str, Any]]:
    """One COPY a directory and owner: an explicit file list leaves the directories' own modes alone."""
    groups: dict[tuple[str, int, int], list[str]] = {}
    for file in files:
        directory = "/" + str(PurePosixPath(file.image_path).parent) + "/"
        groups.setdefault((directory, file.uid, file.gid), []).append(file.context)
    return [
        {"directory": directory, "uid": uid, "gid": gid, "sources": sources}
        for (directory, uid, gid), sources in groups.items()
    ]


def _copied(recipe: Recipe, plan: Plan) -> list[LayerEntry]:
    """What the Dockerfile's COPY lines bring from the context, at their modes."""
    context = {file.context: file for file in plan.files}
    entries: dict[str, LayerEntry] = {}
    for copy in recipe.copies:
        for source in copy.sources:
            if source not in context:
                raise InvalidInput(
                    "Dockerfile copies what is not in the build context",
                    where=f"Dockerfile, line {copy.line}",
                    found=source,
                    hint="the context holds the patched files and the manifest; see --dry-run",
                )
            file = context[source]
            path = copy.destination.lstrip("/")
            if path.endswith("/") or not path:
                path += PurePosixPath(source).name
            entries[path] = LayerFile(path, file.data, file.mode, copy.uid, copy.gid)
    missing = [file.image_path for file in plan.files if file.image_path not in entries]
    if missing:
        raise InvalidInput(
            "Dockerfile does not copy every patched file to its place",
            where="Dockerfile",
            expected="COPY of each file",
            found=f"none of /{missing[0]}",
            hint="the template must loop over copies, as the one that is shipped does",
        )
    return list(entries.values())


def _parents(entries: Sequence[LayerEntry], known: Mapping[str, DirectoryFact]) -> list[LayerEntry]:
    """The directories above, as the base has them; new ones are root's."""
    parents: list[LayerEntry] = []
    for path in parent_directories(entry.path for entry in entries):
        fact = known.get(path)
        parents.append(
            LayerDirectory(path)
            if fact is None
            else LayerDirectory(path, fact.mode, fact.uid, fact.gid, fact.mtime)
        )
    return parents


def _manifest(
    spec: Spec,
    applied: AppliedSeries,
    base: Base,
    facts: BaseFiles,
    probes: Mapping[str, str],
    requirements: Sequence[Requirement],
    image_paths: dict[str, str],
    modes: dict[str, str],
    settings: Settings,
    format: Format,
) -> Manifest:
    for report in applied.reports:
        for change in report.files:
            # A file that a later patch deletes has no mode in the image; its own step still had one.
            modes.setdefault(change.path, "0644")
    return Manifest(
        tool=f"sglang-overlay {__version__}",
        overlay=OverlayRecord(name=spec.name, version=spec.version, summary=spec.summary),
        base=BaseRecord(
            ref=base.name,
            index=base.index,
            digest=base.manifest.digest,
            platform=str(base.platform),
            notes=contradictions(labels_of(base.config), facts.roots, spec.upstream),
            media_type=None
            if _in_format(base.manifest, format) == base.manifest
            else base.manifest.media_type,
        ),
        upstream=UpstreamRecord(
            repository=spec.upstream.repository,
            release=spec.upstream.release,
            commit=spec.upstream.commit,
            tree=applied.tree,
        ),
        patched_tree=applied.patched_tree,
        patchset=applied.series.digest,
        roots=tuple(
            RootRecord(
                path=r.path, image_path="/" + r.image_path, distribution=r.distribution, version=r.version
            )
            for r in facts.roots
        ),
        hardware=spec.hardware,
        requires=tuple(
            RequirementRecord(**facts_of(one, facts.installed) | {"found": str(facts.installed[one.name])})
            for one in requirements
        ),
        patches=tuple(
            patch_record(
                report,
                applied.patch_ids[report.patch.name],
                probes[report.patch.name],
                image_paths,
                modes,
            )
            for report in applied.reports
        ),
        bytecode=tuple("/" + path for path in sorted(facts.bytecode)),
        skipped=tuple(map(skipped_record, applied.series.skipped)),
        environment=_over(settings.environment, settings_of(base.config).environment),
        entrypoint=EntrypointRecord(
            entrypoint=settings.entrypoint,
            command=settings.command,
            user=settings.user,
            working_dir=settings.working_dir,
            python=facts.interpreter,
            searched=facts.searched,
            declared=_declared(settings, settings_of(base.config)),
        ),
    )


def _over(said: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """What is said over or instead of the base's."""
    return {name: value for name, value in sorted(said.items()) if base.get(name) != value}


def _declared(settings: Settings, base: Settings) -> dict[str, Any]:
    """Settings beside environment and start that the template makes others than the base's."""
    labels = {key: text for key, text in base.labels.items() if key not in RECORD_LABELS}
    return said_over(settings, replace(base, labels=labels))


def _labels(
    spec: Spec,
    applied: AppliedSeries,
    base: Base,
    manifest: Manifest,
    template: Path,
    created: int,
    format: Format,
) -> dict[str, str]:
    """Labels of the config, and annotations of the manifest where its family has them."""
    labels = {
        **base_name_label(manifest),
        f"{OCI}.base.digest": base.manifest.digest,
        f"{OCI}.source": spec.upstream.repository,
        f"{OCI}.version": f"{spec.upstream.release}-{spec.name}-{spec.version}",
        f"{OCI}.created": timestamp(created),
        f"{LABEL}.name": spec.name,
        f"{LABEL}.patches": " ".join(applied.series.names),
        f"{LABEL}.patchset": applied.series.digest,
        f"{LABEL}.manifest": manifest.digest,
        INPUTS_LABEL: inputs_digest(spec, applied.series.digest, base.manifest.digest, template, format),
    }
    if spec.upstream.commit:
        labels[f"{OCI}.revision"] = spec.upstream.commit
    if spec.hardware:
        labels[f"{LABEL}.hardware"] = " ".join(spec.hardware)
    if manifest.requires:
        labels[f"{LABEL}.requires"] = required_label(manifest)
    if manifest.base.notes:
        labels[f"{LABEL}.notes"] = notes_label(manifest)
    if spec.arguments:
        labels[f"{LABEL}.arguments"] = json.dumps(spec.arguments, sort_keys=True, separators=(",", ":"))
    return dict(sorted(labels.items()))
