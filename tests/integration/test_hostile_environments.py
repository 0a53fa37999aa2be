"""Which copy Python imports is decided in the environment that the image gets, not in the base's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.projects.history import P0_BEFORE
from tests.projects.image import SYSTEM, TREE, ImageProject, Layout, layer

OTHER = {"opt/other/sglang/__init__.py": b"", "opt/other/sglang/demo.py": b"a = 9\n"}
SECOND = {
    "opt/venv/pyvenv.cfg": b"home = /usr/bin\nversion = 3.12.3\n",
    "opt/venv/bin/python3": b"#!/bin/false\n",
    "opt/venv/lib/python3.12/site-packages/sglang/__init__.py": b"",
    "opt/venv/lib/python3.12/site-packages/sglang/demo.py": b"a = 9\n",
}


@pytest.fixture
def world(tmp_path: Path) -> ImageProject:
    return ImageProject.create(tmp_path)


def base(world: ImageProject, more: Mapping[str, bytes], **config: Any) -> str:
    """A base that has also these files; ``config`` changes how its containers start."""
    layout = Layout.create(world.directory / "base")
    settings = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "WorkingDir": "/"} | config
    files = [layer({**SYSTEM, **more}), layer({f"{TREE}/sglang/demo.py": P0_BEFORE})]
    layout.put_image(files, config={"config": settings})
    return layout.reference


def build(world: ImageProject, reference: str, *more: object, to: str = "out") -> Run:
    return world.overlay(*world.build(reference, "--json", *more, to=to))


def refused(world: ImageProject, reference: str, to: str = "out") -> dict[str, Any]:
    """The error of a build with a cold cache, which is that of one with a warm cache."""
    cold, warm = (build(world, reference, to=to).check(5).json["error"] for _ in range(2))
    assert cold == warm
    error: dict[str, Any] = cold
    return error


@pytest.mark.parametrize("place", ["auto", f"/{TREE}/sglang"])
def test_a_spec_that_puts_another_copy_first_builds_nothing_unpatched(
    world: ImageProject, place: str
) -> None:
    world.write_spec(roots=place, more="environment: {PYTHONPATH: /opt/other}\n")
    error = refused(world, base(world, OTHER))
    assert not (world.directory / "out").exists()
    if place == "auto":  # the copy that is imported is the one that would be patched, and is another source
        assert "opt/other/sglang/demo.py" in error["where"]
    else:
        assert error["expected"] == place
        assert "/opt/other/sglang (PYTHONPATH)" in error["found"]


def test_the_copy_that_the_spec_puts_first_is_the_one_that_is_patched(world: ImageProject) -> None:
    world.write_spec(more="environment: {PYTHONPATH: /opt/other}\n")
    reference = base(world, {**OTHER, "opt/other/sglang/demo.py": P0_BEFORE})
    facts = build(world, reference).check().json["images"][0]
    manifest = facts["manifest"]
    assert manifest["roots"][0]["image_path"] == "/opt/other/sglang"
    assert manifest["environment"] == {"PYTHONPATH": "/opt/other"}
    assert manifest["entrypoint"]["python"] == "/usr/bin/python3"
    assert manifest["entrypoint"]["searched"][0] == "/opt/other"
    verify = world.overlay("verify", f"oci:{world.directory}/out:new", "--base", reference)
    verify.check()


def test_facts_in_the_lock_are_of_one_environment(world: ImageProject) -> None:
    """Cold or warm, with a lock or without: the same answer."""
    reference = base(world, OTHER)
    build(world, reference).check()
    world.write_spec(roots=f"/{TREE}/sglang", more="environment: {PYTHONPATH: /opt/other}\n")
    sound = world.lock.read_bytes()
    for is_warm in (True, False):
        for is_locked in (True, False):
            world.lock.write_bytes(sound)
            if not is_locked:
                world.lock.unlink()
            if not is_warm:
                shutil.rmtree(world.cache / "layers", ignore_errors=True)
            assert "/opt/other/sglang" in refused(world, reference, to="second")["found"]


def test_facts_under_another_base_with_another_environment_are_not_believed(world: ImageProject) -> None:
    build(world, base(world, OTHER)).check()
    shutil.rmtree(world.directory / "base")
    other = base(world, OTHER, Env=["PATH=/usr/bin", "PYTHONPATH=/opt/other"])
    lock = json.loads(world.lock.read_text())
    (facts,) = lock["bases"].values()
    lock["bases"][other.partition("@")[2]] = facts
    world.lock.write_text(json.dumps(lock))
    assert "opt/other/sglang/demo.py" in refused(world, other, to="second")["where"]


def test_a_path_with_another_python_is_looked_into(world: ImageProject) -> None:
    world.write_spec(more="environment: {PATH: '/opt/none'}\n")
    assert "no Python" in refused(world, base(world, SECOND))["what"]


def test_an_entry_point_with_its_own_python(world: ImageProject) -> None:
    venv = {path: data for path, data in SECOND.items() if not path.endswith("bin/python3")}
    reference = base(
        world, {**venv, "usr/bin/python3.13": b""}, Entrypoint=["/usr/bin/python3.12", "-m", "x"]
    )
    build(world, reference).check()


@pytest.mark.parametrize(
    "loader", ["sglang.py", "sglang.so", "sglang.pyc", "sglang/__init__.py", "sglang/__init__.abi3.so"]
)
@pytest.mark.parametrize("where", ["srv/start", "usr/lib/python3.12"])
def test_what_comes_before_the_patched_copy_is_refused(world: ImageProject, where: str, loader: str) -> None:
    reference = base(world, {f"{where}/{loader}": b""}, WorkingDir="/srv/start")
    world.write_spec(roots=f"/{TREE}/sglang")
    assert f"/{where}/sglang" in refused(world, reference)["found"]


def test_an_environment_of_the_template_counts(world: ImageProject) -> None:
    template = world.root / "Dockerfile.in"
    template.write_text(template.read_text() + 'ENV PYTHONPATH="/opt/other"\n')
    world.write_spec(roots=f"/{TREE}/sglang")
    assert "/opt/other/sglang" in refused(world, base(world, OTHER))["found"]


def test_a_template_that_sets_something_else_for_other_labels_is_refused(world: ImageProject) -> None:
    template = world.root / "Dockerfile.in"
    template.write_text(
        template.read_text() + "ENV MANIFEST={{ labels['dev.sglang-overlay.manifest'] | quoted }}\n"
    )
    error = build(world, base(world, {})).check(1).json["error"]
    assert "sets something else" in error["what"]
    assert error["found"] == "environment"


def test_code_that_runs_at_the_start_is_a_note_in_build_and_verify(world: ImageProject) -> None:
    packages = "usr/local/lib/python3.12/dist-packages"
    more = {f"{packages}/evil.pth": b"import evil\n", "usr/lib/python3.12/sitecustomize.py": b"import evil\n"}
    reference = base(world, more)
    run = build(world, reference).check()
    notes = run.json["images"][0]["warnings"]
    verified = world.overlay("verify", f"oci:{world.directory}/out:new", "--base", reference, "--json")
    for said in (notes, verified.check().json["notes"]):
        for path in more:
            assert any(note.startswith(f"/{path}: ") for note in said), path


def test_what_setuptools_and_debian_ship_is_no_note(world: ImageProject) -> None:
    shim = (
        b"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; "
        b"enabled and __import__('_distutils_hack').add_shim(); \n"
    )
    more = {
        "usr/lib/python3/dist-packages/distutils-precedence.pth": shim,
        "usr/lib/python3.12/sitecustomize.py": b"# Empty sitecustomize.py to avoid a dangling symlink\n",
    }
    assert build(world, base(world, more)).check().json["images"][0]["warnings"] == []
