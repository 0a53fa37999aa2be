"""An image is asked what is in it, and its answer does not depend on whoever built it."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Overlay
from tests.integration.bases import Base, changed_base, wheel_base
from tests.integration.conftest import with_sources
from tests.integration.judge import MANIFEST, OVERLAY, Evaluation, in_image
from tests.integration.tampering import Workshop, add_overlay, file, mail

PATCHED = in_image("python/sglang/srt/environ.py")


@pytest.fixture(scope="module")
def workshop(
    small_base: Base,
    wheel: Callable[[str], Path],
    sources_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Workshop:
    overlay = with_sources(Overlay.prepare(tmp_path_factory.mktemp("verify")), sources_cache)
    return Workshop.build(overlay, small_base, wheel("0.5.20"), overlay.directory.parent / "image")


def kinds(deviations: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(deviation["kind"], deviation["where"]) for deviation in deviations]


def test_an_image_as_it_was_built_passes(workshop: Workshop, evaluation: Evaluation) -> None:
    result = workshop.verify(workshop.digest).check().json
    assert result["deviations"] == []
    assert result["notes"] == []
    assert result["files"] == len(evaluation.after)
    assert result["series"] == []


def test_without_a_base_to_ask_the_result_says_what_was_not_compared(workshop: Workshop) -> None:
    run = workshop.overlay("verify", workshop.reference).check()
    assert "the base's layers and config were not compared" in run.out


def test_an_image_of_others_is_refused(workshop: Workshop) -> None:
    run = workshop.overlay("verify", workshop.base.reference).check(5)
    assert "not made by overlay" in run.err


def test_one_byte_changed_by_a_later_layer(workshop: Workshop) -> None:
    data = workshop.data(PATCHED)
    changed = data.replace(b"import", b"Import", 1)
    assert len(changed) == len(data) != 0
    digest = workshop.with_layer_on_top("byte", file(PATCHED, changed))
    (deviation,) = workshop.deviations(digest)
    assert (deviation["kind"], deviation["where"]) == ("file", f"/{PATCHED}")
    assert deviation["expected"] != deviation["found"]
    layers = len(workshop.image.layers) + 1
    assert f"from layer {layers} of {layers}" in deviation["what"]


def test_a_patched_file_that_a_later_layer_removes(workshop: Workshop) -> None:
    directory, _, name = PATCHED.rpartition("/")
    digest = workshop.with_layer_on_top("gone", file(f"{directory}/.wh.{name}", b""))
    assert kinds(workshop.deviations(digest)) == [("file", f"/{PATCHED}")]


def test_a_patch_that_is_declared_and_not_delivered(workshop: Workshop) -> None:
    without = workshop.with_top_layer_changed(
        "undelivered", lambda name, data: None if name == PATCHED else data
    )
    (deviation,) = workshop.deviations(without)
    assert (deviation["kind"], deviation["where"]) == ("file", f"/{PATCHED}")


def test_a_base_that_is_nowhere_is_told_with_what_to_do(workshop: Workshop, tmp_path: Path) -> None:
    from tests.integration.layouts import Layout

    empty = Layout.create(tmp_path / "empty")
    run = workshop.overlay("verify", workshop.reference, "--base", f"oci:{empty.directory}").check(5)
    assert "--base REF" in run.err


def test_another_mode(workshop: Workshop) -> None:
    digest = workshop.with_layer_on_top("mode", file(PATCHED, workshop.data(PATCHED), mode=0o600))
    assert kinds(workshop.deviations(digest)) == [("mode", f"/{PATCHED}")]


def bytecode(source: bytes, mtime: int) -> bytes:
    """Bytecode of something else that Python takes for this source's, by time and size."""
    return importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, mtime, len(source)) + b"old code"


def cache_of(path: str) -> str:
    directory, _, name = path.rpartition("/")
    return f"{directory}/__pycache__/{name.removesuffix('.py')}.cpython-311.pyc"


def test_a_stale_pyc_of_the_same_time_and_size(workshop: Workshop) -> None:
    info, data = workshop.entry(PATCHED)
    stale = file(cache_of(PATCHED), bytecode(data, int(info.mtime)))
    deviations = workshop.deviations(workshop.with_layer_on_top("stale", stale))
    assert kinds(deviations) == [("bytecode", f"/{cache_of(PATCHED)}")]


def test_a_pyc_that_is_never_checked_against_its_source(workshop: Workshop) -> None:
    unchecked = importlib.util.MAGIC_NUMBER + struct.pack("<I8s", 1, b"any hash") + b"old code"
    deviations = workshop.deviations(
        workshop.with_layer_on_top("unchecked", file(cache_of(PATCHED), unchecked))
    )
    assert kinds(deviations) == [("bytecode", f"/{cache_of(PATCHED)}")]


def test_a_pyc_that_python_would_ignore_is_no_deviation(workshop: Workshop) -> None:
    info, data = workshop.entry(PATCHED)
    other_time = file(cache_of(PATCHED), bytecode(data, int(info.mtime) - 1))
    workshop.verify(workshop.with_layer_on_top("ignored", other_time)).check()


def test_emptied_bytecode_that_is_back(
    workshop: Workshop, tmp_path: Path, small_base: Base, wheel: Callable[[str], Path]
) -> None:
    """The base has bytecode of a patched file; the build empties it; without that it is stale."""
    layout = wheel_base(wheel("0.5.20"), tmp_path / "base")
    pyc = "python" + cache_of(PATCHED).removeprefix("sgl-workspace/sglang/python")
    base = changed_base(layout, {pyc: b"\0" * 100}, "compiled")
    own = Workshop.build(workshop.overlay, base, workshop.wheel, tmp_path / "image")
    assert own.manifest()["bytecode"] == [f"/{cache_of(PATCHED)}"]
    own.verify(own.digest).check()
    back = own.with_top_layer_changed("back", lambda name, data: None if name.endswith(".pyc") else data)
    assert kinds(own.deviations(back)) == [("bytecode", f"/{cache_of(PATCHED)}")]


def test_a_missing_whiteout(
    workshop: Workshop, tmp_path: Path, upstream_repository: Path, run_git: Callable[..., bytes]
) -> None:
    path = "python/sglang/check_env.py"  # which nothing imports: what is left is still Python
    run_git("rm", "--quiet", path, cwd=upstream_repository)
    diff = run_git("diff", "--cached", "--full-index", "--no-color", cwd=upstream_repository)
    run_git("reset", "--quiet", "--hard", cwd=upstream_repository)
    add_overlay(workshop.overlay, "remover", {"remove-file": mail("Remove a file", diff)})
    own = Workshop.build(workshop.overlay, workshop.base, workshop.wheel, tmp_path / "image", "remover")
    own.verify(own.digest).check()
    without = own.with_top_layer_changed("back", lambda name, data: None if "/.wh." in name else data)
    assert kinds(own.deviations(without)) == [("removed", f"/{in_image(path)}")]


def test_a_swapped_label(workshop: Workshop) -> None:
    labels = {**workshop.image.config["config"]["Labels"], "dev.sglang-overlay.patches": "another-patch"}
    digest = workshop.with_layers(workshop.image.layers, "label", Labels=labels)
    deviations = workshop.deviations(digest)
    assert kinds(deviations) == [("label", "dev.sglang-overlay.patches")]
    assert deviations[0]["found"] == "another-patch"


def test_a_swapped_annotation(workshop: Workshop) -> None:
    key = "org.opencontainers.image.base.digest"
    digest = workshop.with_annotation(key, f"sha256:{'0' * 64}", "annotation")
    assert kinds(workshop.deviations(digest)) == [("annotation", key)]


def test_a_base_layer_that_is_not_the_bases(workshop: Workshop) -> None:
    first, *others = workshop.image.layers
    other = workshop.layout.put_layer(file("etc/planted", b"x"))
    digest = workshop.with_layers([first, other, *others[1:]], "base")
    assert ("base", "layer 2 of 3") in kinds(workshop.deviations(digest))


def test_a_file_in_the_overlays_layer_that_the_manifest_does_not_name(workshop: Workshop) -> None:
    planted = file("usr/bin/planted", b"x", mode=0o755)
    digest = workshop.with_top_layer_changed("planted", lambda _, data: data, planted)
    assert kinds(workshop.deviations(digest)) == [("undeclared", "/usr/bin/planted")]


def test_a_manifest_edited_to_fit_a_changed_file(workshop: Workshop) -> None:
    """Whoever changes a file and its record has to change the labels too, and cannot change a signature."""
    import hashlib

    data = workshop.data(PATCHED) + b"# more\n"
    old = hashlib.sha256(workshop.data(PATCHED)).hexdigest().encode()

    def edit(name: str, content: bytes) -> bytes:
        if name == PATCHED:
            return data
        return (
            content.replace(old, hashlib.sha256(data).hexdigest().encode()) if name == MANIFEST else content
        )

    digest = workshop.with_top_layer_changed("edited", edit)
    found = kinds(workshop.deviations(digest))
    assert found == [("label", "dev.sglang-overlay.manifest"), ("file", f"/{PATCHED}")]


def test_a_manifest_that_names_other_patches_than_its_patch_set_has(workshop: Workshop) -> None:
    name = b"shm-broadcast-host-ip"

    def rename(path: str, content: bytes) -> bytes:
        return content.replace(name, b"shm-broadcast-host-op") if path == MANIFEST else content

    found = kinds(workshop.deviations(workshop.with_top_layer_changed("renamed", rename)))
    assert ("manifest", "patchset") in found
    assert ("label", "dev.sglang-overlay.patches") in found


def test_a_missing_manifest(workshop: Workshop) -> None:
    digest = workshop.with_top_layer_changed("none", lambda name, data: None if name == MANIFEST else data)
    assert "manifest is missing" in workshop.verify(digest).check(5).err


def test_another_copy_that_python_would_import(workshop: Workshop) -> None:
    environment = [*workshop.image.config["config"]["Env"], "PYTHONPATH=/elsewhere"]
    digest = workshop.with_layer_on_top("copy", file("elsewhere/sglang/__init__.py", b""), Env=environment)
    variable, shadow = workshop.deviations(digest)
    assert (variable["kind"], variable["where"]) == ("config", "PYTHONPATH")
    assert "/elsewhere" not in str(variable)
    assert (shadow["kind"], shadow["found"]) == ("shadow", "/elsewhere/sglang (PYTHONPATH)")


def test_a_symbolic_link_in_the_place_of_a_patched_file(workshop: Workshop) -> None:
    import tarfile

    def link(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(PATCHED)
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/environ.py"
        tar.addfile(info)

    real = file("etc/environ.py", workshop.data(PATCHED))
    assert kinds(workshop.deviations(workshop.with_layer_on_top("link", real, link))) == [
        ("file", f"/{PATCHED}")
    ]


def test_every_deviation_is_named_not_only_the_first(workshop: Workshop) -> None:
    labels = {**workshop.image.config["config"]["Labels"], "dev.sglang-overlay.name": "other"}
    other = in_image("python/sglang/srt/utils/network.py")
    digest = workshop.with_layer_on_top("many", file(PATCHED, b"1"), file(other, b"2"), Labels=labels)
    found = kinds(workshop.deviations(digest))
    assert {("file", f"/{PATCHED}"), ("file", f"/{other}"), ("label", "dev.sglang-overlay.name")} == set(
        found
    )
    text = workshop.overlay("verify", f"oci:{workshop.layout.directory}@{digest}").check(5).err
    assert all(where in text for _, where in found)


def test_against_the_lock_it_was_built_with(workshop: Workshop) -> None:
    workshop.verify(workshop.digest, "--against", workshop.lock).check()


@pytest.mark.parametrize("key", ["digest", "base", "patchset", "manifest"])
def test_against_a_lock_that_says_something_else(workshop: Workshop, key: str, tmp_path: Path) -> None:
    lock = json.loads(workshop.lock.read_text())
    changed = (key, "config") if key == "digest" else (key,)
    lock["images"]["linux/amd64"] |= dict.fromkeys(changed, f"sha256:{'0' * 64}")
    other = tmp_path / "other.lock"
    other.write_text(json.dumps(lock))
    found = kinds(workshop.deviations(workshop.digest, "--against", other))
    assert ("lock", f"images: linux/amd64: {key}") in found


def test_against_a_lock_with_another_pre_image(workshop: Workshop, tmp_path: Path) -> None:
    lock = json.loads(workshop.lock.read_text())
    (base,) = lock["bases"].values()
    base["files"]["python/sglang/srt/environ.py"]["blob"] = "0" * 40
    other = tmp_path / "other.lock"
    other.write_text(json.dumps(lock))
    found = kinds(workshop.deviations(workshop.digest, "--against", other))
    assert found == [("lock", "bases: python/sglang/srt/environ.py")]


def test_what_an_older_image_lacks_of_todays_series_is_said(workshop: Workshop, tmp_path: Path) -> None:
    spec = workshop.overlay.directory / "overlays" / f"{OVERLAY}.yaml"
    text = spec.read_text()
    spec.write_text(text.replace("series: v0.5.20", "series: v0.5.20\n  except: [shm-broadcast-host-ip]"))
    try:
        older = Workshop.build(workshop.overlay, workshop.base, workshop.wheel, tmp_path / "older")
    finally:
        spec.write_text(text)
    result = older.verify(older.digest).check().json
    assert result["series"] == ["lacks shm-broadcast-host-ip, which the series has now"]


def test_two_images_that_are_the_same(workshop: Workshop, tmp_path: Path) -> None:
    again = Workshop.build(workshop.overlay, workshop.base, workshop.wheel, tmp_path / "again")
    workshop.overlay("verify", workshop.reference, again.reference).check()


def test_two_images_that_differ(workshop: Workshop, tmp_path: Path) -> None:
    diff = b"""diff --git a/python/sglang/version.py b/python/sglang/added.py
new file mode 100644
--- /dev/null
+++ b/python/sglang/added.py
@@ -0,0 +1 @@
+x = 1
""".replace(b"a/python/sglang/version.py", b"a/python/sglang/added.py")
    add_overlay(workshop.overlay, "adder", {"add-file": mail("Add a file", diff)})
    other = Workshop.build(workshop.overlay, workshop.base, workshop.wheel, tmp_path / "other", "adder")
    run = workshop.overlay("verify", workshop.reference, other.reference, "--json").check(5)
    found = {(entry["kind"], entry["where"]) for entry in run.json["error"]["deviations"]}
    assert {("overlay", "name"), ("patch", "add-file"), ("patch", "shm-broadcast-host-ip")} <= found
    assert ("file", f"/{in_image('python/sglang/added.py')}") in found
    assert not {kind for kind, _ in found} & {"base", "upstream"}


def test_labels_that_would_steer_a_terminal_are_written_out(workshop: Workshop) -> None:
    labels = {**workshop.image.config["config"]["Labels"]}
    labels["org.opencontainers.image.source"] = "x\x1b[2J\nverified  everything"
    digest = workshop.with_layers(workshop.image.layers, "steer", Labels=labels)
    image = f"oci:{workshop.layout.directory}@{digest}"
    for run in (workshop.overlay("inspect", image).check(), workshop.overlay("verify", image).check(5)):
        assert "\x1b" not in run.out + run.err
        assert not any(line.startswith("verified") for line in (run.out + run.err).splitlines())
