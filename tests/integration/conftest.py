"""The real things integration tests run against; ``tests/services.py`` starts what is not there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

from builder.probe.run import Prober
from tests.conftest import Overlay, missing
from tests.integration.bases import Base, heavy_base, wheel_base
from tests.integration.faulty import FaultyProxy
from tests.integration.judge import OVERLAY, Evaluation, Git, judge, repository_of
from tests.integration.layouts import Layout
from tests.integration.sources import WheelTree, release_tree
from tests.integration.wheels import release_wheel

if TYPE_CHECKING:
    import docker

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.integration)


@dataclass(frozen=True)
class Registry:
    """The registry the tests share, and a name space in it that one test has to itself."""

    address: str
    space: str
    log: Path | None

    def repository(self, name: str) -> str:
        """``host:port/space/name``."""
        return f"{self.address}/{self.space}/{name}"

    def tags(self, name: str) -> list[str]:
        """The tags people gave; none when there is no such repository.

        Without those that list an image's referrers (distribution-spec 1.1, *Referrers Tag Schema*).
        """
        try:
            with self._get(name, "tags/list") as answer:
                tags = json.load(answer)["tags"] or []
                return sorted(tag for tag in tags if not re.fullmatch("sha256-[0-9a-f]{64}", tag))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise

    def manifest(self, name: str, reference: str) -> tuple[bytes, str]:
        """A manifest's bytes and media type, by tag or digest."""
        with self._get(name, f"manifests/{reference}") as answer:
            return answer.read(), answer.headers["Content-Type"]

    def blob(self, name: str, digest: str) -> bytes:
        with self._get(name, f"blobs/{digest}") as answer:
            return bytes(answer.read())

    def requests(self) -> list[str]:
        """The lines of the access log that are about this name space."""
        assert self.log is not None, "this registry's log cannot be read"
        return [line for line in self.log.read_text().splitlines() if f"/v2/{self.space}/" in line]

    def _get(self, name: str, path: str) -> Any:
        url = f"http://{self.address}/v2/{self.space}/{name}/{path}"
        request = urllib.request.Request(url, headers={"Accept": ", ".join(MANIFEST_TYPES)})
        return urllib.request.urlopen(request, timeout=60)


@pytest.fixture
def registry() -> Registry:
    """A real registry on loopback, with a name space nobody else uses."""
    return Registry(registry_address(), "t" + uuid.uuid4().hex[:12], registry_log())


@pytest.fixture
def proxy(registry: Registry) -> Iterator[FaultyProxy]:
    """A proxy in front of the registry, which fails when it is told to."""
    with FaultyProxy(registry.address) as running:
        yield running


def registry_address() -> str:
    address = os.environ.get("OVERLAY_TEST_REGISTRY")
    if not address:
        missing("no registry; `make integration` starts one")
    assert address
    return address


def registry_log() -> Path | None:
    log = os.environ.get("OVERLAY_TEST_REGISTRY_LOG")
    return Path(log) if log else None


@dataclass(frozen=True)
class Engine:
    """A real Docker Engine: its API, and a client program that can build with BuildKit."""

    host: str
    client: str
    api: docker.DockerClient

    def cli(self, *arguments: str, buildkit: bool = True, cwd: Path | None = None) -> str:
        """Run the client; its standard output."""
        choice = {"DOCKER_BUILDKIT": "1" if buildkit else "0"}
        command = [self.client, "--host", self.host, *arguments]
        return run_program(command, environment=choice, cwd=cwd)


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[Engine]:
    with _engine(os.environ.get("OVERLAY_TEST_DOCKER_HOST")) as engine:
        yield engine


@pytest.fixture(scope="session")
def blob_engine() -> Iterator[Engine]:
    """A newer Docker Engine, which keeps images as blobs in containerd."""
    with _engine(os.environ.get("OVERLAY_TEST_BLOB_ENGINE")) as engine:
        yield engine


@contextmanager
def _engine(host: str | None) -> Iterator[Engine]:
    import docker

    client = os.environ.get("OVERLAY_TEST_DOCKER_CLIENT")
    if not host or not client:
        missing("no Docker Engine; `make integration` starts one where it can")
    assert host
    assert client
    api = docker.DockerClient(base_url=host, timeout=300)
    api.ping()
    yield Engine(host, client, api)
    api.close()


@pytest.fixture(scope="session")
def skopeo() -> Callable[..., str]:
    """Run skopeo; its standard output. ``docker://`` references are read and written without TLS."""
    program = needed_program("skopeo")

    def run(command: str, *arguments: str) -> str:
        plain = {
            "copy": ("--src-tls-verify=false", "--dest-tls-verify=false"),
            "inspect": ("--tls-verify=false",),
            "delete": ("--tls-verify=false",),
        }
        policy = ("--insecure-policy",)
        return run_program([program, *policy, command, *plain.get(command, ()), *arguments])

    return run


@pytest.fixture
def buildah(tmp_path: Path) -> Callable[..., str]:
    """Run buildah with storage of its own; its standard output."""
    program = needed_program("buildah")
    storage = ["--root", str(tmp_path / "buildah"), "--runroot", str(tmp_path / "buildah-run")]

    def run(*arguments: str) -> str:
        return run_program([program, *storage, "--storage-driver", "vfs", *arguments])

    return run


def needed_program(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        missing(f"no {name}; `make integration` installs it where it can")
    assert program
    return program


def run_program(
    command: list[str], *, environment: dict[str, str] | None = None, cwd: Path | None = None
) -> str:
    done = subprocess.run(
        command,
        env=os.environ | (environment or {}),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel() -> Callable[[str], Path]:
    """A release's wheel by version: ``wheel("0.5.20")``."""
    return release_wheel


# --- bases -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def small_base(wheel: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Base:
    """SGLang 0.5.20 as an image of a few megabytes, in a layout of this worker's own."""
    return wheel_base(wheel("0.5.20"), tmp_path_factory.mktemp("base") / "layout")


@pytest.fixture(scope="session")
def sources_cache(wheel: Callable[[str], Path], shared: Path, small_base: Base) -> Path:
    """A cache that holds the pinned sources and what the probes said of them, and knows no base."""
    place = shared / "sources"
    with FileLock(shared / "sources.lock"):
        if not place.exists():
            made = Overlay.prepare(shared / "sources.new")
            cold = made.with_environment(OVERLAY_CACHE=str(shared / "sources.new" / "cache"))
            command = ("build", OVERLAY, "--base", small_base.reference, "--wheel", wheel("0.5.20"))
            cold(*command, "--dry-run").check()
            shutil.rmtree(shared / "sources.new" / "cache" / "layers")
            (shared / "sources.new").rename(place)
    return place / "cache"


@pytest.fixture
def prepared(overlay: Overlay, sources_cache: Path) -> Overlay:
    """The command with the pinned sources in its cache, for tests of what comes after them."""
    return with_sources(overlay, sources_cache)


def with_sources(overlay: Overlay, sources_cache: Path) -> Overlay:
    cache = overlay.directory.parent / "cache"
    shutil.copytree(sources_cache, cache)
    return overlay.with_environment(OVERLAY_CACHE=str(cache))


def with_answers(overlay: Overlay, sources_cache: Path) -> Overlay:
    """The command with a cache that holds what the probes said, and nothing else: they take longest."""
    cache = overlay.directory.parent / "cache"
    shutil.copytree(sources_cache / "probes", cache / "probes")
    return overlay.with_environment(OVERLAY_CACHE=str(cache))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of this run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.fixture
def small_base_pushed(small_base: Base, skopeo: Callable[..., str], registry: Registry) -> str:
    """The small base in the registry; its reference by digest."""
    return small_base.push(skopeo, registry.repository("base"))


@dataclass(frozen=True)
class PushedBase:
    """A base in the registry.

    Args:
        reference: ``host:port/repository@sha256:…``.
        base: the same, in the layout it was pushed from.
    """

    reference: str
    base: Base


@pytest.fixture(scope="session")
def heavy(wheel: Callable[[str], Path], skopeo: Callable[..., str], shared: Path) -> PushedBase:
    """The same with 120 MB of filler, in the registry; made once for all workers."""
    address = registry_address()
    layout, record = Layout(shared / "heavy"), shared / "heavy.json"
    with FileLock(shared / "heavy.lock"):
        if not record.exists():
            made = heavy_base(wheel_base(wheel("0.5.20"), layout.directory), 120_000_000)
            reference = made.push(skopeo, f"{address}/heavy-{uuid.uuid4().hex[:8]}/sglang")
            record.write_text(json.dumps({"digest": made.digest, "reference": reference}))
    known = json.loads(record.read_text())
    return PushedBase(known["reference"], Base(layout, known["digest"], "heavy"))


@pytest.fixture(scope="session")
def upstream_repository(
    wheel: Callable[[str], Path], run_git: Git, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The sources of 0.5.20 as a git repository with a work tree and one commit."""
    return repository_of(wheel("0.5.20"), tmp_path_factory.mktemp("upstream") / "sglang", run_git)


@pytest.fixture(scope="session")
def evaluation(upstream_repository: Path, run_git: Git) -> Evaluation:
    """What plain git makes of the overlay's series."""
    return judge(upstream_repository, run_git)


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    """Asks probes, in one process for a module's tests."""
    with Prober() as prober:
        yield prober


@pytest.fixture(scope="module")
def release() -> dict[str, WheelTree]:
    """The sources of three releases by version."""
    return {version: release_tree(version) for version in ("0.5.17", "0.5.20", "0.5.23")}
