"""Which address does a message queue advertise, and what happens when nobody connects to it?

A host on two networks is played: the default route leads through 192.168.1.5 (Wi-Fi), the ranks met at
10.0.0.1, which is this host's address on the cable between the nodes.
"""

from __future__ import annotations

import ipaddress
import socket as real_socket
from types import SimpleNamespace

from builder.probe.harness import (
    Answer,
    CannotTell,
    Opaque,
    Program,
    Tree,
    call,
    defect,
    environment,
    fixed,
    locate,
    unknown,
)

QUEUE = ["python/sglang/srt/distributed/device_communicators/shm_broadcast.py"]
GROUPS = ["python/sglang/srt/distributed/parallel_state.py"]
WIFI, CABLE, PORT = "192.168.1.5", "10.0.0.1", 40000
PATIENCE = 24 * 3600.0  # seconds after which a wait counts as one without an end


class WaitsForEver(BaseException):
    """The source waits and nothing bounds it."""


class Clock:
    """Time that passes only while the source waits or looks at it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.sleep(0.001)
        return self.now

    time = perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > PATIENCE:
            raise WaitsForEver


class AgainError(Exception):
    """zmq.Again: nothing came in time."""


class ZmqSocket:
    """A ZeroMQ socket whose peer either answers at once or never."""

    def __init__(self, clock: Clock, messages: list[bytes]) -> None:
        self._clock, self._messages = clock, messages
        self._receive_timeout = -1
        self.bound: list[str] = []

    def setsockopt(self, option: object, value: int) -> None:
        if isinstance(option, str) and option == "RCVTIMEO":
            self._receive_timeout = value

    set = setsockopt

    def setsockopt_string(self, option: object, value: str) -> None:
        pass

    def bind(self, address: str) -> None:
        self.bound.append(address)

    def bind_to_random_port(self, address: str, *args: object, **kwargs: object) -> int:
        self.bound.append(f"{address}:{PORT}")
        return PORT

    def connect(self, address: str) -> None:
        self.bound.append(address)

    def send(self, data: bytes, *args: object) -> None:
        pass

    def poll(self, timeout: float | None = None, flags: object = None) -> int:
        if self._messages:
            return 1
        if timeout is None or timeout < 0:
            raise WaitsForEver
        self._clock.sleep(timeout / 1000)
        return 0

    def recv(self, flags: object = 0, *args: object) -> bytes:
        if isinstance(flags, str) and not self._messages:  # NOBLOCK is the only flag given a value here
            raise AgainError
        if not self.poll(None if self._receive_timeout < 0 else self._receive_timeout):
            raise AgainError
        return self._messages[0]


class Poller:
    def __init__(self) -> None:
        self._sockets: list[ZmqSocket] = []

    def register(self, socket: ZmqSocket, flags: object = None) -> None:
        self._sockets.append(socket)

    def poll(self, timeout: float | None = None) -> list[tuple[ZmqSocket, int]]:
        return [(socket, 1) for socket in self._sockets[:1] if socket.poll(timeout)]


class DatagramSocket:
    """A UDP socket whose connect() chooses the source address by the route."""

    def __init__(self, *args: object) -> None:
        self._source = ("", 0)

    def connect(self, address: tuple[str, int]) -> None:
        host = ipaddress.ip_address(address[0])
        if host.version == 6:
            raise OSError("network is unreachable")
        on_cable = host in ipaddress.ip_network("10.0.0.0/24")
        self._source = (str(host) if host.is_loopback else CABLE if on_cable else WIFI, 50000)

    def getsockname(self) -> tuple[str, int]:
        return self._source

    def settimeout(self, seconds: float | None) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> DatagramSocket:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _look_up(host: str, port: object = None, *args: object, **kwargs: object) -> list[tuple[object, ...]]:
    address = "127.0.1.1" if host == "spark-1" else str(ipaddress.ip_address(host))
    family = real_socket.AF_INET6 if ":" in address else real_socket.AF_INET
    return [(family, real_socket.SOCK_DGRAM, 17, "", (address, port or 0))]


def _sockets() -> SimpleNamespace:
    constants = {name: value for name, value in vars(real_socket).items() if name.isupper()}
    return SimpleNamespace(
        **constants,
        socket=DatagramSocket,
        gaierror=real_socket.gaierror,
        error=OSError,
        timeout=TimeoutError,
        getaddrinfo=_look_up,
        gethostbyname=lambda host: _look_up(host)[0][4][0],  # type: ignore[index]
        gethostname=lambda: "spark-1",
        inet_pton=real_socket.inet_pton,
    )


def _host(tree: Tree, messages: list[bytes]) -> Program:
    """The source on the host with two networks; every ZeroMQ socket holds ``messages``."""
    clock = Clock()
    zmq = Opaque(
        "zmq",
        **{name: name for name in ("NOBLOCK", "RCVTIMEO", "POLLIN", "SUB", "XPUB")},
        Context=lambda *args: SimpleNamespace(socket=lambda kind: ZmqSocket(clock, messages)),
        Again=AgainError,
        ZMQError=AgainError,
        Poller=Poller,
    )
    interfaces = {
        name: [SimpleNamespace(family=2, address=ip)] for name, ip in (("wlan0", WIFI), ("cx7", CABLE))
    }
    met_at = {"dist_init_addr": f"{CABLE}:20000", "nnodes": 2, "node_rank": 0}
    return Program(
        tree,
        {
            "zmq": zmq,
            "socket": _sockets(),
            "time": clock,
            "psutil.net_if_addrs": lambda: interfaces,
            "netifaces": None,
            "get_open_port": lambda: PORT,
            "get_parallel": lambda: Opaque("get_parallel()", **met_at),
            "get_server_args": lambda: Opaque("get_server_args()", **met_at),
            "torch.distributed.is_initialized": lambda: True,
            "torch.distributed.get_world_size": lambda *group: 2,
            "init_world_group": Opaque("init_world_group"),
        },
    )


def _writer(tree: Tree, path: str, messages: list[bytes], **variables: str) -> tuple[Program, object]:
    """A queue with one reader on another node, after the ranks met at the rendezvous address."""
    program = _host(tree, messages)
    groups = locate(tree, GROUPS, b"def init_distributed_environment")
    if groups is None:
        raise CannotTell("nothing defines init_distributed_environment")
    with environment(**variables):
        call(
            program.module(groups).init_distributed_environment,
            world_size=2,
            rank=0,
            local_rank=0,
            distributed_init_method=f"tcp://{CABLE}:20000",
            backend="gloo",
        )
        return program, program.module(path).MessageQueue(n_reader=1, n_local_reader=0)


def _waiting(queue: object) -> str | None:
    """What the error says that ends the wait; ``""`` when all is well, ``None`` when nothing ends it."""
    try:
        with environment():
            queue.wait_until_ready()  # type: ignore[attr-defined]
    except WaitsForEver:
        return None
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def probe(tree: Tree) -> Answer:
    path = locate(tree, QUEUE, b"class MessageQueue")
    if path is None:
        return unknown("the queue was not found: nothing defines class MessageQueue")
    _, told = _writer(tree, path, [], SGLANG_HOST_IP="172.16.0.9")
    program, writer = _writer(tree, path, [])
    handle = writer.export_handle()  # type: ignore[attr-defined]
    reader = program.module(path).MessageQueue.create_from_handle(handle, 1)
    answered = [_writer(tree, path, [b"READY"])[1]]
    answered.append(_host(tree, [b"READY"]).module(path).MessageQueue.create_from_handle(handle, 1))

    faults = []
    if told.handle.connect_ip != "172.16.0.9":  # type: ignore[attr-defined]
        faults.append(f"SGLANG_HOST_IP=172.16.0.9 is not used ({told.handle.connect_ip})")  # type: ignore[attr-defined]
    if handle.connect_ip != CABLE:
        faults.append(f"advertises {handle.connect_ip}, although the ranks met on the network of {CABLE}")
    for name, queue in (("writer", writer), ("reader", reader)):
        said = _waiting(queue)
        if said is None:
            faults.append(f"a {name} whose peer never connects waits for ever")
        elif not said:
            faults.append(f"a {name} whose peer never connects is called ready")
        elif "SGLANG_HOST_IP" not in said and handle.connect_ip not in said:
            faults.append(f"a {name}'s error names neither address nor SGLANG_HOST_IP: {said[:60]}")
    if any(_waiting(queue) != "" for queue in answered):
        raise CannotTell(f"a queue whose peer does connect is not ready: {[_waiting(q) for q in answered]}")
    if faults:
        return defect("; ".join(faults))
    return fixed(
        f"advertises {CABLE}, where the ranks met, not {WIFI}; writer and reader stop waiting and say so"
    )
