"""Where benchmarks run: a registry, a private Docker Engine, and a checkout of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import Sample, measure
from tests.conftest import copy_project
from tests.integration.bases import Base, between, filler_layers, wheel_base
from tests.integration.layouts import Layer, Layout
from tests.integration.wheels import release_wheel

OVERLAY = "glm53-flash-gb10"
MANIFESTS = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"


@dataclass(frozen=True)
class Stage:
    """Addresses and directories of one run of the benchmarks."""

    registry: str
    log: Path
    docker: str
    docker_host: str
    directory: Path
    _fillers: dict[int, list[Layer]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_environment(cls, directory: Path) -> Stage:
        """What ``tests/services.py`` started."""
        names = ("REGISTRY", "REGISTRY_LOG", "DOCKER_CLIENT", "DOCKER_HOST")
        found = [os.environ.get(f"OVERLAY_TEST_{name}") for name in names]
        if None in found or os.environ.get("OVERLAY_TEST_PRIVATE_ENGINE") != "1":
            raise SystemExit("benchmarks empty the engine they use; `make bench` starts one for them")
        registry, log, docker, host = map(str, found)
        return cls(registry, Path(log), docker, host, directory)

    @property
    def project(self) -> Path:
        """A checkout of its own, so that locks are written there."""
        return self.directory / "project"

    @property
    def cache(self) -> Path:
        return self.directory / "cache"

    @property
    def context(self) -> Path:
        """What docker builds from: the finished files of overlay's layer."""
        return self.directory / "context"

    def prepare(self) -> None:
        copy_project(self.project)

    def heavy_base(self, name: str, size: int, *, architecture: str = "amd64") -> Base:
        """SGLang's sources with ``size`` bytes of filler, which is made once for each size."""
        small = wheel_base(release_wheel("0.5.20"), self.directory / name, architecture=architecture)
        filler = Layout(self.directory / f"filler-{size}")
        if size not in self._fillers:
            self._fillers[size] = filler_layers(Layout.create(filler.directory), size)
        for layer in self._fillers[size]:
            digest = layer.descriptor["digest"]
            small.layout.path(digest).hardlink_to(filler.path(digest))
        return between(small, self._fillers[size])

    # --- overlay ---

    def overlay(self, *arguments: str) -> Sample:
        """The console script, whole process."""
        program = str(Path(sys.executable).parent / "overlay")
        environment = os.environ | {"OVERLAY_CACHE": str(self.cache), "NO_COLOR": "1"}
        return measure([program, *arguments], environment, self.project)

    # --- docker ---

    def docker_run(self, *arguments: str, buildkit: bool = True) -> Sample:
        environment = os.environ | {"DOCKER_BUILDKIT": "1" if buildkit else "0"}
        return measure([self.docker, "--host", self.docker_host, *arguments], environment, self.directory)

    def empty_engine(self) -> None:
        """Remove every image and BuildKit's cache, so that the engine never saw the base."""
        self.docker_run("system", "prune", "--all", "--force")
        self.docker_run("builder", "prune", "--all", "--force")

    # --- the registry ---

    def push(self, base: Base, repository: str) -> str:
        """Copy a base to the registry; its reference by digest."""
        source = f"oci:{base.layout.directory}:{base.tag}"
        target = f"docker://{self.registry}/{repository}:{base.tag}"
        command = [
            "skopeo",
            "--insecure-policy",
            "copy",
            "--quiet",
            "--dest-tls-verify=false",
            source,
            target,
        ]
        subprocess.run(command, check=True)
        return f"{self.registry}/{repository}@{base.digest}"

    def get(self, path: str) -> bytes:
        request = urllib.request.Request(f"http://{self.registry}/v2/{path}", headers={"Accept": MANIFESTS})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def blob_size(self, repository: str, digest: str) -> int:
        request = urllib.request.Request(
            f"http://{self.registry}/v2/{repository}/blobs/{digest}", method="HEAD"
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.headers["Content-Length"])

    def manifest(self, repository: str, reference: str) -> dict[str, object]:
        return dict(json.loads(self.get(f"{repository}/manifests/{reference}")))
