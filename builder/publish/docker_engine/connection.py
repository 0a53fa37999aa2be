"""The connection to a Docker Engine, and its failures in this tool's words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from builder.errors import Unavailable

if TYPE_CHECKING:
    from docker import DockerClient

TIMEOUT = 600.0  # seconds of silence; loading a large layer takes a while


class Engine:
    """One Docker Engine (``DOCKER_HOST``, else the local socket).

    Args:
        client: docker-py's client.
        host: its address, as the client program takes it.
    """

    def __init__(self, client: DockerClient, host: str) -> None:
        self.client = client
        self.host = host

    @property
    def api(self) -> Any:
        """docker-py's calls that stream; they carry no types."""
        return self.client.api

    @property
    def stores_blobs(self) -> bool:
        """Whether it keeps images in containerd, as blobs; older ones keep unpacked layers alone."""
        status = self.client.info().get("DriverStatus") or []
        return any("io.containerd.snapshotter" in str(value) for value in status)

    @property
    def takes_layers_left_out(self) -> bool:
        """Whether it loads an image without the layers that it has: Docker's does, podman's does not."""
        parts = self.client.version().get("Components") or []
        return not self.stores_blobs and any(part.get("Name") == "Engine" for part in parts)

    def version(self) -> str:
        return str(self.client.version().get("Version", "?"))


@contextmanager
def connect() -> Iterator[Engine]:
    """A connection that was tried.

    Raises:
        Unavailable: no engine answers.
    """
    import docker
    from docker.errors import DockerException

    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        client = docker.DockerClient.from_env(timeout=int(TIMEOUT))
        client.ping()
    except (DockerException, OSError, ValueError) as error:
        raise Unavailable(
            "no Docker Engine answers",
            where=host,
            found=str(error)[:300],
            hint="start it, or name it in DOCKER_HOST; without one, name an image in a registry or oci:DIR",
        ) from error
    try:
        yield Engine(client, host)
    finally:
        client.close()


@contextmanager
def engine_errors(what: str, where: str) -> Iterator[None]:
    """Turn what docker-py raises into :class:`Unavailable`, with the engine's own words."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException) as error:
        raise Unavailable(f"the Docker Engine failed: {what}", where=where, found=_said(error)) from error


def is_missing(error: BaseException | None) -> bool:
    """Whether the engine said that there is no such thing."""
    return bool(getattr(getattr(error, "response", None), "status_code", None) == 404)


def _said(error: Any) -> str:
    return str(getattr(error, "explanation", None) or error)[:2000]
