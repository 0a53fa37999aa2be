"""``overlay probe image:REF``: the source inside an image, or exit 5; never an empty tree."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.projects.image import SYSTEM, TREE, ImageProject, Layout, layer

DEMO = {**SYSTEM, f"{TREE}/sglang/demo.py": b"def f():\n    a = 1\n    b = 2\n    return a + b\n"}


def states(world: ImageProject, layout: Layout, code: int = 0) -> dict[str, str]:
    run = world.overlay("probe", f"image:oci:{layout.path}", "--json").check(code)
    return {
        probe["name"]: next(iter(probe["answers"].values()))["state"] for probe in run.json.get("probes", [])
    }


def test_a_base_has_the_defect_and_a_build_on_it_is_fixed(tmp_path: Path) -> None:
    world = ImageProject.create(tmp_path)
    base = world.base()
    assert states(world, base) == {"p0": "defect"}
    world.overlay(*world.build(base.reference, "--complete")).check()
    assert states(world, Layout(tmp_path / "out")) == {"p0": "fixed"}


def test_an_image_without_the_package_is_no_tree(tmp_path: Path) -> None:
    world = ImageProject.create(tmp_path)
    for name, contents in (("none", {"a": b"1"}), ("python alone", {**SYSTEM, f"{TREE}/sglang/x.so": b""})):
        layout = Layout.create(tmp_path / name)
        kept = {path: data for path, data in contents.items() if not path.endswith("__init__.py")}
        layout.put_image([layer(kept)])
        for _ in range(2):
            assert states(world, layout, 5) == {}


def test_of_an_index_the_image_that_has_the_package_is_read(tmp_path: Path) -> None:
    world = ImageProject.create(tmp_path)
    layout = world.base()
    good = layout.entry()
    bad = layout.put_image([layer({"a": b"1"})], config={"architecture": "arm64", "os": "linux"})
    arm, amd = {"architecture": "arm64", "os": "linux"}, {"architecture": "amd64", "os": "linux"}
    index = layout.put_index([(bad, arm), (good, amd)])
    run = world.overlay("probe", f"image:oci:{layout.path}@{index}", "--json").check()
    assert [next(iter(p["answers"].values()))["state"] for p in run.json["probes"]] == ["defect"]


def test_an_index_without_images(tmp_path: Path) -> None:
    world = ImageProject.create(tmp_path)
    layout = world.base()
    run = world.overlay("probe", f"image:oci:{layout.path}@{layout.put_index([])}").check(5)
    assert "no images" in run.err


def test_links_to_directories_are_not_followed(tmp_path: Path) -> None:
    """Thirty directories with two links each to the next are a thousand million paths."""
    world = ImageProject.create(tmp_path)

    def links(tar: tarfile.TarFile) -> None:
        for number in range(30):
            for name in ("a", "b"):
                entry = tarfile.TarInfo(f"{TREE}/sglang/z{number}/{name}")
                entry.type, entry.linkname = tarfile.SYMTYPE, f"../z{number + 1}"
                tar.addfile(entry)
        entry = tarfile.TarInfo(f"{TREE}/sglang/loop")
        entry.type, entry.linkname = tarfile.SYMTYPE, "."
        tar.addfile(entry)

    layout = world.base()
    place = Layout.create(tmp_path / "links")
    place.put_image([layer(DEMO), layer(links)])
    assert states(world, place)["p0"] == states(world, layout)["p0"]
