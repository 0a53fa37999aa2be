"""Patched images, and everything that can be done to them behind overlay's back."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import Overlay, Run
from tests.integration.bases import Base
from tests.integration.judge import OVERLAY
from tests.integration.layouts import REF_NAME, Image, Layer, Layout

Add = Callable[[tarfile.TarFile], None]


@dataclass(frozen=True)
class Workshop:
    """One overlay command with a warm cache, a base, and the overlay built on it, all in layouts."""

    overlay: Overlay
    base: Base
    wheel: Path
    layout: Layout
    digest: str
    lock: Path

    @classmethod
    def build(
        cls, overlay: Overlay, base: Base, wheel: Path, directory: Path, name: str = OVERLAY
    ) -> Workshop:
        lock = directory.with_name(f"{directory.name}.lock")
        to = ("--output", f"oci:{directory}", "--complete", "--lock", lock)
        run = overlay("build", name, "--base", base.reference, "--wheel", wheel, *to, "--json").check()
        return cls(overlay, base, wheel, Layout(directory), run.json["digest"], lock)

    @property
    def image(self) -> Image:
        return self.layout.image(self.digest)

    @property
    def reference(self) -> str:
        return f"oci:{self.layout.directory}@{self.digest}"

    def verify(self, digest: str, *options: object) -> Run:
        """Verify an image of the layout against the base it names."""
        image = f"oci:{self.layout.directory}@{digest}"
        return self.overlay("verify", image, "--base", self.base.reference, "--json", *options)

    def deviations(self, digest: str, *options: object) -> list[dict[str, Any]]:
        """What verify finds wrong with an image; it must find something."""
        return list(self.verify(digest, *options).check(5).json["error"]["deviations"])

    def with_layers(self, layers: list[Layer], tag: str, **config: Any) -> str:
        """The image with other layers, and parts of its config changed."""
        settings = {**self.image.config, "config": {**self.image.config["config"], **config}}
        return self.layout.put_image(settings, layers, tag)

    def with_layer_on_top(self, tag: str, *entries: Add, **config: Any) -> str:
        return self.with_layers([*self.image.layers, self.layout.put_layer(each(entries))], tag, **config)

    def with_top_layer_changed(
        self, tag: str, change: Callable[[str, bytes], bytes | None], *more: Add
    ) -> str:
        """The image with the overlay's own layer rewritten: bytes changed, or entries left out."""
        *below, top = self.image.layers
        rewritten = self.layout.put_layer(
            each([copied(self.layout.read(top.descriptor["digest"]), change), *more])
        )
        return self.with_layers([*below, rewritten], tag)

    def with_annotation(self, key: str, value: str, tag: str) -> str:
        manifest = {**self.image.manifest}
        manifest["annotations"] = {**manifest["annotations"], key: value}
        entry = self.layout.put(json.dumps(manifest).encode(), manifest["mediaType"])
        self.layout._write_index([*self.layout.entries(), {**entry, "annotations": {REF_NAME: tag}}])
        return str(entry["digest"])

    def data(self, path: str) -> bytes:
        """The bytes of a file in the overlay's layer."""
        return self.entry(path)[1]

    def entry(self, path: str) -> tuple[tarfile.TarInfo, bytes]:
        top = self.image.layers[-1].descriptor["digest"]
        with tarfile.open(self.layout.path(top)) as tar:
            info = tar.getmember(path)
            file = tar.extractfile(info)
            assert file
            return info, file.read()

    def manifest(self) -> Any:
        return json.loads(self.data("usr/share/sglang-overlay/manifest.json"))


def file(path: str, data: bytes, *, mtime: int = 0, mode: int = 0o644) -> Add:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(path)
        info.size, info.mtime, info.mode = len(data), mtime, mode
        tar.addfile(info, io.BytesIO(data))

    return add


def each(entries: Any) -> Add:
    def add(tar: tarfile.TarFile) -> None:
        for entry in entries:
            entry(tar)

    return add


def copied(layer: bytes, change: Callable[[str, bytes], bytes | None]) -> Add:
    """A layer's entries; of a file, what ``change`` makes of its bytes, or nothing where that is None."""

    def add(tar: tarfile.TarFile) -> None:
        with tarfile.open(fileobj=io.BytesIO(layer)) as old:
            for info in old:
                content = old.extractfile(info) if info.isfile() else None
                if content is None:
                    tar.addfile(info)
                    continue
                data = change(info.name, content.read())
                if data is not None:
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))

    return add


def add_overlay(overlay: Overlay, name: str, patches: Mapping[str, bytes]) -> None:
    """An overlay of a test's own in the project, on the same pins, with these patches as its series."""
    project = overlay.directory
    series = project / "patches" / f"of-{name}"
    series.mkdir()
    (series / "series").write_text("".join(f"{patch}.patch\n" for patch in patches))
    for patch, data in patches.items():
        (series / f"{patch}.patch").write_bytes(data)
    spec = (project / "overlays" / f"{OVERLAY}.yaml").read_text()
    spec = spec.replace(f"name: {OVERLAY}", f"name: {name}").replace("series: v0.5.20", f"series: of-{name}")
    (project / "overlays" / f"{name}.yaml").write_text(spec)


def mail(subject: str, diff: bytes) -> bytes:
    """A patch file around a diff."""
    head = (
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        "From: Test <test@example.org>\nDate: Sun, 29 Nov 2026 00:00:00 +0000\n"
        f"Subject: {subject}\n\nA test's own patch.\n\nUpstream-Status: Inappropriate [a test]\n---\n\n"
    )
    return head.encode() + diff
