"""``overlay matrix`` names what must be built and nothing else; ``build --all`` builds exactly that."""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest
import yaml

from benchmarks.measure import measure
from tests.conftest import Overlay
from tests.integration.conftest import Registry, registry_address, with_sources
from tests.integration.fleet import FleetBase, push_base, write_fleet
from tests.integration.test_attest import Keys


@pytest.fixture(scope="module")
def bases(
    wheel: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], FleetBase]:
    """A base for two platforms by its family of media types, pushed once."""
    overlay = Overlay.prepare(tmp_path_factory.mktemp("bases"))
    repository = f"{registry_address()}/fleet-{uuid.uuid4().hex[:8]}"

    @functools.cache
    def pushed(family: str) -> FleetBase:
        return push_base(overlay, wheel("0.5.20"), f"{repository}/{family}", family=family)

    return pushed


@pytest.fixture(params=["oci", "docker"])
def base(request: pytest.FixtureRequest, bases: Callable[[str], FleetBase]) -> FleetBase:
    return bases(request.param)


@pytest.fixture
def oci_base(bases: Callable[[str], FleetBase]) -> FleetBase:
    return bases("oci")


def planned(overlay: Overlay, *options: str) -> set[tuple[str, str]]:
    images = overlay("matrix", *options, "--json").check().json["images"]
    return {(image["overlay"], image["platform"]) for image in images}


def commit(overlay: Overlay, git: Callable[..., bytes]) -> str:
    git("add", "--all", cwd=overlay.directory)
    git("commit", "--quiet", "--allow-empty", "--message=state", cwd=overlay.directory)
    return git("rev-parse", "HEAD", cwd=overlay.directory).decode().strip()


def test_only_what_a_changed_patch_touches_is_planned(
    prepared: Overlay, base: FleetBase, registry: Registry
) -> None:
    names = write_fleet(prepared, base, 3)
    first = prepared.directory / "overlays" / f"{names[0]}.yaml"
    spec = yaml.safe_load(first.read_text())
    first.write_text(
        yaml.safe_dump(spec | {"patches": {"series": "v0.5.20", "only": ["shm-broadcast-host-ip"]}})
    )
    target = registry.repository("patched")
    everything = {(name, platform) for name in names for platform in base.platforms}
    assert planned(prepared, "--push", target) == everything
    prepared("build", "--all", "--push", target).check()
    assert planned(prepared, "--push", target) == set()
    patch = prepared.directory / "patches" / "v0.5.20" / "eagle3-first-layer-residual.patch"
    patch.write_text(patch.read_text().replace("Subject: ", "Subject: again, ", 1))
    assert planned(prepared, "--push", target) == {image for image in everything if image[0] != names[0]}


def test_after_a_push_by_another_builder_nothing_is_planned(
    prepared: Overlay, oci_base: FleetBase, registry: Registry, sources_cache: Path, tmp_path: Path
) -> None:
    names = write_fleet(prepared, oci_base, 2)
    (tmp_path / "other").mkdir()
    other = with_sources(Overlay.prepare(tmp_path / "other"), sources_cache)
    write_fleet(other, oci_base, 2)
    target = registry.repository("patched")
    platforms = [word for platform in oci_base.platforms for word in ("--platform", platform)]
    other("build", names[1], *platforms, "--push", target).check()
    assert planned(prepared, "--push", target) == {(names[0], platform) for platform in oci_base.platforms}


def test_one_request_an_overlay_tells_of_all_its_platforms(
    prepared: Overlay, oci_base: FleetBase, registry: Registry
) -> None:
    names = write_fleet(prepared, oci_base, 3)
    target = registry.repository("patched")
    prepared("build", "--all", "--push", target).check()
    before = len(registry.requests())
    assert planned(prepared, "--push", target) == set()
    assert len(registry.requests()) - before == len(names)


def test_each_input_makes_another_plan(prepared: Overlay, oci_base: FleetBase, registry: Registry) -> None:
    (name,) = write_fleet(prepared, oci_base, 1)
    target = registry.repository("patched")
    prepared("build", "--all", "--push", target).check()
    spec = prepared.directory / "overlays" / f"{name}.yaml"
    template = prepared.directory / "Dockerfile.in"
    both = {(name, platform) for platform in oci_base.platforms}
    amd64 = {(name, "linux/amd64")}
    digest = oci_base.platforms["linux/amd64"]
    changes = [
        (spec, lambda text: text.replace("FLEET: '0'", "FLEET: '1'"), both),
        (spec, lambda text: text.replace("summary: ", "summary: Other "), both),
        (template, lambda text: text + "# other\n", both),
        (spec, lambda text: text.replace(digest, "sha256:" + "0" * 64), amd64),
    ]
    for path, change, expected in changes:
        text = path.read_text()
        path.write_text(change(text))
        assert path.read_text() != text
        assert planned(prepared, "--push", target) == expected
        path.write_text(text)
    assert planned(prepared, "--push", target) == set()


def test_changed_since_a_commit_asks_no_registry(prepared: Overlay, run_git: Callable[..., bytes]) -> None:
    base = FleetBase("nowhere.invalid/base", "sha256:" + "1" * 64, {"linux/amd64": "sha256:" + "2" * 64})
    names = write_fleet(prepared, base, 3)
    run_git("init", "--quiet", cwd=prepared.directory)
    revision = commit(prepared, run_git)
    assert planned(prepared, "--changed-since", revision) == set()
    path = prepared.directory / "overlays" / f"{names[1]}.yaml"
    path.write_text(path.read_text().replace("FLEET: '1'", "FLEET: other"))
    assert planned(prepared, "--changed-since", revision) == {(names[1], "linux/amd64")}
    (path.parent / "fleet-new.yaml").write_text(path.read_text().replace(names[1], "fleet-new"))
    assert planned(prepared, "--changed-since", revision) == {
        (n, "linux/amd64") for n in (names[1], "fleet-new")
    }
    series = prepared.directory / "patches" / "v0.5.20" / "series"
    lines = series.read_text().splitlines()
    series.write_text("\n".join(line for line in lines if "eagle3" not in line) + "\n")
    assert planned(prepared, "--changed-since", revision) == {
        (n, "linux/amd64") for n in [*names, "fleet-new"]
    }
    unknown = prepared("matrix", "--changed-since", "0" * 40).check(1)
    assert "fetch-depth" in unknown.err
    assert prepared("matrix", "--changed-since", "--output=x").check(2)


@pytest.mark.parametrize(
    "options", [(), ("--all", "--push", "x"), ("--push", "oci:x"), ("--push", "reg.example/x:tag")]
)
def test_unclear_plans_are_refused(overlay: Overlay, options: tuple[str, ...]) -> None:
    overlay("matrix", *options).check(2)


def shipped(overlay: Overlay) -> set[str]:
    return {path.stem for path in (overlay.directory / "overlays").glob("*.yaml")}


def test_the_shipped_overlays_are_planned_and_the_one_without_a_base_is_explained(overlay: Overlay) -> None:
    said = overlay("matrix", "--all", "--json").check().json
    reasons = {one["overlay"]: one["reason"] for one in said["skipped"]}
    assert {row["overlay"] for row in said["include"]} >= {"dsv4-flash-gb10", "glm53-flash-gb10"}
    assert {row["overlay"] for row in said["include"]} | reasons.keys() == shipped(overlay)
    assert "base.index" in reasons["glm53-flash-dev"]
    named = overlay("build", "--all", "glm53-flash-dev", "--output", "oci:x", "--json").check(2)
    assert named.json["overlays"][0]["state"] == "skipped"


def test_one_that_fails_does_not_stop_the_others(
    prepared: Overlay, oci_base: FleetBase, registry: Registry
) -> None:
    names = write_fleet(prepared, oci_base, 4)
    overlays = prepared.directory / "overlays"
    (overlays / f"{names[1]}.yaml").write_text("name: [\n")
    broken = overlays / f"{names[2]}.yaml"
    broken.write_text(broken.read_text().replace(oci_base.index, "sha256:" + "0" * 64))
    target = registry.repository("patched")
    run = prepared("build", "--all", "-j", "2", "--push", target, "--json").check(1)
    assert {one["name"]: one["state"] for one in run.json["overlays"]} == {
        names[0]: "built",
        names[1]: "failed",
        names[2]: "failed",
        names[3]: "built",
    }
    assert run.json["overlays"][1]["error"]["kind"] == "invalid-input"
    table = prepared("build", "--all", "-j", "2", "--push", target).check(1)
    assert [line.split()[1] for line in table.out.splitlines()[1:]] == ["there", "failed", "failed", "there"]
    assert "spec is not YAML" in table.err


def test_all_gives_the_same_digests_as_one_by_one(
    prepared: Overlay, oci_base: FleetBase, registry: Registry, sources_cache: Path, tmp_path: Path
) -> None:
    names = write_fleet(prepared, oci_base, 3)
    together = prepared("build", "--all", "--push", registry.repository("all"), "--json").check().json
    platforms = [word for platform in oci_base.platforms for word in ("--platform", platform)]
    for one in together["overlays"]:
        command = ("build", one["name"], *platforms, "--push", registry.repository("single"), "--json")
        assert prepared(*command).check().json["digest"] == one["digest"]
        lock = json.loads((prepared.directory / "overlays" / f"{one['name']}.lock").read_text())
        assert set(lock["images"]) == set(oci_base.platforms)
    assert [one["name"] for one in together["overlays"]] == names


def test_killed_in_the_middle_only_what_is_missing_is_built(
    prepared: Overlay, oci_base: FleetBase, registry: Registry
) -> None:
    names = write_fleet(prepared, oci_base, 8)
    target = registry.repository("patched")
    command = ("build", "--all", "-j", "1", "--push", target, "--json")
    process = prepared.start(*command, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(tagged(registry)) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    there = tagged(registry)
    assert len(there) < len(names)
    again = prepared(*command).check().json["overlays"]
    states = {one["name"]: one["state"] for one in again}
    assert {name for name, state in states.items() if state == "there"} == there
    assert {state for name, state in states.items() if name not in there} == {"built"}
    assert planned(prepared, "--push", target) == set()


def tagged(registry: Registry) -> set[str]:
    """Overlays that have their tag."""
    return {
        "-".join(tag.split("-")[1:3]) for tag in registry.tags("patched") if tag.startswith("v0.5.20-fleet-")
    }


def test_ten_overlays_cost_less_than_three_times_one(
    prepared: Overlay, oci_base: FleetBase, registry: Registry
) -> None:
    names = write_fleet(prepared, oci_base, 10)
    prepared("build", "--all", "--push", registry.repository("warm")).check()
    platforms = [word for platform in oci_base.platforms for word in ("--platform", platform)]
    one = ("build", names[0], *platforms, "--push")
    # Processor time, so that what else runs on the machine does not count; docs/benchmarks.md has the times.
    builds = Path(prepared.environment["OVERLAY_CACHE"]) / "built"
    times = []
    for number in range(3):
        rmtree(builds, ignore_errors=True)  # or the second would only be delivered
        times.append(processor_time(prepared, *one, registry.repository(f"one-{number}")))
        assert list(builds.iterdir())
    single = min(times)
    command = ("build", "--all", "-j", "4", "--push")
    times = []
    for number in range(3):
        rmtree(builds, ignore_errors=True)
        times.append(processor_time(prepared, *command, registry.repository(f"all-{number}")))
    together = min(times)
    assert together < 3 * single
    program = [str(prepared.program), *command, registry.repository("memory")]
    assert measure(program, prepared.environment, prepared.directory).peak_bytes < 250_000_000


def processor_time(overlay: Overlay, *command: object) -> float:
    """Seconds of processor time that a run and what it started take."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    overlay.as_started(*command).check()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_nothing_moves_on_standard_error_when_it_is_no_terminal(
    prepared: Overlay, oci_base: FleetBase, registry: Registry
) -> None:
    write_fleet(prepared, oci_base, 2)
    run = prepared("build", "--all", "--push", registry.repository("patched"))
    assert "\r" not in run.check().out + run.err
    assert not run.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "nowhere to go"),
        (("--push", "reg.example/x:tag"), "cannot have one name"),
        (("--output", "reg.example/x"), "not what the option takes"),
        (("--push", "oci:x"), "not what the option takes"),
    ],
)
def test_targets_that_cannot_hold_several_are_refused(
    overlay: Overlay, options: tuple[str, ...], says: str
) -> None:
    assert says in overlay("build", "--all", *options).check(2).err


def test_a_base_pinned_in_the_lock_is_planned_without_asking(prepared: Overlay, oci_base: FleetBase) -> None:
    (name,) = write_fleet(prepared, oci_base, 1)
    path = prepared.directory / "overlays" / f"{name}.yaml"
    spec = yaml.safe_load(path.read_text())
    spec["base"] = {"image": oci_base.repository, "roots": {"python/sglang": "auto"}}
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    assert prepared("matrix", "--all", "--json").check().json["skipped"][0]["overlay"] == name
    prepared("pin", name, "--base", f"{oci_base.repository}:base").check()
    assert planned(prepared, "--all") == {(name, platform) for platform in oci_base.platforms}


def test_many_threads_may_bring_the_same_blobs(
    prepared: Overlay, oci_base: FleetBase, registry: Registry
) -> None:
    # A registry that stores a blob again lacks it for a moment: no blob is brought twice in one run.
    write_fleet(prepared, oci_base, 12)
    prepared("build", "--all", "-j", "12", "--push", registry.repository("patched")).check()
    blobs = {line.split("digest=")[1].split()[0] for line in uploads(registry)}
    assert blobs
    assert len(uploads(registry)) == len(blobs)


def uploads(registry: Registry) -> list[str]:
    """Uploads that ended, of the access log."""
    lines = [line for line in registry.requests() if '"PUT ' in line and "/patched/blobs/uploads/" in line]
    return [line for line in lines if "digest=" in line and '" 201 ' in line]


def test_all_is_held_to_its_locks_as_one_is(
    prepared: Overlay, oci_base: FleetBase, registry: Registry
) -> None:
    names = write_fleet(prepared, oci_base, 2)
    target = registry.repository("locked")
    first = prepared("build", "--all", "--push", target, "--json").check().json["overlays"]
    again = prepared("build", "--all", "--rebuild", "--push", target, "--json").check().json["overlays"]
    assert [one["digest"] for one in again] == [one["digest"] for one in first]
    assert [one["recalled"] for one in first + again] == [False, False, True, True]
    locks = [prepared.directory / "overlays" / f"{name}.lock" for name in names]
    before = [lock.read_bytes() for lock in locks]
    checked = prepared("build", "--all", "--locked", "--check", "--json").check().json["overlays"]
    assert [one["digest"] for one in checked] == [one["digest"] for one in first]
    assert [lock.read_bytes() for lock in locks] == before
    patch = prepared.directory / "patches" / "v0.5.20" / "eagle3-first-layer-residual.patch"
    text = patch.read_text()
    for damaged in (text.replace("Subject: ", "Subject: again, ", 1), text[: len(text) // 2]):
        patch.write_text(damaged)
        failed = prepared("build", "--all", "--locked", "--check", "--json").check(6).json["overlays"]
        assert [one["state"] for one in failed] == ["failed", "failed"]
        assert all("eagle3-first-layer-residual" in json.dumps(one["error"]) for one in failed)
    patch.write_text(text.replace("Subject: ", "Subject: again, ", 1))
    drifted = prepared("build", "--all", "--output", "oci:out").check()
    assert all(
        f"{name}: eagle3-first-layer-residual: changed since the lock" in drifted.err for name in names
    )


def test_all_is_signed_and_attested_as_one_is(
    prepared: Overlay, oci_base: FleetBase, registry: Registry, tmp_path: Path
) -> None:
    names = write_fleet(prepared, oci_base, 2)
    key = Keys.make(tmp_path).private
    options = ("--sign-key", key, "--attest", tmp_path / "documents", "--json")
    built = prepared("build", "--all", "--push", registry.repository("signed"), *options).check().json
    for name, one in zip(names, built["overlays"], strict=True):
        files = {Path(path) for path in one["attestations"]}
        assert files
        assert all((tmp_path / "documents" / name) in path.parents for path in files)
        alone = tmp_path / "alone" / name
        platforms = [word for platform in oci_base.platforms for word in ("--platform", platform)]
        single = ("build", name, *platforms, "--output", "oci:alone", "--sign-key", key, "--attest", alone)
        prepared(*single).check()
        written = {path.relative_to(alone): path.read_bytes() for path in alone.rglob("*") if path.is_file()}
        together = tmp_path / "documents" / name
        assert written == {
            path.relative_to(together): path.read_bytes() for path in together.rglob("*") if path.is_file()
        }


def test_all_may_be_compared_without_going_anywhere(prepared: Overlay, oci_base: FleetBase) -> None:
    write_fleet(prepared, oci_base, 1)
    assert prepared("build", "--all", "--check", "--json").check().json["overlays"][0]["digest"]
    assert "nowhere to go" in prepared("build", "--all").check(2).err
