"""What was built can be held to: `--locked` names what drifted, `--check` what differs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Overlay, Run
from tests.integration.bases import Base, changed_base
from tests.integration.conftest import with_sources
from tests.integration.judge import OVERLAY


class Project:
    """A project whose lock was written by one build; every test puts back what it changes."""

    def __init__(self, overlay: Overlay, base: Base, wheel: Path) -> None:
        self.overlay, self.base, self.wheel = overlay, base, wheel
        self.spec = overlay.directory / "overlays" / f"{OVERLAY}.yaml"
        self.lock = overlay.directory / "overlays" / f"{OVERLAY}.lock"
        self.series = overlay.directory / "patches" / "v0.5.20" / "series"

    def build(self, *options: object, base: str | None = None) -> Run:
        arguments = ("--base", base or self.base.reference, "--wheel", self.wheel, "--json")
        return self.overlay("build", OVERLAY, *arguments, *options)

    def drift(self, *options: object, base: str | None = None) -> list[tuple[str, str]]:
        """Kind and place of each drift that a locked build names."""
        run = self.build("--locked", "--dry-run", *options, base=base).check(6)
        found = run.json["error"]["drift"]
        assert all(entry["locked"] != entry["found"] for entry in found)
        return [(entry["kind"], entry["where"]) for entry in found]

    def edit_lock(self, change: Callable[[Any], None]) -> None:
        value = json.loads(self.lock.read_text())
        change(value)
        self.lock.write_text(json.dumps(value))


@pytest.fixture(scope="module")
def built(
    small_base: Base,
    wheel: Callable[[str], Path],
    sources_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Project:
    overlay = with_sources(Overlay.prepare(tmp_path_factory.mktemp("locked")), sources_cache)
    project = Project(overlay, small_base, wheel("0.5.20"))
    project.build("--output", f"oci:{overlay.directory.parent / 'image'}").check()
    return project


@pytest.fixture
def project(built: Project) -> Iterator[Project]:
    files = [path for path in built.overlay.directory.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    yield built
    for path, data in before.items():
        path.write_bytes(data)


def test_nothing_drifted(project: Project) -> None:
    before = project.lock.read_bytes()
    project.build("--locked", "--dry-run").check()
    assert project.lock.read_bytes() == before


def test_a_lock_that_records_no_build(project: Project) -> None:
    project.lock.unlink()
    assert "records no build" in project.build("--locked", "--dry-run").check(1).err


def test_spec(project: Project) -> None:
    text = project.spec.read_text()
    project.spec.write_text(text + "environment:\n  SGLANG_NEW: '1'\n")
    assert project.drift() == [("spec", "environment"), ("spec", "environment.SGLANG_NEW")]


def test_series_order(project: Project) -> None:
    lines = project.series.read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    first, last = names[0], names[-1]
    swapped = [last if line == first else first if line == last else line for line in lines]
    project.series.write_text("\n".join(swapped) + "\n")
    assert ("series", "order of the patches") in project.drift()


def test_patch_byte_without_a_new_version(project: Project) -> None:
    patch = project.series.parent / "shm-broadcast-host-ip.patch"
    patch.write_bytes(patch.read_bytes().replace(b"\n\n", b"\n\nOne more line.\n", 1))
    assert project.drift() == [
        ("patch", "shm-broadcast-host-ip"),
        ("version", "the patches changed and the overlay's version did not"),
    ]


def test_patch_byte_that_keeps_the_patch_from_applying_is_drift_all_the_same(project: Project) -> None:
    patch = project.series.parent / "mamba-cache-for-requests.patch"
    data = patch.read_bytes()
    line = next(line for line in data.partition(b"\ndiff --git")[2].splitlines() if line.startswith(b" def "))
    patch.write_bytes(data.replace(line, line.replace(b"def", b"fed"), 1))
    assert ("patch", "mamba-cache-for-requests") in project.drift()
    project.build("--dry-run").check(3)


@pytest.mark.parametrize("data", [b"", b"\xff\x00", b"no patch at all\n"])
def test_a_damaged_patch_file_is_not_the_one_that_was_locked(project: Project, data: bytes) -> None:
    (project.series.parent / "eagle3-first-layer-residual.patch").write_bytes(data)
    assert project.drift() == [("patch", "eagle3-first-layer-residual")]


def test_patch_byte_with_a_new_version(project: Project) -> None:
    patch = project.series.parent / "shm-broadcast-host-ip.patch"
    patch.write_bytes(patch.read_bytes().replace(b"\n\n", b"\n\nOne more line.\n", 1))
    text = project.spec.read_text()
    newer, found = re.subn(r'version: "\d+"', 'version: "999"', text)
    assert found == 1
    project.spec.write_text(newer)
    assert project.drift() == [("spec", "version"), ("patch", "shm-broadcast-host-ip")]


def test_a_plain_build_tells_of_a_changed_patch_under_the_same_version(project: Project) -> None:
    patch = project.series.parent / "shm-broadcast-host-ip.patch"
    patch.write_bytes(patch.read_bytes().replace(b"\n\n", b"\n\nOne more line.\n", 1))
    run = project.build("--dry-run").check()
    assert "shm-broadcast-host-ip: changed since the lock" in run.err


def test_patch_left_out(project: Project) -> None:
    text = project.spec.read_text()
    changed = text.replace("series: v0.5.20", "series: v0.5.20\n  except: [shm-broadcast-host-ip]")
    project.spec.write_text(changed)
    assert ("patch", "shm-broadcast-host-ip") in project.drift()


def test_base_digest(project: Project) -> None:
    other = changed_base(project.base, {"python/sglang/unrelated.py": b"x = 1\n"}, "other")
    assert project.drift(base=other.reference) == [("base", "linux/amd64")]


def test_template(project: Project) -> None:
    template = project.overlay.directory / "Dockerfile.in"
    template.write_text(template.read_text() + 'LABEL added="1"\n')
    assert project.drift() == [("template", "Dockerfile.in")]


def test_manifest_schema_of_the_tool(project: Project) -> None:
    project.edit_lock(lambda lock: lock["inputs"].update(schema=0))
    assert project.drift() == [("schema", "the tool's manifest schema")]


def test_time(project: Project) -> None:
    later = Project(
        project.overlay.with_environment(SOURCE_DATE_EPOCH="1900000000"), project.base, project.wheel
    )
    assert later.drift() == [("time", "SOURCE_DATE_EPOCH, or the spec's date")]


def test_several_drifts_are_all_named(project: Project) -> None:
    project.edit_lock(lambda lock: lock["inputs"].update(schema=0))
    template = project.overlay.directory / "Dockerfile.in"
    template.write_text(template.read_text() + 'LABEL added="1"\n')
    assert {kind for kind, _ in project.drift()} == {"schema", "template"}


def test_a_digest_in_the_lock_that_is_not_what_comes_out(project: Project) -> None:
    wrong = f"sha256:{'0' * 64}"
    project.edit_lock(lambda lock: lock["images"]["linux/amd64"].update(config=wrong))
    run = project.build("--locked", "--dry-run").check(6)
    (difference,) = run.json["error"]["differences"]
    assert (difference["where"], difference["first"]) == ("config", f"locked {wrong}")


def test_check_of_a_build_that_is_the_same_twice(project: Project) -> None:
    project.build("--check").check()


def test_check_shows_what_differs_field_by_field(project: Project) -> None:
    """The lock says another mode and owner of a file than the base's layers do."""
    name = "python/sglang/srt/environ.py"

    def change(lock: Any) -> None:
        (facts,) = lock["bases"].values()
        facts["files"][name] |= {"mode": "0600", "uid": 7}

    project.edit_lock(change)
    run = project.build("--check").check(6)
    found = {entry["where"]: (entry["first"], entry["second"]) for entry in run.json["error"]["differences"]}
    path = "/sgl-workspace/sglang/python/sglang/srt/environ.py"
    assert found[f"layer {path}: mode"] == ("0600", "0644")
    assert found[f"layer {path}: owner"] == ("7:0", "0:0")
    assert not any(where.startswith(f"layer {path}: bytes") for where in found)
    assert any(where.startswith("config rootfs.diff_ids") for where in found)
    assert any(where.startswith("manifest layers") for where in found)
    assert f"layer {path}: owner" in run.err
