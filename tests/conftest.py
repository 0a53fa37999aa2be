"""What every test may use, and the rule that nothing is skipped where ``CI=true``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import forked

# How long an example takes says something of the machine, not of what is tested.
settings.register_profile("overlay", deadline=None)
settings.load_profile("overlay")

ROOT = Path(__file__).resolve().parent.parent
pytest.register_assert_rewrite("tests.contracts.registry")
IN_CI = os.environ.get("CI") == "true"


@dataclass(frozen=True)
class Run:
    """One finished run of the ``overlay`` command."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def check(self, code: int = 0) -> Run:
        """Itself, when it ended with ``code``; otherwise the test fails and shows what was printed."""
        assert self.code == code, (
            f"overlay {' '.join(self.arguments)}: exit {self.code}, expected {code}\n{self.out}\n{self.err}"
        )
        return self


@dataclass(frozen=True)
class Overlay:
    """The ``overlay`` command as users run it: a process, in an environment of its own."""

    program: Path
    directory: Path
    environment: Mapping[str, str]

    @classmethod
    def prepare(cls, directory: Path) -> Overlay:
        """With an empty cache and home, run in a copy of this checkout's patch sets below ``directory``."""
        copy_project(directory / "project")
        (directory / "home").mkdir()
        return cls(console_script(), directory / "project", clean_environment(directory / "home"))

    def __call__(self, *arguments: object, timeout: float = 300) -> Run:
        words = tuple(str(argument) for argument in arguments)
        if self.program == console_script() and forked.can_fork(self.environment):
            code, out, err = forked.run(
                str(self.program), words, cwd=self.directory, environment=self.environment, timeout=timeout
            )
            return Run(words, code, out.decode(), err.decode())
        return self.as_started(*words, timeout=timeout)

    def as_started(self, *arguments: object, timeout: float = 300) -> Run:
        """The same, started as users start it: the console script, a new interpreter."""
        words = tuple(str(argument) for argument in arguments)
        done = subprocess.run(
            [self.program, *words],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return Run(words, done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        """The same as a process that runs on, for tests that kill it or run two at once."""
        words = [str(argument) for argument in arguments]
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [self.program, *words],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        return process

    def with_environment(self, **changes: str) -> Overlay:
        return Overlay(self.program, self.directory, {**self.environment, **changes})


@pytest.fixture
def overlay(tmp_path: Path) -> Overlay:
    """The command with an empty cache and home, run in a copy of this checkout's patch sets."""
    return Overlay.prepare(tmp_path)


def copy_project(directory: Path) -> None:
    """What makes a directory a root to work in; locks are written there, and none comes along."""
    directory.mkdir(parents=True)
    for name in ("overlays", "patches"):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("*.lock"))
    shutil.copy(ROOT / "Dockerfile.in", directory)


def console_script() -> Path:
    program = Path(sys.executable).parent / "overlay"
    if not program.exists():
        missing(f"no console script {program}; `make test` installs it")
    return program


def clean_environment(home: Path) -> dict[str, str]:
    """The caller's environment with a home and cache of its own, and nothing that steers git or overlay."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GIT_", "OVERLAY_", "XDG_", "DOCKER_", "SOURCE_DATE_EPOCH", "COVERAGE"))
    }
    return kept | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "NO_COLOR": "1",
        "COLUMNS": "160",
    }


def missing(what: str) -> None:
    """Skip the test for want of ``what``; in CI fail it."""
    if IN_CI:
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def run_git() -> Callable[..., bytes]:
    """Plain git for a test's own repositories: fixed identity and dates, nobody's configuration."""

    def run(*arguments: str | Path, cwd: Path, stdin: bytes = b"") -> bytes:
        fixed = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "Test",
            "GIT_AUTHOR_EMAIL": "test@example.org",
            "GIT_AUTHOR_DATE": "1700000000 +0000",
            "GIT_COMMITTER_NAME": "Test",
            "GIT_COMMITTER_EMAIL": "test@example.org",
            "GIT_COMMITTER_DATE": "1700000000 +0000",
        }
        others = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        command = ["git", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=cwd, env=others | fixed, input=stdin, capture_output=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()}"
        return done.stdout

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        fail_instead_of_skipping(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_instead_of_skipping(report)
    return report


def fail_instead_of_skipping(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be: {report.longrepr}"
