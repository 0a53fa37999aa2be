"""What a lock says of a base is believed only as the answer to the question, and only in its own form."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.base.image import Base, BaseFiles, look_up_base_files, resolve_bases
from builder.errors import ImageMismatch
from builder.oci.layout import Layout as ReadLayout
from builder.oci.reference import LayoutReference
from builder.oci.settings import settings_of
from builder.project.spec import BaseSpec
from tests.projects.image import SYSTEM, TREE, Layout, layer

ONE, TWO = "python/sglang/one.py", "python/sglang/two.py"
AUTO = {"python/sglang": "auto"}
FILES = {
    f"{TREE}/sglang/one.py": b"1",
    f"{TREE}/sglang/two.py": b"2",
    f"{TREE}/sglang/__pycache__/one.cpython-312.pyc": b"old",
    f"{TREE}/sglang/__pycache__/two.cpython-312.pyc": b"old",
    "opt/copy/sglang/__init__.py": b"",
    "opt/copy/sglang/one.py": b"1",
}


@pytest.fixture
def base(tmp_path: Path) -> Base:
    layout = Layout.create(tmp_path / "base")
    layout.put_image([layer(SYSTEM), layer(FILES)])
    location = LayoutReference(layout.path, digest=layout.entry())
    (base,) = resolve_bases(location, ReadLayout(layout.path), BaseSpec(image="registry.example/x"), [])
    return base


def look(
    base: Base,
    *paths: str,
    known: BaseFiles | None = None,
    roots: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> BaseFiles:
    return look_up_base_files(
        base,
        paths,
        known=known,
        cache=Path(str(base.location).removeprefix("oci:")).parent / "cache",
        roots=roots or AUTO,
        progress=lambda *_: lambda _: None,
        settings=settings_of(base.config).with_environment(environment or {}),
    )


def through_a_lock(facts: BaseFiles) -> BaseFiles | None:
    return BaseFiles.from_json(json.loads(json.dumps(facts.as_json())))


def test_facts_come_out_of_a_lock_as_they_went_in(base: Base) -> None:
    facts = look(base, ONE, TWO)
    assert through_a_lock(facts) == facts
    assert facts.as_json()["files"][ONE]["mode"] == "0644"


def test_what_a_series_no_longer_touches_is_not_touched_because_of_the_lock(base: Base) -> None:
    known = through_a_lock(look(base, ONE, TWO))
    assert len(known.bytecode if known else ()) == 2
    assert look(base, ONE, known=known) == look(base, ONE)
    assert list(look(base, ONE, known=known).bytecode) == [f"{TREE}/sglang/__pycache__/one.cpython-312.pyc"]


def test_a_root_that_the_spec_moved_is_looked_up_anew(base: Base) -> None:
    known = through_a_lock(look(base, ONE))
    copy_first = {"PYTHONPATH": "/opt/copy"}
    moved = look(base, ONE, known=known, roots={"python/sglang": "/opt/copy/sglang"}, environment=copy_first)
    assert moved.files[ONE].image_path == "opt/copy/sglang/one.py"
    assert look(base, ONE, known=through_a_lock(moved)).files[ONE].image_path == f"{TREE}/sglang/one.py"


def test_a_root_that_python_does_not_import_is_refused(base: Base) -> None:
    with pytest.raises(ImageMismatch, match="another sglang") as caught:
        look(base, ONE, roots={"python/sglang": "/opt/copy/sglang"})
    assert caught.value.expected == "/opt/copy/sglang"
    assert f"/{TREE}/sglang" in (caught.value.found or "")


def test_facts_of_another_environment_are_no_answer(base: Base) -> None:
    known = through_a_lock(look(base, ONE))
    other = look(base, ONE, known=known, environment={"PYTHONPATH": "/opt/copy"})
    assert other.files[ONE].image_path == "opt/copy/sglang/one.py"
    assert look(base, ONE, known=through_a_lock(other)).files[ONE].image_path == f"{TREE}/sglang/one.py"
    unrelated = look(base, ONE, known=known, environment={"SGLANG_X": "1"})
    assert unrelated is known


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("files", ONE, "image_path"), "../etc/passwd"),
        (("files", ONE, "image_path"), "/etc/passwd"),
        (("files", ONE, "image_path"), "a//b"),
        (("files", ONE, "image_path"), "a\nb"),
        (("files", ONE, "image_path"), None),
        (("files", ONE, "mode"), "10644"),
        (("files", ONE, "mode"), "rw"),
        (("files", ONE, "mode"), -1),
        (("files", ONE, "uid"), -1),
        (("files", ONE, "gid"), 1 << 40),
        (("files", ONE, "blob"), "HEAD"),
        (("files", ONE), []),
        (("files",), None),
        (("directories", "../x"), {"mode": "0755", "uid": 0, "gid": 0, "mtime": 0}),
        (("bytecode", "etc/passwd"), {"image_path": "etc/passwd", "blob": "0" * 40}),
        (("bytecode", "../x.pyc"), {"image_path": "x.pyc", "blob": "0" * 40}),
        (("roots",), [{"path": "python/sglang"}]),
        (("warnings",), [1]),
    ],
)
def test_facts_of_another_form_are_not_believed(base: Base, where: tuple[str, ...], value: Any) -> None:
    entry = copy.deepcopy(look(base, ONE).as_json())
    inner = entry
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    assert BaseFiles.from_json(entry) is None
