"""Nothing that changes what runs goes unsaid: verify, on a world in miniature."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.projects.history import DEMO, P0_AFTER, P0_BEFORE
from tests.projects.image import CONFIG, MANIFEST, SYSTEM, TREE, ImageProject, Layout, digest_of, layer, patch

PACKAGE = f"{TREE}/sglang"
OTHERS = {f"{PACKAGE}/srt/server_args.py": b"x = 1\n", f"{PACKAGE}/srt/data.json": b"{}\n"}
RECORD = "usr/share/sglang-overlay/manifest.json"
NOBODY = "nothing outside this image vouches for it: --against LOCK or --key"
BASE_CONFIG = {
    "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "OF_BASE=1"],
    "WorkingDir": "/",
    "Entrypoint": ["/entry"],
    "Cmd": ["serve"],
    "Labels": {"of.base": "yes"},
}


@dataclass
class Built:
    """An image in a layout, with the base that it names."""

    world: ImageProject
    base: str
    out: Layout

    def image(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Manifest and config."""
        manifest = json.loads(self.out.blob(self.out.entry()).read_bytes())
        return manifest, json.loads(self.out.blob(manifest["config"]["digest"]).read_bytes())

    def put(self, manifest: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Another image in the place of the one that is tagged."""
        data = json.dumps(config).encode()
        entry = self.out.put(
            json.dumps({**manifest, "config": self.out.put(data, CONFIG)}).encode(), MANIFEST
        )
        self.out.tag([{**entry, "annotations": {"org.opencontainers.image.ref.name": "new"}}])

    def with_config(self, **settings: Any) -> None:
        manifest, config = self.image()
        self.put(manifest, {**config, "config": {**config["config"], **settings}})

    def with_environment(self, *more: str) -> None:
        self.with_config(Env=[*self.image()[1]["config"]["Env"], *more])

    def with_layer(self, contents: Any) -> None:
        """A later layer over the image."""
        manifest, config = self.image()
        data, diff_id = layer(contents)
        layers = [*manifest["layers"], self.out.put(data, manifest["layers"][-1]["mediaType"])]
        rootfs = {**config["rootfs"], "diff_ids": [*config["rootfs"]["diff_ids"], diff_id]}
        history = [*config["history"], {"created_by": "later"}]
        self.put({**manifest, "layers": layers}, {**config, "rootfs": rootfs, "history": history})

    def verify(self, *options: object) -> Run:
        return self.world.overlay(
            "verify", f"oci:{self.out.path}:new", "--base", self.base, "--json", *options
        )

    def deviations(self, *options: object) -> list[tuple[str, str]]:
        found = self.verify(*options).check(5).json["error"]["deviations"]
        return [(one["kind"], one["where"]) for one in found]

    def notes(self, *options: object) -> list[str]:
        return list(self.verify(*options).check().json["notes"])


@pytest.fixture
def world(tmp_path: Path) -> ImageProject:
    return ImageProject.create(tmp_path)


def build(world: ImageProject, more: Mapping[str, bytes] = OTHERS, **config: Any) -> Built:
    layout = Layout.create(world.directory / "base")
    files = [layer({**SYSTEM, **more}), layer({f"{TREE}/sglang/demo.py": P0_BEFORE})]
    layout.put_image(files, config={"config": BASE_CONFIG | config})
    world.overlay(*world.build(layout.reference, "--complete")).check()
    return Built(world, layout.reference, Layout(world.directory / "out"))


@pytest.fixture
def built(world: ImageProject) -> Built:
    return build(world)


def test_an_image_as_it_was_built_has_nothing_to_say(built: Built) -> None:
    result = built.verify().check().json
    assert (result["deviations"], result["notes"], result["declared"]) == ([], [], [])
    assert result["files"] == 1
    assert result["compared"] == len(OTHERS) + 1


# --- config -------------------------------------------------------------------------------------------------

SETTINGS: Mapping[str, object] = {
    "Entrypoint": ["/bin/other"],
    "Cmd": ["other"],
    "User": "1000",
    "WorkingDir": "/tmp",
    "Volumes": {"/data": {}},
    "OnBuild": ["RUN other"],
    "Healthcheck": {"Test": ["CMD", "other"]},
    "StopSignal": "SIGKILL",
}


@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_that_nobody_declared(built: Built, key: str) -> None:
    built.with_config(**{key: SETTINGS[key]})
    assert built.deviations() == [("config", key)]
    allowed = built.verify("--allow-config", key).check().json["allowed"]
    assert [one["where"] for one in allowed] == [key]


def test_a_variable_that_nobody_declared_is_named_and_its_value_never_shown(built: Built) -> None:
    built.with_environment("SGLANG_X=5e6c12e7")
    run = built.verify().check(5)
    (deviation,) = run.json["error"]["deviations"]
    assert (deviation["kind"], deviation["where"]) == ("config", "SGLANG_X")
    text = built.world.overlay("verify", f"oci:{built.out.path}:new", "--base", built.base).check(5)
    assert "5e6c12e7" not in run.out + run.err + text.out + text.err
    built.verify("--allow-config", "SGLANG_X").check()


def test_a_variable_of_the_base_with_another_value_or_none(built: Built) -> None:
    built.with_config(Env=["PATH=/usr/local/bin:/usr/bin:/bin", "OF_BASE=5e6c12e7"])
    run = built.verify().check(5)
    assert [one["where"] for one in run.json["error"]["deviations"]] == ["OF_BASE"]
    assert "5e6c12e7" not in run.out + run.err
    built.with_config(Env=["PATH=/usr/local/bin:/usr/bin:/bin"])
    assert built.deviations() == [("config", "OF_BASE")]


def test_a_variable_that_is_there_twice(built: Built) -> None:
    """Which of them counts is the engine's affair."""
    built.with_config(Env=["OF_BASE=0", *built.image()[1]["config"]["Env"]])
    assert built.deviations() == [("config", "OF_BASE")]


def test_labels_and_annotations_beside_the_record(built: Built) -> None:
    labels = built.image()[1]["config"]["Labels"]
    built.with_config(Labels={**labels, "more": "x", "of.base": "no"})
    manifest, config = built.image()
    built.put({**manifest, "annotations": {**manifest["annotations"], "another": "x"}}, config)
    assert built.deviations() == [("config", "more"), ("config", "of.base"), ("config", "another")]
    keys = ("more", "of.base", "another")
    built.verify(*(word for key in keys for word in ("--allow-config", key))).check()


def test_what_spec_and_template_declare_is_listed_and_no_deviation(world: ImageProject) -> None:
    world.write_spec(more="environment: {SGLANG_X: '0'}\n")
    template = world.root / "Dockerfile.in"
    template.write_text(template.read_text() + 'LABEL own="x"\nENV OWN=1\n')
    built = build(world)
    result = built.verify().check().json
    assert result["declared"] == ["OWN=1", "SGLANG_X=0", "label own"]
    assert result["deviations"] == []
    built.with_environment("SGLANG_X=1")
    assert ("config", "SGLANG_X") in built.deviations()


def older(built: Built) -> None:
    """The image as a tool made it that recorded neither environment nor entry point."""
    forge(
        built, lambda record: {key: record[key] for key in record if key not in ("environment", "entrypoint")}
    )


def test_an_image_of_an_older_tool_gets_a_note(world: ImageProject) -> None:
    world.write_spec(more="environment: {SGLANG_X: '0'}\n")
    built = build(world)
    older(built)
    (note,) = built.notes()
    assert "older overlay" in note
    assert note.endswith("SGLANG_X")
    built.with_config(Env=built.image()[1]["config"]["Env"][:-1])
    assert built.notes() == []


def test_two_images_are_compared_in_what_they_are_started_with(world: ImageProject) -> None:
    built = build(world)
    other = Built(world, built.base, Layout(world.directory / "other"))
    shutil.copytree(built.out.path, other.out.path)
    names = (f"oci:{built.out.path}:new", f"oci:{other.out.path}:new")
    compare = ("verify", *names, "--base", built.base, "--json")
    world.overlay(*compare).check()
    built.with_environment("SGLANG_X=0")
    other.with_environment("PYTHONPATH=/else")
    error = world.overlay(*compare).check(5).json["error"]
    assert {one["where"] for one in error["deviations"]} == {"SGLANG_X", "PYTHONPATH"}
    assert any("differs between" in one["what"] for one in error["deviations"])
    world.overlay(*compare, "--allow-config", "SGLANG_X", "--allow-config", "PYTHONPATH").check()


def test_two_images_with_another_value_of_a_variable_that_is_allowed_in_each(world: ImageProject) -> None:
    built = build(world)
    other = Built(world, built.base, Layout(world.directory / "other"))
    shutil.copytree(built.out.path, other.out.path)
    built.with_environment("SGLANG_X=0")
    other.with_environment("SGLANG_X=1")
    names = (f"oci:{built.out.path}:new", f"oci:{other.out.path}:new")
    error = world.overlay("verify", *names, "--base", built.base, "--json").check(5).json["error"]
    assert any("differs between" in one["what"] for one in error["deviations"])


# --- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "data", "kind"),
    [
        (f"{PACKAGE}/srt/server_args.py", b"x = 2\n", "package"),
        (f"{PACKAGE}/srt/data.json", b"[]\n", "package"),
        (f"{PACKAGE}/srt/.wh.server_args.py", b"", "package"),
        (f"{PACKAGE}/srt/new.py", b"", "package"),
        (f"{PACKAGE}/srt/new.pyc", b"", "package"),
        (f"{PACKAGE}/new/deep/down.py", b"", "package"),
        (f"{PACKAGE}/srt.abi3.so", b"", "package"),
        (f"{PACKAGE}/.wh.srt", b"", "package"),
        (f"{PACKAGE}/demo.py", P0_BEFORE, "file"),
    ],
)
def test_what_a_later_layer_puts_over_the_package(built: Built, path: str, data: bytes, kind: str) -> None:
    built.with_layer({path: data})
    (found,) = built.deviations()
    assert found[0] == kind
    assert f"/{path.replace('.wh.', '')}".startswith(found[1])
    allowed = built.verify("--allow-over", f"/{PACKAGE}").check().json
    assert [one["where"] for one in allowed["allowed"]] == [found[1]]
    assert built.deviations("--allow-over", f"/{PACKAGE}/elsewhere") == [found]


@pytest.mark.parametrize("place", [f"/{PACKAGE}/srt/", f"{PACKAGE}/srt", f"//{PACKAGE}/./srt/data.json", "/"])
def test_a_place_is_named_in_any_way(built: Built, place: str) -> None:
    built.with_layer({f"{PACKAGE}/srt/data.json": b"[]\n"})
    result = built.verify("--allow-over", place).check().json
    assert len(result["allowed"]) == 1
    assert not [note for note in result["notes"] if note.startswith("--")]


def test_what_is_allowed_and_is_not_there_is_a_note(built: Built) -> None:
    built.with_layer({f"{PACKAGE}/srt/data.json": b"[]\n"})
    options = ("--allow-over", f"/{PACKAGE}/srt", "--allow-over", "/typo", "--allow-config", "TYPO")
    assert [note.partition(":")[0] for note in built.notes(*options) if note.startswith("--")] == [
        "--allow-over /typo",
        "--allow-config TYPO",
    ]
    image = f"oci:{built.out.path}:new"
    words = ("verify", image, image, "--base", built.base, "--json", *options)
    assert [note for note in built.world.overlay(*words).check().json["notes"] if note.startswith("--")]


def test_a_large_file_that_a_later_layer_puts_over_the_bases(world: ImageProject) -> None:
    """Nobody hashed it, and its size is the base's: it is not taken for the same."""
    path = f"{PACKAGE}/srt/kernels.bin"
    built = build(world, {**OTHERS, path: bytes(5 << 20)})
    built.verify().check()
    built.with_layer({path: b"x" * (5 << 20)})
    assert built.deviations() == [("package", f"/{path}")]


def test_files_of_the_overlays_own_layer_that_no_patch_touches(built: Built) -> None:
    """Not a later layer: the overlay's own was replaced, with its record as it was."""
    contents = {
        f"{PACKAGE}/demo.py": P0_AFTER,
        RECORD: record_of(built),
        f"{PACKAGE}/__init__.py": b"evil()\n",
    }
    replace_top(built, contents)
    found = built.deviations()
    assert ("package", f"/{PACKAGE}/__init__.py") in found


def test_a_mode_of_a_file_that_no_patch_touches(built: Built) -> None:
    import io
    import tarfile

    def write(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(f"{PACKAGE}/srt/server_args.py")
        info.size, info.mode = 6, 0o600
        tar.addfile(info, io.BytesIO(b"x = 1\n"))

    built.with_layer(write)
    assert built.deviations() == [("mode", f"/{PACKAGE}/srt/server_args.py")]


def test_a_link_in_the_place_of_a_file_or_a_directory(built: Built) -> None:
    import tarfile

    def write(tar: tarfile.TarFile) -> None:
        for name in ("srt/server_args.py", "srt/data.json"):
            info = tarfile.TarInfo(f"{PACKAGE}/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, "/elsewhere"
            tar.addfile(info)

    built.with_layer(write)
    assert {where for _, where in built.deviations()} == {f"/{path}" for path in OTHERS}


# --- what is imported ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["sglang.py", "sglang/__init__.py", "sglang.abi3.so", "usr/lib/python3.12/sglang.pyc"]
)
def test_what_is_put_before_the_package(built: Built, path: str) -> None:
    """In the working directory, which python3 -m looks into first, or in the library."""
    built.with_layer({path: b""})
    assert set(built.deviations()) == {("shadow", f"/{PACKAGE}")}


def test_code_that_runs_at_the_start_is_a_note(built: Built) -> None:
    built.with_layer({"usr/lib/python3.12/sitecustomize.py": b"evil()\n"})
    assert any(note.startswith("/usr/lib/python3.12/sitecustomize.py: ") for note in built.notes())


# --- bytecode -----------------------------------------------------------------------------------------------


def bytecode(source: bytes, path: str, of: bytes | None = None) -> tuple[str, bytes]:
    """The path and bytes of what this Python compiles of ``of`` for a source."""
    import importlib.util
    import marshal
    import struct
    import sys

    code = compile(source if of is None else of, f"/{path}", "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, 0, len(source))
    directory, _, name = path.rpartition("/")
    tag = sys.implementation.cache_tag
    return f"{directory}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc", head + marshal.dumps(code)


@pytest.mark.parametrize("name", ["demo.py", "srt/server_args.py"])
def test_bytecode_that_is_what_the_source_gives_is_no_deviation(built: Built, name: str) -> None:
    path = f"{PACKAGE}/{name}"
    source = P0_AFTER if name == "demo.py" else OTHERS[path]
    mtime_of = {"demo.py": 1769817600}.get(name, 0)
    where, data = bytecode(source, path)
    data = data[:8] + mtime_of.to_bytes(4, "little") + data[12:]
    built.with_layer({where: data})
    assert built.notes() == ["2 layers lie over the base; the embedded engine adds one"]
    where, other = bytecode(source, path, b"evil = 1\n")
    built.with_layer({where: data[:16] + other[16:]})
    assert built.deviations() == [("bytecode", f"/{where}")]


def test_bytecode_that_python_would_not_take_is_no_deviation(built: Built) -> None:
    where, data = bytecode(b"y\n", f"{PACKAGE}/srt/server_args.py")
    built.with_layer({where: data[:8] + b"\1\1\1\1" + data[12:]})
    built.verify().check()


def test_bytecode_of_a_python_that_is_not_here_is_a_deviation_in_an_image(built: Built) -> None:
    where, data = bytecode(b"x = 1\n", f"{PACKAGE}/srt/server_args.py")
    import sys

    where = where.replace(str(sys.implementation.cache_tag), "cpython-399")
    built.with_layer({where: data})
    assert built.deviations() == [("bytecode", f"/{where}")]


# --- forgeries ----------------------------------------------------------------------------------------------


def record_of(built: Built) -> bytes:
    import io
    import tarfile

    top = built.out.blob(built.image()[0]["layers"][-1]["digest"]).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(top)) as tar:
        member = tar.extractfile(RECORD)
        assert member
        return member.read()


def replace_top(built: Built, contents: Mapping[str, bytes]) -> None:
    """The image with another layer in the place of the overlay's own."""
    manifest, config = built.image()
    data, diff_id = layer(contents)
    layers = [*manifest["layers"][:-1], built.out.put(data, manifest["layers"][-1]["mediaType"])]
    rootfs = {**config["rootfs"], "diff_ids": [*config["rootfs"]["diff_ids"][:-1], diff_id]}
    built.put({**manifest, "layers": layers}, {**config, "rootfs": rootfs})


def forge(built: Built, change: Callable[[Any], Any], demo: bytes = P0_AFTER) -> None:
    """A forgery that is consistent with itself: file, manifest, labels and annotations rewritten."""
    record = change(json.loads(record_of(built)))
    data = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    replace_top(built, {f"{PACKAGE}/demo.py": demo, RECORD: data})
    manifest, config = built.image()
    said = {
        "dev.sglang-overlay.manifest": digest_of(data),
        "dev.sglang-overlay.patchset": record["patchset"],
    }
    config["config"]["Labels"] |= said
    built.put({**manifest, "annotations": manifest["annotations"] | said}, config)


EVIL = P0_AFTER.replace(b"b = 3", b"b = 4")


def with_evil(record: Any) -> Any:
    blob = hashlib.sha1(b"blob %d\0" % len(EVIL) + EVIL, usedforsecurity=False)
    post = {"blob": blob.hexdigest(), "sha256": hashlib.sha256(EVIL).hexdigest()}
    record["patches"][0]["files"][0]["post"] = post
    record["patched_tree"] = tree({DEMO: EVIL})
    return record


def tree(files: Mapping[str, bytes]) -> str:
    """git's id of a tree, asked of git."""
    import tempfile

    from tests.projects.trees import plain_git

    with tempfile.TemporaryDirectory() as directory:
        plain_git("init", "--quiet", cwd=Path(directory))
        for path, data in files.items():
            (Path(directory) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(directory) / path).write_bytes(data)
        plain_git("add", ".", cwd=Path(directory))
        return plain_git("write-tree", cwd=Path(directory)).decode().strip()


def test_a_forgery_that_agrees_with_itself_is_found_by_the_checkouts_patches(built: Built) -> None:
    forge(built, with_evil, EVIL)
    assert built.deviations() == [("file", f"/{PACKAGE}/demo.py")]


def test_of_a_forgery_without_the_patches_it_is_said_that_nobody_vouches(built: Built) -> None:
    """The checkout has another patch of that name; only the image itself speaks for it."""
    patches = built.world.root / "patches/one/p0.patch"
    patches.write_bytes(patch(after=P0_AFTER.replace(b"b = 3", b"b = 3  # three")))
    assert NOBODY in built.notes()
    forge(built, with_evil, EVIL)
    assert NOBODY in built.notes()
    assert "label" not in str(built.deviations("--against", built.world.lock))
    assert NOBODY not in built.verify("--against", built.world.lock).json["error"]["notes"]


def test_the_tree_of_the_patched_files_is_recomputed(built: Built) -> None:
    forge(built, lambda record: {**record, "patched_tree": "0" * 40})
    assert built.deviations() == [("manifest", "patched_tree")]
    forge(built, lambda record: {**with_tree(record), "patched_tree": "0" * 40})
    assert built.deviations() == [("manifest", "upstream.tree")]


def with_tree(record: Any) -> Any:
    return {**record, "upstream": {**record["upstream"], "tree": "0" * 40}}


def test_words_of_a_patch_that_are_not_its_own(built: Built) -> None:
    def change(record: Any) -> Any:
        record["patches"][0]["subject"] = "another"
        return record

    forge(built, change)
    assert built.deviations() == [("manifest", "patches: p0: subject")]


# --- copies -------------------------------------------------------------------------------------------------


def test_a_copy_with_the_same_image_id_is_repacked_and_no_tampering(built: Built) -> None:
    """As docker save and skopeo make it: the same config, other blobs, no annotations."""
    import gzip

    manifest, digest = built.image()[0], built.out.entry()
    layers = []
    for one in manifest["layers"]:
        data = gzip.decompress(built.out.blob(one["digest"]).read_bytes())
        layers.append(built.out.put(gzip.compress(data, 1, mtime=1), one["mediaType"]))
    copy = {key: manifest[key] for key in manifest if key != "annotations"} | {"layers": layers}
    entry = built.out.put(json.dumps(copy).encode(), MANIFEST)
    built.out.tag([{**entry, "annotations": {"org.opencontainers.image.ref.name": "new"}}])
    notes = built.notes("--against", built.world.lock)
    assert any(note.startswith("same image ID, repacked") and digest in note for note in notes)
    built.with_config(User="1000")
    found = built.deviations("--against", built.world.lock)
    assert ("lock", "images: linux/amd64: digest") in found


# --- ranks --------------------------------------------------------------------------------------------------


def test_what_launch_sets_is_what_verify_expects_of_a_rank() -> None:
    """The two must not drift apart: every variable, the command and the health check of a rank."""
    from builder.launch.arguments import Arguments
    from builder.launch.docker import container_options
    from builder.launch.nodes import read_nodes
    from builder.launch.server import Server, rank_settings

    expected = rank_settings()
    arguments = Arguments({"--model-path": ("/model",), "--api-key": ("5e6c12e7",)})
    server = Server("demo", "registry.example/demo@sha256:" + "0" * 64, "sha256:" + "0" * 64, arguments)
    for rank in server.ranks(read_nodes(["10.0.0.1", "10.0.0.2"], ["enp1s0f0np0"])):
        for name, value in {**rank.environment, **rank.pins}.items():
            assert expected.sets(name, value), name
        assert expected.starts(rank.command)
        shell = next(words[1] for words in container_options(rank) if words[0] == "--health-cmd")
        for test in (["CMD-SHELL", shell], ["CMD", *rank.health]):
            assert expected.asks(json.dumps({"Test": test, "Interval": 30})), test
    assert not expected.sets("TRITON_CACHE_DIR", "/else")
    assert not expected.sets("PYTHONPATH", "/else")
    assert not expected.starts(("python3", "-m", "other"))
    assert not expected.asks(json.dumps({"Test": ["CMD-SHELL", shell + "; evil"]}))
    assert not expected.asks("")


def test_a_command_is_shown_without_what_sounds_like_a_secret() -> None:
    from builder.verify.config import shown

    assert (
        shown(("serve", "--api-key", "5e6c", "--port", "1", "--token=5e6c"))
        == "serve --api-key … --port 1 --token=…"
    )
