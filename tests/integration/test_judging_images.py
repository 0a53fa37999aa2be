"""``overlay diff --image``: upstream's source in an image is judged, an image with an overlay is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.projects.image import ImageProject, Layout


def test_a_base_is_judged(tmp_path: Path) -> None:
    world = ImageProject.create(tmp_path)
    run = world.overlay("diff", "demo", "--image", world.base().reference, "--json").check()
    (evaluation,) = run.json["reports"][0]["judgements"]
    assert evaluation["verdict"] == "carry"


@pytest.mark.parametrize("labels", ["its own", "none", "of another version"])
def test_an_image_with_an_overlay_is_refused_and_not_remembered(tmp_path: Path, labels: str) -> None:
    world = ImageProject.create(tmp_path)
    world.overlay(*world.build(world.base().reference, "--complete")).check()
    layout = Layout(tmp_path / "out")
    if labels != "its own":
        relabel(layout, {} if labels == "none" else {"dev.sglang-overlay.name": "other"})
    before = {path: path.read_bytes() for path in world.root.rglob("*.lock")}
    for _ in range(2):
        run = world.overlay("diff", "demo", "--image", f"oci:{layout.path}", "--exit-code").check(5)
        assert "holds an overlay already" in run.err
        assert {"its own": "demo with p0", "none": "manifest.json", "of another version": "other with"}[
            labels
        ] in run.err
    assert {path: path.read_bytes() for path in world.root.rglob("*.lock")} == before


def relabel(layout: Layout, labels: dict[str, str]) -> None:
    """The layout's image with these labels instead of its own."""
    manifest = json.loads(layout.blob(layout.entry()).read_bytes())
    config = json.loads(layout.blob(manifest["config"]["digest"]).read_bytes())
    config["config"]["Labels"] = labels
    manifest["config"] = layout.put(json.dumps(config).encode(), manifest["config"]["mediaType"])
    layout.tag([layout.put(json.dumps(manifest).encode(), manifest["mediaType"])])
