"""What a build refuses before it asks anything of a base."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.projects.image import ImageProject


@pytest.mark.parametrize("how", ["except of every patch", "empty series"])
def test_an_overlay_without_a_patch_is_not_built(tmp_path: Path, how: str) -> None:
    world = ImageProject.create(tmp_path)
    if how == "empty series":
        (world.root / "patches/one/series").write_text("# none yet\n")
    else:
        world.spec.write_text(world.spec.read_text().replace("series: one", "series: one, except: [p0]"))
    layout = world.base()
    run = world.overlay(*world.build(f"oci:{layout.path}@{layout.entry()}"))
    run.check(1)
    assert "nothing to build" in run.err
    assert not (tmp_path / "out").exists()
