"""Runs the ``run:`` steps of GitHub workflows as their runner does; the test says what expressions mean."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


@dataclass
class Runner:
    """One job's runner.

    Args:
        checkout: where steps run.
        temporary: ``RUNNER_TEMP``, and the files that steps write to.
        environment: what the runner itself brings.
        meanings: the value of each expression that steps use.
    """

    checkout: Path
    temporary: Path
    environment: Mapping[str, str]
    meanings: Mapping[str, str]
    outputs: dict[str, str] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)

    def run_job(
        self, workflow: Mapping[str, Any], job: Mapping[str, Any], steps: set[str] | None = None
    ) -> None:
        """Run the job's ``run:`` steps in their order; of ``steps`` only, where that is given."""
        for step in job["steps"]:
            if "run" in step and (steps is None or step["name"] in steps):
                scopes = (workflow.get("env", {}), job.get("env", {}), step.get("env", {}))
                self.run_step(step, {key: value for scope in scopes for key, value in scope.items()})

    def run_step(self, step: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        """Run one step; it must succeed."""
        assert not EXPRESSION.search(step["run"]), (
            f"{step['name']}: an expression in a script can inject code"
        )
        files = {
            name: self.temporary / name.lower()
            for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")
        }
        for file in files.values():
            file.touch()
        environment = {
            **self.environment,
            **{name: str(file) for name, file in files.items()},
            **{key: self.evaluated(str(value)) for key, value in variables.items()},
            "RUNNER_TEMP": str(self.temporary),
            "CI": "true",
        }
        environment["PATH"] = ":".join([*self.path, environment["PATH"]])
        script = self.temporary / "step.sh"
        script.write_text(step["run"])
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        done = subprocess.run(
            command,
            cwd=self.checkout,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{step['name']}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        for line in files["GITHUB_OUTPUT"].read_text().splitlines():
            name, _, value = line.partition("=")
            self.outputs[name] = value
        self.path += files["GITHUB_PATH"].read_text().splitlines()
        files["GITHUB_PATH"].write_text("")
        self.ran.append(step["name"])

    def evaluated(self, text: str) -> str:
        return EXPRESSION.sub(lambda match: self.meanings[match[1]], text)


def run_steps(document: Mapping[str, Any]) -> Iterator[str]:
    """The names of a workflow's ``run:`` steps, by job."""
    for name, job in document["jobs"].items():
        yield from (f"{name}: {step['name']}" for step in job["steps"] if "run" in step)


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which commands of the test's own Python are not found before the runner's."""
    path = ":".join(part for part in environment["PATH"].split(":") if not (Path(part) / "overlay").exists())
    return {
        **environment,
        "PATH": path,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "HOME": environment["HOME"],
    } | {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
