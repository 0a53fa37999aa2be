"""``overlay bake``: a bake file as buildx reads it, and contexts that a BuildKit bakes the same from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Overlay
from tests.integration.conftest import Engine, Registry
from tests.integration.fleet import FleetBase, push_base, write_fleet
from tests.integration.judge import Evaluation, in_image
from tests.integration.test_build_image import container, copied_out

# The attributes of a target that buildx's Bake file reference lists, with the types they take.
STRINGS = {
    "context",
    "dockerfile",
    "dockerfile-inline",
    "target",
    "network",
    "shm-size",
    "call",
    "description",
}
LISTS = {
    *("annotations", "attest", "cache-from", "cache-to", "entitlements", "inherits", "no-cache-filter"),
    *("output", "platforms", "secret", "ssh", "tags", "ulimits"),
}
MAPS = {"args", "contexts", "labels", "extra-hosts"}
BOOLEANS = {"no-cache", "pull"}
NAME = re.compile(r"[a-zA-Z0-9_-]+")


@pytest.fixture
def base(prepared: Overlay, wheel: Callable[[str], Path], registry: Registry) -> FleetBase:
    return push_base(prepared, wheel("0.5.20"), registry.repository("base"))


def check_bake_file(document: dict[str, Any]) -> None:
    """As buildx does: what it does not know is an error there too."""
    assert document.keys() <= {"group", "target", "variable", "function"}
    for group in document["group"].values():
        assert group.keys() <= {"targets", "description"}
        assert set(group["targets"]) <= document["target"].keys()
    for name, target in document["target"].items():
        assert NAME.fullmatch(name), name
        for key, value in target.items():
            kinds = [(STRINGS, str), (LISTS, list), (MAPS, dict), (BOOLEANS, bool)]
            assert any(key in names and isinstance(value, kind) for names, kind in kinds), f"{name}: {key}"
        parts = [*target.get("annotations", ()), *target.get("tags", ()), *target["args"].values()]
        assert all(isinstance(part, str) for part in parts)
        assert not any(re.search(r"(?<!\$)\$\{|(?<!%)%\{", part) for part in parts), "HCL would expand it"
    assert not document["group"].keys() & document["target"].keys(), "a group would hide a target"


def test_each_context_bakes_the_files_that_a_build_has(
    prepared: Overlay,
    base: FleetBase,
    registry: Registry,
    docker_engine: Engine,
    evaluation: Evaluation,
    tmp_path: Path,
) -> None:
    (name,) = write_fleet(prepared, base, 1)
    target = registry.repository("patched")
    out = tmp_path / "bake"
    made = prepared("bake", "--output", out, "--push", target, "--json").check().json
    document = json.loads((out / "docker-bake.json").read_text())
    check_bake_file(document)
    assert document["group"]["default"]["targets"] == list(made["targets"])
    assert len(made["targets"]) == len(base.platforms)
    for described in document["target"].values():
        (tag,) = described["tags"]
        (platform,) = described["platforms"]
        options = ("--platform", platform, "--tag", tag, "--quiet", str(out / described["context"]))
        docker_engine.cli("build", *options)
        with container(docker_engine, tag) as created:
            found = {path: copied_out(docker_engine, created, in_image(path)) for path in evaluation.after}
        assert found == evaluation.after
        labels = json.loads(docker_engine.cli("image", "inspect", tag))[0]["Config"]["Labels"]
        said = dict(text.removeprefix("manifest:").split("=", 1) for text in described["annotations"])
        assert {key: labels[key] for key in said} == said
        assert labels["dev.sglang-overlay.name"] == name
        docker_engine.cli("image", "rm", "--force", tag)


def test_the_contexts_are_the_same_each_time(prepared: Overlay, base: FleetBase, tmp_path: Path) -> None:
    write_fleet(prepared, base, 2)
    trees = []
    for number in range(2):
        out = tmp_path / str(number)
        prepared("bake", "--output", out).check()
        files = sorted(path for path in out.rglob("*") if path.is_file())
        trees.append({str(f.relative_to(out)): (f.read_bytes(), f.stat().st_mode) for f in files})
        check_bake_file(json.loads((out / "docker-bake.json").read_text()))
    assert trees[0] == trees[1]
    assert sum(path.endswith("/Dockerfile") for path in trees[0]) == 4


def test_templates_of_hcl_in_labels_stay_text(prepared: Overlay, base: FleetBase, tmp_path: Path) -> None:
    (name,) = write_fleet(prepared, base, 1)
    path = prepared.directory / "overlays" / f"{name}.yaml"
    path.write_text(path.read_text() + "arguments: {--chat-template: 'a ${b} %{c}'}\n")
    prepared("bake", "--output", tmp_path / "bake", "--platform", "linux/amd64").check()
    document = json.loads((tmp_path / "bake" / "docker-bake.json").read_text())
    check_bake_file(document)
    assert "a $${b} %%{c}" in json.dumps(document)


def test_a_directory_with_something_in_it_is_left_alone(
    prepared: Overlay, base: FleetBase, tmp_path: Path
) -> None:
    write_fleet(prepared, base, 1)
    (tmp_path / "kept").write_text("kept")
    assert "not empty" in prepared("bake", "--output", tmp_path).check(1).err
    assert (tmp_path / "kept").read_text() == "kept"
    refused = prepared("bake", "--output", tmp_path / "new", "--platform", "linux/s390x").check(2)
    assert "nothing to bake" in refused.err
    assert "not for linux/s390x" in refused.err
    assert not (tmp_path / "new").exists()
