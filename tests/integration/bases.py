"""Base images for whole builds: SGLang's sources as real images carry them, and variations of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.base.wheelbase import write_wheel_base
from builder.oci.model import Platform
from tests.integration.layouts import Layer, Layout, files, filler

SOURCES = "sgl-workspace/sglang/python"  # where an image has what the repository calls `python`


@dataclass(frozen=True)
class Base:
    """An image in a layout, to be named by digest; ``tag`` is for tools that cannot."""

    layout: Layout
    digest: str
    tag: str

    @property
    def reference(self) -> str:
        """As ``--base`` takes it."""
        return f"oci:{self.layout.directory}@{self.digest}"

    def push(self, skopeo: Callable[..., str], repository: str) -> str:
        """Copy it to a registry; the reference by digest."""
        skopeo("copy", f"oci:{self.layout.directory}:{self.tag}", f"docker://{repository}:{self.tag}")
        return f"{repository}@{self.digest}"


def wheel_base(wheel: Path, directory: Path, *, architecture: str = "amd64") -> Base:
    """SGLang out of its wheel, a few megabytes, in a new layout."""
    layout = Layout.create(directory)
    made = write_wheel_base(wheel, layout, platforms=[Platform("linux", architecture)], tag="small")
    return Base(layout, made.manifest.digest, "small")


def heavy_base(base: Base, size: int) -> Base:
    """``base`` between layers of filler, one below and three above, ``size`` bytes in all."""
    return between(base, filler_layers(base.layout, size))


def filler_layers(layout: Layout, size: int) -> list[Layer]:
    """Four layers of random bytes, ``size`` in all, in ``layout``."""
    return [layout.put_layer(filler(f"opt/filler/{number}", size // 4)) for number in range(4)]


def between(base: Base, layers: list[Layer]) -> Base:
    """``base`` on the first of these layers and below the others."""
    image = base.layout.image(base.digest)
    below, *above = layers
    stack = [below, *image.layers, *above]
    return Base(base.layout, base.layout.put_image(image.config, stack, "heavy"), "heavy")


def changed_base(base: Base, contents: Mapping[str, bytes], tag: str) -> Base:
    """``base`` with files replaced by a layer on top; paths as in the repository, ``python/sglang/…``."""
    in_image = {SOURCES + path.removeprefix("python"): data for path, data in contents.items()}
    top: Layer = base.layout.put_layer(files(in_image))
    image = base.layout.image(base.digest)
    return Base(base.layout, base.layout.put_image(image.config, [*image.layers, top], tag), tag)
