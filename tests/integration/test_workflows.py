"""The workflows that are shipped pass the linter, and their steps run against a local registry."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, Overlay
from tests.integration.conftest import Registry, needed_program, run_program
from tests.integration.fleet import FleetBase, push_base, write_fleet
from tests.integration.workflows import Runner, clean, run_steps

WORKFLOW = ROOT / ".github" / "workflows" / "images.yml"
IMAGE = "vars.IMAGE || format('ghcr.io/{0}/sglang', github.repository_owner)"
BEFORE = "github.event.pull_request.base.sha"
INSTALL = "Install overlay"
PROJECT = ("builder", "completion", "docs", "pyproject.toml", "README.md", "LICENSE")


def workflow() -> dict[str, Any]:
    return dict(yaml.safe_load(WORKFLOW.read_text()))


def test_actionlint_has_nothing_to_say() -> None:
    program = Path(sys.executable).parent / "actionlint"
    run_program([str(program) if program.exists() else needed_program("actionlint"), str(WORKFLOW)])


def test_actionlint_would_say_something(tmp_path: Path) -> None:
    broken = tmp_path / ".github" / "workflows" / "broken.yml"
    broken.parent.mkdir(parents=True)
    broken.write_text(WORKFLOW.read_text().replace("needs: plan", "needs: plam"))
    program = Path(sys.executable).parent / "actionlint"
    command = [str(program) if program.exists() else needed_program("actionlint"), str(broken)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "plam" in done.stdout


@pytest.fixture
def checkout(prepared: Overlay, run_git: Callable[..., bytes]) -> Path:
    """A clone of this repository as a runner has it, with an origin to push to."""
    place = prepared.directory
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PROJECT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    run_git("init", "--quiet", "--bare", str(place.parent / "origin.git"), cwd=place.parent)
    run_git("init", "--quiet", "--initial-branch=main", cwd=place)
    run_git("remote", "add", "origin", str(place.parent / "origin.git"), cwd=place)
    return place


@pytest.fixture
def base(prepared: Overlay, wheel: Callable[[str], Path], registry: Registry) -> FleetBase:
    return push_base(prepared, wheel("0.5.20"), registry.repository("base"))


@pytest.fixture
def runner(prepared: Overlay, checkout: Path, base: FleetBase, registry: Registry) -> Runner:
    """A runner of a repository with two overlays, of two patches."""
    names = write_fleet(prepared, base, 2)
    for name in names:
        path = prepared.directory / "overlays" / f"{name}.yaml"
        spec = yaml.safe_load(path.read_text())
        spec["patches"] = {
            "series": "v0.5.20",
            "only": ["tilelang-fp8-partial-nope", "shm-broadcast-host-ip"],
        }
        path.write_text(yaml.safe_dump(spec, sort_keys=False))
    (checkout.parent / "runner").mkdir()
    meanings = {IMAGE: registry.repository("patched"), BEFORE: "", "github.token": "of-this-run"}
    return Runner(checkout, checkout.parent / "runner", clean(prepared.environment), meanings)


def commit(checkout: Path, git: Callable[..., bytes]) -> str:
    git("add", "--all", "overlays", "patches", "Dockerfile.in", cwd=checkout)
    git("commit", "--quiet", "--message=state", cwd=checkout)
    return git("rev-parse", "HEAD", cwd=checkout).decode().strip()


def test_every_step_of_the_workflow_runs(
    runner: Runner, checkout: Path, registry: Registry, run_git: Callable[..., bytes]
) -> None:
    document = workflow()
    jobs = document["jobs"]
    before = commit(checkout, run_git)
    ran = []

    # A push to main: everything is missing, is built, pushed and attested; then nothing is missing.
    runner.run_job(document, jobs["plan"])
    ran += [f"plan: {name}" for name in runner.ran]
    include = json.loads(runner.outputs["matrix"])["include"]
    assert [row["overlay"] for row in include] == ["fleet-00", "fleet-01"]
    for row in include:
        runner.ran.clear()
        runner.meanings = {**runner.meanings, **{f"matrix.{key}": value for key, value in row.items()}}
        runner.run_job(document, jobs["build"], {"Build, push and attest"})
        ran += [f"build: {name}" for name in runner.ran]
        assert row["tag"] in registry.tags("patched")
        assert list((checkout / "attestations").rglob("*.json"))
    assert (runner.temporary / "github_step_summary").read_text().count("@sha256:") == 2
    runner.run_job(document, jobs["plan"], {"Plan"})
    assert json.loads(runner.outputs["matrix"])["include"] == []

    # A pull request: one overlay changes, is built twice and compared, and its patches are judged.
    path = checkout / "overlays" / "fleet-01.yaml"
    path.write_text(path.read_text().replace("FLEET: '1'", "FLEET: changed"))
    runner.meanings = {**runner.meanings, BEFORE: before}
    runner.run_job(document, jobs["plan"], {"Plan"})
    (row,) = json.loads(runner.outputs["matrix"])["include"]
    assert row["overlay"] == "fleet-01"
    runner.meanings = {**runner.meanings, "needs.plan.outputs.matrix": runner.outputs["matrix"]}
    runner.ran.clear()
    runner.run_job(document, jobs["build"], {"Build twice and compare"})
    ran += [f"build: {name}" for name in runner.ran]
    runner.ran.clear()
    runner.run_job(document, jobs["review"], {"Judge the patches"})
    ran += [f"review: {name}" for name in runner.ran]
    assert "shm-broadcast-host-ip" in (checkout / "comment.md").read_text()

    # Once a week: verdicts are remembered, and what changed is pushed for a pull request.
    runner.ran.clear()
    job = {**jobs["retire"], "env": {**jobs["retire"]["env"], "UPSTREAM": "v0.5.23"}}
    runner.run_job(document, job, {"Judge against upstream, and retire what the pin does not need", "Commit"})
    ran += [f"retire: {name}" for name in runner.ran]
    assert runner.outputs["changed"] == "yes"
    assert b"overlay/retire" in run_git("branch", "--list", "--all", cwd=checkout.parent / "origin.git")
    assert "tilelang-fp8-partial-nope" in (runner.temporary / "report.md").read_text()

    # Every job installs with the same step, which `plan` ran.
    installs = [step for job in jobs.values() for step in job["steps"] if step.get("name") == INSTALL]
    assert all(step == installs[0] for step in installs)
    assert {step for step in run_steps(document) if not step.endswith(INSTALL)} <= set(ran)


def test_the_action_builds_and_pushes_what_is_missing(
    runner: Runner, checkout: Path, registry: Registry
) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    defaults = {f"inputs.{name}": str(said.get("default", "")) for name, said in action["inputs"].items()}
    runner.meanings = {**defaults, "inputs.push": registry.repository("patched")}
    runner.environment = {**runner.environment, "GITHUB_ACTION_PATH": str(checkout)}
    for step in action["runs"]["steps"]:
        if "run" in step:
            assert step["shell"] == "bash"
            runner.run_step(step, step.get("env", {}))
    built = json.loads(runner.outputs["built"])["overlays"]
    assert [one["state"] for one in built] == ["built", "built"]
    assert len([tag for tag in registry.tags("patched") if tag.startswith("v0.5.20")]) == 2


def test_the_gitlab_example_is_yaml_whose_scripts_are_bash() -> None:
    document = yaml.safe_load((ROOT / "docs" / "gitlab-ci.yml").read_text())
    jobs = {name: job for name, job in document.items() if isinstance(job, dict) and "script" in job}
    assert set(jobs) == {"build", "review", "verdicts"}
    for job in jobs.values():
        lines = [line for part in job["script"] for line in (part if isinstance(part, list) else [part])]
        subprocess.run(["bash", "-n"], input="\n".join(lines), text=True, check=True)


def test_the_gitlab_examples_build_runs(
    prepared: Overlay, base: FleetBase, registry: Registry, tmp_path: Path
) -> None:
    write_fleet(prepared, base, 1)
    job = yaml.safe_load((ROOT / "docs" / "gitlab-ci.yml").read_text())["build"]
    lines = [line for part in job["script"] for line in (part if isinstance(part, list) else [part])]
    environment = {
        **prepared.environment,
        "PATH": f"{prepared.program.parent}:{prepared.environment['PATH']}",
        "IMAGE": registry.repository("patched"),
        "CI_REGISTRY": registry.address,
        "CI_REGISTRY_USER": "user",
        "CI_REGISTRY_PASSWORD": "pass",
    }
    command = ["bash", "-eo", "pipefail", "-c", "\n".join(lines)]
    subprocess.run(command, cwd=prepared.directory, env=environment, check=True)
    (built,) = json.loads((prepared.directory / "built.json").read_text())["overlays"]
    assert built["state"] == "built"


@pytest.mark.parametrize(("given", "complaint"), [("push: ghcr.io/you/sglang", ""), ("puhs: x", "puhs")])
def test_the_action_is_used_in_three_lines(tmp_path: Path, given: str, complaint: str) -> None:
    shutil.copy(ROOT / "action.yml", tmp_path)
    (tmp_path / ".git").mkdir()
    workflow = tmp_path / ".github" / "workflows" / "use.yml"
    workflow.parent.mkdir(parents=True)
    steps = f"[{{uses: actions/checkout@v5}}, {{uses: ./, with: {{{given}}}}}]"
    workflow.write_text(f"on: push\njobs:\n  build:\n    runs-on: ubuntu-24.04\n    steps: {steps}\n")
    program = Path(sys.executable).parent / "actionlint"
    command = [str(program) if program.exists() else needed_program("actionlint"), str(workflow)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert complaint in done.stdout
    assert (done.returncode == 0) == (not complaint), done.stdout
