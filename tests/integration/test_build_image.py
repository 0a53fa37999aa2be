"""An image that others' tools accept, with every patched file in it, and nothing else changed."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Overlay, Run
from tests.integration.bases import Base
from tests.integration.conftest import Engine, PushedBase, Registry, with_sources
from tests.integration.judge import MANIFEST, OVERLAY, Evaluation, flattened, in_image
from tests.integration.layouts import Layout, files_of_layer

# What a new image says of itself, whatever the base's says (`base.*` is said by bases that have a base).
REPLACED_LABELS = (
    "base.name",
    "base.digest",
    "revision",
    "source",
    "version",
    "created",
    "title",
    "description",
)


def build(overlay: Overlay, base: str, wheel: Path, *options: object) -> Run:
    return overlay("build", OVERLAY, "--base", base, "--wheel", wheel, "--json", *options).check()


@pytest.fixture(scope="module")
def built(
    heavy: PushedBase,
    wheel: Callable[[str], Path],
    sources_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """The overlay on a base of 120 MB, pushed beside it; its reference by digest."""
    overlay = with_sources(Overlay.prepare(tmp_path_factory.mktemp("built")), sources_cache)
    target = heavy.reference.partition("@")[0] + "-patched:built"
    run = build(overlay, heavy.reference, wheel("0.5.20"), "--push", target)
    return f"{target.rpartition(':')[0]}@{run.json['digest']}"


@contextmanager
def container(engine: Engine, image: str) -> Iterator[str]:
    """A container of ``image`` that is never started; its id."""
    name = engine.cli("create", image, "true").strip()
    try:
        yield name
    finally:
        engine.cli("rm", "--force", name)


def copied_out(engine: Engine, name: str, path: str) -> bytes:
    command = [engine.client, "--host", engine.host, "cp", f"{name}:/{path}", "-"]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        (entry,) = tar.getmembers()
        file = tar.extractfile(entry)
        assert file
        return file.read()


def test_docker_pulls_it_and_every_patched_file_has_its_post_image(
    built: str, docker_engine: Engine, evaluation: Evaluation
) -> None:
    docker_engine.cli("pull", "--quiet", built)
    with container(docker_engine, built) as name:
        found = {path: copied_out(docker_engine, name, in_image(path)) for path in evaluation.after}
    assert found == evaluation.after
    assert len(found) >= 5


def test_skopeo_copies_it_to_a_layout(built: str, skopeo: Callable[..., str], tmp_path: Path) -> None:
    skopeo("copy", f"docker://{built}", f"oci:{tmp_path / 'layout'}:copied")
    assert Layout(tmp_path / "layout").single() == built.partition("@")[2]


def test_buildah_pulls_it(built: str, buildah: Callable[..., str]) -> None:
    pulled = buildah("pull", "--quiet", "--tls-verify=false", f"docker://{built}").strip()
    inspected = json.loads(buildah("inspect", "--type", "image", pulled))
    assert inspected["FromImageDigest"] == built.partition("@")[2]


def test_base_layers_and_config_stay_as_they_are(
    built: str, heavy: PushedBase, skopeo: Callable[..., str]
) -> None:
    manifest = json.loads(skopeo("inspect", "--raw", f"docker://{built}"))
    config = json.loads(skopeo("inspect", "--config", "--raw", f"docker://{built}"))
    base = heavy.base.layout.image(heavy.base.digest)
    assert manifest["layers"][:-1] == base.manifest["layers"]
    assert config["rootfs"]["diff_ids"][:-1] == base.config["rootfs"]["diff_ids"]
    assert manifest["mediaType"] == base.manifest["mediaType"]
    ours, theirs = dict(config["config"]), dict(base.config["config"])
    labels, base_labels = ours.pop("Labels"), theirs.pop("Labels")
    of_the_new_image = {f"org.opencontainers.image.{name}" for name in REPLACED_LABELS}
    assert all(labels[key] == value for key, value in base_labels.items() if key not in of_the_new_image)
    assert labels["org.opencontainers.image.base.digest"] == heavy.base.digest
    assert labels["org.opencontainers.image.base.name"] == heavy.reference
    assert manifest["annotations"]["org.opencontainers.image.base.name"] == heavy.reference
    assert labels["dev.sglang-overlay.name"] == OVERLAY
    environment = ours.pop("Env")
    assert environment[: len(theirs["Env"])] == theirs.pop("Env")
    assert ours == theirs


def test_a_base_in_a_layout_has_no_name_that_others_could_pull(
    prepared: Overlay, small_base: Base, wheel: Callable[[str], Path], tmp_path: Path
) -> None:
    run = build(prepared, small_base.reference, wheel("0.5.20"), "--output", f"oci:{tmp_path / 'out'}")
    image = Layout(tmp_path / "out").image(run.json["digest"])
    for said in (image.config["config"]["Labels"], image.manifest["annotations"]):
        assert "org.opencontainers.image.base.name" not in said
        assert said["org.opencontainers.image.base.digest"] == small_base.digest
    prepared("verify", f"oci:{tmp_path / 'out'}", "--base", small_base.reference).check()


def test_nothing_else_differs_from_the_base(
    prepared: Overlay,
    small_base_pushed: str,
    wheel: Callable[[str], Path],
    registry: Registry,
    docker_engine: Engine,
    evaluation: Evaluation,
    tmp_path: Path,
) -> None:
    target = registry.repository("patched")
    digest = build(prepared, small_base_pushed, wheel("0.5.20"), "--push", f"{target}:new").json["digest"]
    before = exported(docker_engine, small_base_pushed, tmp_path / "before.tar")
    after = exported(docker_engine, f"{target}@{digest}", tmp_path / "after.tar")
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    parents = {str(parent) for parent in Path(MANIFEST).parents} - {"."}
    expected = {in_image(path) for path in evaluation.after} | {MANIFEST}
    assert changed - parents - emptied_bytecode(before, after) == expected
    assert not changed & parents & before.keys(), "a directory of the base was changed"
    for path in evaluation.before:
        kind, mode, *owner, _ = before[in_image(path)]
        assert after[in_image(path)][:-1] == (kind, mode, *owner), f"{path}: mode or owner"


def exported(engine: Engine, image: str, path: Path) -> dict[str, tuple[object, ...]]:
    engine.cli("pull", "--quiet", image)
    with container(engine, image) as name:
        engine.cli("export", "--output", str(path), name)
    return flattened(path)


def emptied_bytecode(before: dict[str, tuple[object, ...]], after: dict[str, tuple[object, ...]]) -> set[str]:
    """Bytecode of the base that is empty now: Python ignores it and compiles the patched source."""
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    return {path for path in before if path.endswith(".pyc") and after[path][-1] == empty != before[path][-1]}


def test_manifest_in_the_image_names_every_patched_file(
    prepared: Overlay, small_base: Base, wheel: Callable[[str], Path], evaluation: Evaluation, tmp_path: Path
) -> None:
    out = tmp_path / "image"
    build(prepared, small_base.reference, wheel("0.5.20"), "--output", f"oci:{out}")
    layout = Layout(out)
    top = layout.image(layout.single()).manifest["layers"][-1]
    contents = files_of_layer(layout, top["digest"])
    manifest = json.loads(contents[MANIFEST])
    named = {file["path"] for patch in manifest["patches"] for file in patch["files"]}
    assert named == evaluation.after.keys()
    for path, data in evaluation.after.items():
        assert contents[in_image(path)] == data
