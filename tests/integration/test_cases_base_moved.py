"""The base moved: what people meet when an image is not the one that a patch was made for.

Cases C1 to C9 of the field (C4 is not one), and what must hold inside the image that comes out (F1, F6).
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.build.pipeline import creation_time
from builder.project.spec import read_spec
from tests.conftest import ROOT, Overlay, Run
from tests.integration.bases import SOURCES, Base, changed_base
from tests.integration.judge import OVERLAY, Evaluation, Git, in_image
from tests.integration.layouts import Layout, files_of_layer
from tests.integration.tampering import add_overlay, file, mail

TOUCHED = "python/sglang/srt/environ.py"
SITE = "usr/local/lib/python3.12/dist-packages"
SPEC_TIME = creation_time(read_spec(ROOT / "overlays" / f"{OVERLAY}.yaml"))  # of every new layer


def build(overlay: Overlay, base: Base, wheel: Path, *options: object, name: str = OVERLAY) -> Run:
    return overlay("build", name, "--base", base.reference, "--wheel", wheel, "--json", *options)


def with_layer(base: Base, tag: str, *entries: Callable[[tarfile.TarFile], None]) -> Base:
    """``base`` with a layer of these entries on top."""

    def write(tar: tarfile.TarFile) -> None:
        for entry in entries:
            entry(tar)

    image = base.layout.image(base.digest)
    digest = base.layout.put_image(image.config, [*image.layers, base.layout.put_layer(write)], tag)
    return Base(base.layout, digest, tag)


def diff_of(repository: Path, git: Git, edit: Callable[[], None]) -> bytes:
    """What ``edit`` changes in the upstream's work tree, as a diff; the tree is left as it was."""
    edit()
    git("add", "--all", cwd=repository)
    diff = git("diff", "--cached", "--full-index", "--no-renames", cwd=repository)
    git("reset", "--quiet", "--hard", cwd=repository)
    return diff


def test_c1_image_of_another_release_says_each_file_and_both_blobs_before_anything_is_written(
    prepared: Overlay, small_base: Base, evaluation: Evaluation, wheel: Callable[[str], Path], tmp_path: Path
) -> None:
    two = sorted(evaluation.before)[:2]
    older = changed_base(small_base, {path: evaluation.before[path] + b"# older\n" for path in two}, "older")
    out = tmp_path / "out"
    refused = build(prepared, older, wheel("0.5.20"), "--output", f"oci:{out}").check(5)
    found = {entry["path"]: entry for entry in refused.json["error"]["files"]}
    assert sorted(found) == two
    for path in two:
        blob = hashlib.sha1(b"blob %d\0" % len(evaluation.before[path]) + evaluation.before[path]).hexdigest()
        assert found[path]["expected"] == blob
        assert found[path]["found"] not in (blob, None)
        assert found[path]["image_path"] == f"/{in_image(path)}"
        assert path in refused.err
    assert not out.exists()


def test_c2_neighbouring_default_that_changed_is_shown_in_both_versions(
    prepared: Overlay, small_base: Base, evaluation: Evaluation, wheel: Callable[[str], Path]
) -> None:
    line = next(line for line in evaluation.before[TOUCHED].splitlines() if b"EnvBool(False)" in line)
    changed = line.replace(b"EnvBool(False)", b"EnvBool(True)")
    other = {TOUCHED: evaluation.before[TOUCHED].replace(line, changed, 1)}
    refused = build(prepared, changed_base(small_base, other, "default"), wheel("0.5.20"), "--dry-run").check(
        5
    )
    assert f"-{line.decode()}" in refused.err
    assert f"+{changed.decode()}" in refused.err


def package_wheel(directory: Path, name: str, contents: dict[str, bytes]) -> Path:
    """A release wheel of a package of the test's own."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9.9\n".encode()
    wheel = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    info = f"{name}-9.9.9.dist-info"
    every = contents | {f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel, f"{info}/RECORD": b""}
    path = directory / f"{name}-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in every.items():
            archive.writestr(member, data)
    return path


def test_c3_second_package_is_patched_in_its_own_root_with_name_and_version(
    prepared: Overlay, small_base: Base, wheel: Callable[[str], Path], tmp_path: Path
) -> None:
    source = b"def f():\n    return 2\n"
    contents = {"demopackage/__init__.py": b"", "demopackage/kernels.py": source}
    package = package_wheel(tmp_path, "demopackage", contents)
    metadata = b"Metadata-Version: 2.1\nName: demopackage\nVersion: 9.9.9\n"
    there = contents | {"demopackage-9.9.9.dist-info/METADATA": metadata}
    base = with_layer(small_base, "two", *(file(f"{SITE}/{path}", data) for path, data in there.items()))
    diff = b"""diff --git a/site-packages/demopackage/kernels.py b/site-packages/demopackage/kernels.py
--- a/site-packages/demopackage/kernels.py
+++ b/site-packages/demopackage/kernels.py
@@ -1,2 +1,2 @@
 def f():
-    return 2
+    return 3
"""
    add_overlay(prepared, "two-packages", {"demo": mail("Return three", diff)})
    spec = prepared.directory / "overlays" / "two-packages.yaml"
    pin = f"{{requirement: demopackage==9.9.9, sha256: {hashlib.sha256(package.read_bytes()).hexdigest()}}}"
    text = spec.read_text().replace("\nbase:", f"  packages:\n    demopackage: {pin}\n\nbase:")
    roots = "    python/sglang: auto\n    site-packages/demopackage: auto\n"
    spec.write_text(text.replace("    python/sglang: auto\n", roots))
    offline = prepared.with_environment(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    out = tmp_path / "out"
    run = build(offline, base, wheel("0.5.20"), "--output", f"oci:{out}", name="two-packages").check()
    manifest = run.json["images"][0]["manifest"]
    (root,) = (root for root in manifest["roots"] if root["path"] == "site-packages/demopackage")
    assert (root["image_path"], root["distribution"], root["version"]) == (
        f"/{SITE}/demopackage",
        "demopackage",
        "9.9.9",
    )
    top = Layout(out).image(Layout(out).single()).layers[-1].descriptor["digest"]
    assert files_of_layer(Layout(out), top)[f"{SITE}/demopackage/kernels.py"] == source.replace(b"2", b"3")
    other = with_layer(base, "other", file(f"{SITE}/demopackage/kernels.py", b"def f():\n    return 4\n"))
    refused = build(offline, other, wheel("0.5.20"), "--dry-run", name="two-packages").check(5)
    assert "site-packages/demopackage/kernels.py" in refused.err


def test_c5_whole_file_from_an_older_tree_is_refused(
    prepared: Overlay,
    small_base: Base,
    upstream_repository: Path,
    run_git: Git,
    wheel: Callable[[str], Path],
) -> None:
    """The patch replaces every line, but of a file that the pinned release has not."""
    older = (
        (upstream_repository / TOUCHED)
        .read_bytes()
        .replace(b"import", b"import ", 1)
        .splitlines(keepends=True)
    )
    lines = b"".join(b"-" + line for line in older)
    diff = b"diff --git a/%b b/%b\n--- a/%b\n+++ b/%b\n" % ((TOUCHED.encode(),) * 4)
    diff += b"@@ -1,%d +1,1 @@\n" % len(older) + lines + b"+x = 1\n"
    add_overlay(prepared, "whole-file", {"whole": mail("Replace the file", diff)})
    refused = build(prepared, small_base, wheel("0.5.20"), "--dry-run", name="whole-file").check(3)
    assert "whole" in refused.err
    assert TOUCHED in refused.err


def test_c6_file_that_upstream_moved_is_not_followed_by_a_build(
    prepared: Overlay,
    small_base: Base,
    upstream_repository: Path,
    run_git: Git,
    wheel: Callable[[str], Path],
) -> None:
    path = upstream_repository / TOUCHED

    def edit() -> None:
        path.write_bytes(path.read_bytes() + b"MOVED = 1\n")

    before_the_move = TOUCHED.replace("/srt/", "/srt/old/")
    diff = diff_of(upstream_repository, run_git, edit).replace(TOUCHED.encode(), before_the_move.encode())
    add_overlay(prepared, "moved", {"moved": mail("Add a line", diff)})
    refused = build(prepared, small_base, wheel("0.5.20"), "--dry-run", name="moved").check(3)
    assert before_the_move in refused.err


def test_c7_file_that_is_gone_is_an_error_that_names_patch_and_file(
    prepared: Overlay, small_base: Base, wheel: Callable[[str], Path]
) -> None:
    diff = b"""diff --git a/python/sglang/gone.py b/python/sglang/gone.py
--- a/python/sglang/gone.py
+++ b/python/sglang/gone.py
@@ -1 +1 @@
-a = 1
+a = 2
"""
    add_overlay(prepared, "gone", {"to-what-is-gone": mail("Change it", diff)})
    refused = build(prepared, small_base, wheel("0.5.20"), "--dry-run", name="gone").check(3)
    assert "to-what-is-gone" in refused.err
    assert "python/sglang/gone.py" in refused.err


def test_c8_of_two_copies_the_imported_one_is_patched_and_the_other_named(
    prepared: Overlay, small_base: Base, evaluation: Evaluation, wheel: Callable[[str], Path], tmp_path: Path
) -> None:
    copy = {f"{SITE}/sglang/__init__.py": b""} | {
        f"{SITE}/{path.removeprefix('python/')}": data for path, data in evaluation.before.items()
    }
    base = with_layer(small_base, "twice", *(file(path, data) for path, data in copy.items()))
    out = tmp_path / "out"
    run = build(prepared, base, wheel("0.5.20"), "--output", f"oci:{out}").check()
    top = Layout(out).image(Layout(out).single()).layers[-1].descriptor["digest"]
    patched = set(files_of_layer(Layout(out), top))
    assert f"{SITE}/{TOUCHED.removeprefix('python/')}" in patched, "site-packages come before .pth files"
    assert in_image(TOUCHED) not in patched
    assert f"/{SOURCES}/sglang" in run.err
    assert "twice" in run.err


def test_c9_local_edits_of_the_images_maker_are_shown_as_a_diff(
    prepared: Overlay, small_base: Base, evaluation: Evaluation, wheel: Callable[[str], Path]
) -> None:
    edited = evaluation.before[TOUCHED] + b"LOCAL_EDIT = True\n"
    base = changed_base(small_base, {TOUCHED: edited}, "edited")
    refused = build(prepared, base, wheel("0.5.20"), "--dry-run").check(5)
    assert f"--- upstream/{TOUCHED}" in refused.err
    assert f"+++ image/{in_image(TOUCHED)}" in refused.err
    assert "+LOCAL_EDIT = True" in refused.err


CONSTANTS = "python/sglang/srt/constants.py"  # imports nothing, so that it runs by itself


def compiled(directory: Path, source: bytes, mode: str) -> Path:
    """A module, compiled: with the time that the layer's files will have."""
    import py_compile

    directory.mkdir()
    path = directory / "constants.py"
    path.write_bytes(source)
    os.utime(path, (SPEC_TIME, SPEC_TIME))
    kind = getattr(py_compile.PycInvalidationMode, mode)
    return Path(str(py_compile.compile(str(path), invalidation_mode=kind, doraise=True)))


@pytest.mark.parametrize("mode", ["TIMESTAMP", "UNCHECKED_HASH"])
def test_f1_python_runs_the_patched_value_whatever_bytecode_the_base_has(
    prepared: Overlay,
    small_base: Base,
    upstream_repository: Path,
    run_git: Git,
    wheel: Callable[[str], Path],
    tmp_path: Path,
    mode: str,
) -> None:
    """The patch keeps the file's size, the layer's time is the bytecode's: plain Python would run the old."""
    path = upstream_repository / CONSTANTS
    source = path.read_bytes()
    patched = source.replace(b'= "HEALTH_CHECK"', b'= "HEALTH_PATCH"')
    assert len(patched) == len(source)
    assert patched != source
    diff = diff_of(upstream_repository, run_git, lambda: path.write_bytes(patched))
    add_overlay(prepared, "value", {"value": mail("Another value", diff)})
    stale = compiled(tmp_path / "compiled", source, mode).read_bytes()
    pyc = in_image(CONSTANTS).replace("constants.py", "__pycache__/constants.cpython-311.pyc")
    base = with_layer(small_base, "compiled", file(pyc, stale, mtime=SPEC_TIME))
    out = tmp_path / "out"
    build(prepared, base, wheel("0.5.20"), "--output", f"oci:{out}", name="value").check()
    layout = Layout(out)
    top = layout.path(layout.image(layout.single()).layers[-1].descriptor["digest"])
    container = tmp_path / "container"
    cache = container / "__pycache__" / f"constants.{sys.implementation.cache_tag}.pyc"
    cache.parent.mkdir(parents=True)
    cache.write_bytes(stale)
    with tarfile.open(top) as tar:
        unpack(tar, in_image(CONSTANTS), container / "constants.py")
        assert value_run_in(container) == "HEALTH_CHECK", "left alone, the base's bytecode runs"
        unpack(tar, pyc, cache)
    assert value_run_in(container) == "HEALTH_PATCH"


def unpack(tar: tarfile.TarFile, name: str, path: Path) -> None:
    info = tar.getmember(name)
    content = tar.extractfile(info)
    assert content
    path.write_bytes(content.read())
    os.utime(path, (info.mtime, info.mtime))


def value_run_in(directory: Path) -> str:
    command = [sys.executable, "-B", "-c", "import constants; print(constants.HEALTH_CHECK_RID_PREFIX)"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout.strip()


def test_f6_tree_of_another_user_keeps_its_owner_and_no_git_is_asked(
    prepared: Overlay, small_base: Base, evaluation: Evaluation, wheel: Callable[[str], Path], tmp_path: Path
) -> None:
    """git itself would refuse the tree for its "dubious ownership"; here its repository is not even valid."""

    def owned(path: str, data: bytes) -> Callable[[tarfile.TarFile], None]:
        def add(tar: tarfile.TarFile) -> None:
            info = tarfile.TarInfo(path)
            info.size, info.uid, info.gid, info.mode = len(data), 1234, 5678, 0o664
            tar.addfile(info, io.BytesIO(data))

        return add

    mine = [owned(in_image(path), data) for path, data in evaluation.before.items()]
    broken = owned("sgl-workspace/sglang/.git/config", b"[this is not configuration")
    base = with_layer(small_base, "owned", *mine, broken)
    out = tmp_path / "out"
    build(prepared, base, wheel("0.5.20"), "--output", f"oci:{out}").check()
    layout = Layout(out)
    with tarfile.open(layout.path(layout.image(layout.single()).layers[-1].descriptor["digest"])) as tar:
        owners = {entry.name: (entry.uid, entry.gid, entry.mode) for entry in tar if entry.isfile()}
    for path in evaluation.before:
        assert owners[in_image(path)] == (1234, 5678, 0o664)
