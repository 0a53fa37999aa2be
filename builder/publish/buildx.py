"""A bake file for ``docker buildx bake``, with a self-contained build context for each target.

A team that already has a BuildKit (remote, or in Kubernetes) lets it do the work: the contexts need nothing
of this tool, of the sources or of the network but the base. What BuildKit makes has the same files, labels
and environment as the embedded engine's image, and another digest, since it writes other metadata.

The file follows the Bake file reference of buildx, whose JSON is read as HCL: ``${`` in a string would begin
a template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build.plan import Plan
from builder.errors import InvalidInput
from builder.oci.model import OCI_MANIFEST, Platform
from builder.project.whole_file import write_whole
from builder.publish.docker_engine.bake import check_bakeable, write_context
from builder.temporary import sweep_directories, temporary_directory

BAKE_FILE = "docker-bake.json"


@dataclass(frozen=True)
class Target:
    """One image to bake.

    Args:
        overlay: its name.
        plan: what goes in.
        tag: what the overlay's image is called; the platform is added for this one.
    """

    overlay: str
    plan: Plan
    tag: str

    @property
    def platform(self) -> Platform:
        return self.plan.base.platform

    @property
    def name(self) -> str:
        """The target's name, of the characters that buildx allows."""
        return f"{self.overlay}_{_dashed(self.platform)}".replace(".", "-")

    @property
    def context(self) -> str:
        """The context's directory beside the bake file."""
        return f"contexts/{self.overlay}/{_dashed(self.platform)}"

    @property
    def image_tag(self) -> str:
        return f"{self.tag}-{_dashed(self.platform)}"


def bake_document(targets: Sequence[Target], repository: str | None) -> dict[str, object]:
    """The bake file's JSON.

    Args:
        targets: of one or several overlays.
        repository: where the images are pushed; None leaves the names to ``--set``.
    """
    overlays: dict[str, list[str]] = {}
    for target in targets:
        overlays.setdefault(target.overlay.replace(".", "-"), []).append(target.name)
    return {
        "group": {"default": {"targets": [target.name for target in targets]}}
        | {overlay: {"targets": names} for overlay, names in overlays.items()},
        "target": {target.name: _target(target, repository) for target in targets},
    }


def write_bake_file(targets: Sequence[Target], repository: str | None, directory: Path) -> Path:
    """Write the bake file and all contexts; all of it, or nothing.

    Args:
        targets, repository: as for :func:`bake_document`.
        directory: a new or empty one.

    Raises:
        InvalidInput: the directory holds something.
        UsageError: a target cannot be baked by a Dockerfile without RUN, or its base is in a layout.
    """
    sweep_directories(directory.parent)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidInput(
            "the directory for the bake file is not empty", where=str(directory), hint="name a new one"
        )
    for target in targets:
        check_bakeable(target.plan)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory("bake", directory.parent) as temporary:
        made = temporary / "bake"
        made.mkdir(mode=0o755)
        for target in targets:
            context = made / target.context
            context.parent.mkdir(parents=True, exist_ok=True)
            write_context(target.plan, context)
        text = json.dumps(bake_document(targets, repository), indent=2, ensure_ascii=False) + "\n"
        write_whole(made / BAKE_FILE, text.encode())
        made.rename(directory)  # replaces an empty directory
    return directory / BAKE_FILE


def _target(target: Target, repository: str | None) -> Mapping[str, object]:
    plan = target.plan
    value: dict[str, object] = {
        # Relative to where buildx runs, and not to the bake file.
        "context": target.context,
        "dockerfile": "Dockerfile",
        "platforms": [str(target.platform)],
        # BuildKit takes the image's times from it.
        "args": {"SOURCE_DATE_EPOCH": str(plan.created)},
        # A provenance would turn each image into an index, and hold the time of the build.
        "attest": ["type=provenance,disabled=true"],
    }
    if plan.base.manifest.media_type == OCI_MANIFEST:
        value["annotations"] = [_literal(f"manifest:{key}={text}") for key, text in plan.labels.items()]
    if repository is not None:
        value["tags"] = [f"{repository}:{target.image_tag}"]
    return value


def _literal(text: str) -> str:
    """Text in which HCL finds no template."""
    return text.replace("${", "$${").replace("%{", "%%{")


def _dashed(platform: Platform) -> str:
    return str(platform).replace("/", "-")
