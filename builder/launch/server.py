"""One rank as a container: image by digest, command, environment, directories, health and grace.

Renderings (:mod:`builder.launch.shell` and its neighbours) write these values down in their own languages;
none of them adds a fact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from builder.errors import UsageError
from builder.launch.arguments import Arguments, Parser, merged
from builder.launch.nodes import Node, with_port
from builder.verify.config import RankSettings

START = ("python3", "-m", "sglang.launch_server")
CACHE = "/var/cache/sglang-overlay"  # in the container; on the host below it, by patch set
GRACE = 120  # seconds for running requests and the release of the GPU
HEALTH_INTERVAL = 30  # seconds
HEALTH_RETRIES = 10
HEALTH_START = 3600  # seconds in which a server that loads weights is not yet called unhealthy
SHARED_MEMORY = "32gb"

# Compiled kernels are keyed by source time or by name alone: of another patch set they would be wrong ones.
CACHES = {
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_DG_CACHE_DIR": "deep_gemm",
    "TRITON_CACHE_DIR": "triton",
    "TILELANG_CACHE_DIR": "tilelang",
    "TVM_FFI_CACHE_DIR": "tvm_ffi",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
}
INTERFACE_PINS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")

# What launch itself says, and who says it otherwise.
OWN = {
    "--nnodes": "--nodes",
    "--node-rank": "--nodes",
    "--dist-init-addr": "--nodes and --rendezvous-port",
    "--host": "--listen",
    "--port": "--port",
}


@dataclass(frozen=True)
class Volume:
    """A directory of the host, in the container."""

    host: str
    container: str
    read_only: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.container}" + (":ro" if self.read_only else "")


@dataclass(frozen=True)
class Listening:
    """Where a server answers, and where the ranks meet."""

    address: str = "127.0.0.1"
    port: int = 30000
    rendezvous_port: int = 25000


@dataclass(frozen=True)
class Rank:
    """One rank.

    Args:
        name: of the container.
        node: where it runs.
        image: ``REPOSITORY@sha256:…``.
        command: of the container, without the image's own entry point.
        environment: without the interface pins, which follow from the node.
        volumes: directories of the host.
        devices: of the host.
        health: the command that says whether it is well.
    """

    name: str
    node: Node
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    volumes: tuple[Volume, ...]
    devices: tuple[str, ...]
    health: tuple[str, ...]

    @property
    def pins(self) -> dict[str, str]:
        """The interface pins; none where the interface is not known."""
        return dict.fromkeys(INTERFACE_PINS, self.node.interface) if self.node.interface else {}

    def as_json(self) -> dict[str, object]:
        return {
            "rank": self.node.rank,
            "name": self.name,
            "address": str(self.node.address),
            "interface": self.node.interface,
            "image": self.image,
            "command": list(self.command),
            "environment": {**self.environment, **self.pins},
            "volumes": [str(volume) for volume in self.volumes],
            "devices": list(self.devices),
        }


@dataclass(frozen=True)
class Server:
    """What all ranks share.

    Args:
        name: of the overlay.
        image: by digest.
        patchset: its digest, which names the cache directory.
        arguments: of the server, checked; without those of :data:`OWN`.
        listening: addresses and ports.
        cache: directory on the host for compiled kernels.
        volumes, devices: beside the caches.
    """

    name: str
    image: str
    patchset: str
    arguments: Arguments
    listening: Listening = field(default_factory=Listening)
    cache: str = CACHE
    volumes: tuple[Volume, ...] = ()
    devices: tuple[str, ...] = ()

    def ranks(self, nodes: Sequence[Node]) -> list[Rank]:
        """Every rank, each with its own address."""
        return [self._rank(node, nodes) for node in nodes]

    def _rank(self, node: Node, nodes: Sequence[Node]) -> Rank:
        own = [] if len(nodes) == 1 else self._meeting(node, nodes)
        own += ["--host", self.listening.address, "--port", str(self.listening.port)]
        command = (*START, *self.arguments.words(), *own)
        kernels = Volume(f"{self.cache}/{self.patchset.removeprefix('sha256:')[:12]}", CACHE)
        return Rank(
            name=f"{self.name}-rank{node.rank}",
            node=node,
            image=self.image,
            command=command,
            environment={"SGLANG_HOST_IP": str(node.address)}
            | {variable: f"{CACHE}/{directory}" for variable, directory in CACHES.items()},
            volumes=(kernels, *self.volumes),
            devices=self.devices,
            health=_health(self.listening),
        )

    def _meeting(self, node: Node, nodes: Sequence[Node]) -> list[str]:
        where = with_port(nodes[0].address, self.listening.rendezvous_port)
        return ["--nnodes", str(len(nodes)), "--node-rank", str(node.rank), "--dist-init-addr", where]


def server_arguments(
    parser: Parser, recommended: Mapping[str, str | bool], given: Sequence[str], nodes: int
) -> Arguments:
    """The overlay's recommended arguments, and over them those that were given; all known to the release.

    Args:
        parser: the release's.
        recommended: the spec's ``arguments``.
        given: words of the command line.
        nodes: how many there are.

    Raises:
        UsageError: an argument is not known, is launch's own affair, is missing, or does not fit the nodes.
    """
    words = [
        word
        for name, value in recommended.items()
        for word in ((name,) if value is True else (name, str(value)))
    ]
    advice = parser.read(words)
    if (meant := advice.first("--nnodes")) is not None and int(meant) != nodes:
        raise UsageError(
            "the overlay is meant for another number of nodes",
            where="--nodes",
            expected=f"{meant} (arguments of the overlay's spec)",
            found=str(nodes),
        )
    own = {parser.find(name).name: option for name, option in OWN.items()}
    said = parser.read(given)
    for name in said.values:
        if name in own:
            raise UsageError(
                "launch says this itself", where="server arguments", found=name, hint=f"use {own[name]}"
            )
    arguments = merged(advice, said)
    arguments = Arguments({name: value for name, value in arguments.values.items() if name not in own})
    parser.check_required(arguments)
    _check_parallel(arguments, nodes)
    return arguments


def _check_parallel(arguments: Arguments, nodes: int) -> None:
    """What the server asserts of its own when it starts, on every node at once."""
    size = arguments.number("--tp-size", 1) * arguments.number("--pp-size", 1)
    if size % nodes:
        raise UsageError(
            "the ranks cannot be spread over the nodes",
            where="--tp-size",
            expected=f"tp-size times pp-size is a multiple of {nodes} nodes",
            found=str(size),
            hint=f"--tp-size {nodes}",
        )
    if nodes > 1 and arguments.number("--dp-size", 1) > 1 and not arguments.has("--enable-dp-attention"):
        raise UsageError(
            "data parallelism over several nodes needs data-parallel attention",
            where="--dp-size",
            hint="add --enable-dp-attention, or run one server a node",
        )


def rank_settings() -> RankSettings:
    """What a container may be started with that launch started, for who looks at it later."""
    return RankSettings(
        fixed={variable: f"{CACHE}/{directory}" for variable, directory in CACHES.items()},
        free=frozenset({"SGLANG_HOST_IP", *INTERFACE_PINS}),
        command=START,
        own_options=frozenset(OWN),
        health=re.compile(
            r"""python3 -c '?import urllib\.request; urllib\.request\.urlopen\("""
            r""""http://[][\w.:]+/health", timeout=10\)'?"""
        ),
    )


def _health(listening: Listening) -> tuple[str, ...]:
    """Asks the server of this container; all ranks answer, those above 0 from a small server of their own.

    Python is what every such image has for sure.
    """
    any_address = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (what to ask instead of them)
    address = any_address.get(listening.address, listening.address)
    host = f"[{address}]" if ":" in address else address
    url = f"http://{host}:{listening.port}/health"
    return ("python3", "-c", f'import urllib.request; urllib.request.urlopen("{url}", timeout=10)')
