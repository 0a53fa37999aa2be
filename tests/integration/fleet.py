"""Many overlays on one base in the tests' registry, for what builds or plans them all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.conftest import Overlay
from tests.integration.judge import OVERLAY


@dataclass(frozen=True)
class FleetBase:
    """A base with images for two platforms: its repository and digests."""

    repository: str
    index: str
    platforms: dict[str, str]


def push_base(overlay: Overlay, wheel: Path, repository: str, *, family: str = "oci") -> FleetBase:
    """SGLang out of its wheel, for amd64 and arm64, in a registry."""
    options = ("--output", f"{repository}:base", "--wheel", wheel, "--family", family, "--json")
    made = overlay("base", "wheel", "sglang==0.5.20", *options).check().json
    return FleetBase(repository, made["digest"], made["images"])


def write_fleet(overlay: Overlay, base: FleetBase, count: int) -> list[str]:
    """Replace the specs of a project by ``count`` of them on ``base``; they differ in their environment."""
    directory = overlay.directory / "overlays"
    spec = yaml.safe_load((directory / f"{OVERLAY}.yaml").read_text())
    for path in directory.iterdir():
        path.unlink()
    names = [f"fleet-{number:02}" for number in range(count)]
    for number, name in enumerate(names):
        spec |= {"name": name, "environment": {"FLEET": str(number)}}
        spec["base"] |= {"image": base.repository, "index": base.index, "platforms": base.platforms}
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    return names
