"""How fast layers are read: overlay's index of a layer against ``gzip -dc | tar -t``, which only lists it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from benchmarks.measure import Sample, Series, measure, repeat
from benchmarks.section import Section
from tests.integration.layouts import Layout

DRIVER = Path(__file__).with_name("index_driver.py")


def measure_layers(directory: Path, layout: Layout, digest: str, runs: int) -> Section:
    """The layer with SGLang's sources (many small files), and one of filler (few large ones).

    Args:
        directory: for indexes.
        layout: where an image is that has both.
        digest: of that image.
    """
    below, *own, _, _, _ = layout.image(digest).layers
    sources = max(own, key=lambda layer: int(layer.descriptor["size"]))
    rows, data = [], {}
    for name, layer in (("sources", sources), ("filler", below)):
        blob, size = layout.path(layer.descriptor["digest"]), int(layer.descriptor["size"])
        ours = _index(directory, blob, layer.descriptor, layer.diff_id, runs)
        theirs = _list(directory, blob, runs)
        rows.append(
            [
                name,
                f"{size / 1e6:,.1f}",
                *(f"{s.seconds:.2f} ({size / 1e6 / s.seconds:,.0f})" for s in (ours, theirs)),
            ]
        )
        data[name] = {"bytes": size, "overlay": ours.as_json(), "gzip and tar": theirs.as_json()}
    return Section(
        "Reading a layer",
        f"Whole processes, median of {runs} runs: seconds (MB of the gzip layer a second). overlay hashes "
        "the layer, checks its diff ID, and hashes every file in it; `gzip -dc | tar -t` lists names.",
        ["layer", "MB", "overlay", "`gzip -dc \\| tar -t`"],
        rows,
        data,
    )


def _index(directory: Path, blob: Path, descriptor: object, diff_id: str, runs: int) -> Series:
    assert isinstance(descriptor, dict)

    def once(number: int) -> Sample:
        cache = directory / f"index-{number}"
        words = (blob, descriptor["mediaType"], descriptor["digest"], descriptor["size"], diff_id, cache)
        sample = measure([sys.executable, str(DRIVER), *map(str, words)], os.environ, DRIVER.parent.parent)
        shutil.rmtree(cache)
        return sample

    return repeat("overlay", runs, once)


def _list(directory: Path, blob: Path, runs: int) -> Series:
    script = f"gzip -dc '{blob}' | tar -t > /dev/null"
    return repeat("gzip and tar", runs, lambda _: measure(["/bin/sh", "-ec", script], os.environ, directory))
