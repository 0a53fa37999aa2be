"""Which address does a message queue advertise, and what happens when nobody connects to it?

A host on two networks is played: the default route leads through 192.168.1.5 (Wi-Fi), the ranks met at
10.0.0.1, which is this host's address on the cable between the nodes. Then queues wait for readers and
writers that come in time, late, or never.
"""

from __future__ import annotations

import ipaddress
import socket as real_socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

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
ENVIRON = "python/sglang/srt/environ.py"

WIFI, CABLE, FIBRE, PORT = "192.168.1.5", "10.0.0.1", "172.16.0.7", 40000
INTERFACES = {"wlan0": WIFI, "cx7": CABLE, "ib0": FIBRE}
NAMES = {  # what a name resolves to; names that are not here resolve to nothing
    "spark-1": ("127.0.1.1",),  # this host
    "spark-0": ("fd00::2", "10.0.0.2"),  # the other one; nothing leads to its first address
}
PATIENCE = 24 * 3600.0  # seconds after which a wait counts as one without an end
BOUND = 3600.0  # seconds within which a start that cannot succeed must end
OURS, OUR_BOUND = "SGLANG_MESSAGE_QUEUE_READY_TIMEOUT", 120.0
CRASHES = (AttributeError, NameError, TypeError, LookupError, ArithmeticError)


# --- time and ZeroMQ ---------------------------------------------------------------------------------


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


@dataclass
class Wire:
    """What arrives at a queue's sockets, local and remote, and what they send.

    Args:
        local, remote: messages and the second, from the start of a wait, at which each arrives.
        slow: seconds for which the process stands still after it took a message.
    """

    local: list[tuple[float, bytes]] = field(default_factory=list)
    remote: list[tuple[float, bytes]] = field(default_factory=list)
    slow: float = 0.0
    start: float = 0.0
    sent: list[tuple[str, float, bytes]] = field(default_factory=list)


class ZmqSocket:
    """A ZeroMQ socket; whether it is a local one follows from what it is bound or connected to."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._receive_timeout = -1
        self._side = ""

    def setsockopt(self, option: object, value: int) -> None:
        if isinstance(option, str) and option == "RCVTIMEO":
            self._receive_timeout = value

    set = setsockopt

    def setsockopt_string(self, option: object, value: str) -> None:
        pass

    def bind(self, address: str) -> None:
        self._side = "local" if "://127." in address or address.startswith("ipc") else "remote"

    connect = bind

    def bind_to_random_port(self, address: str, *args: object, **kwargs: object) -> int:
        self.bind(address)
        return PORT

    def send(self, data: bytes, *args: object) -> None:
        self._host.wire.sent.append((self._side, self._host.clock.now, data))

    def _arrives(self) -> float | None:
        waiting = getattr(self._host.wire, self._side)
        return self._host.wire.start + waiting[0][0] if waiting else None

    def poll(self, timeout: float | None = None, flags: object = None) -> int:
        clock, arrives = self._host.clock, self._arrives()
        last = None if timeout is None or timeout < 0 else clock.now + timeout / 1000
        if arrives is not None and (last is None or arrives <= max(last, clock.now)):
            clock.sleep(max(0.0, arrives - clock.now))
            return 1
        if last is None:
            raise WaitsForEver
        clock.sleep(last - clock.now)
        return 0

    def recv(self, flags: object = 0, *args: object) -> bytes:
        now = isinstance(flags, str)  # NOBLOCK is the only flag given a value here
        if not self.poll(0 if now else None if self._receive_timeout < 0 else self._receive_timeout):
            raise AgainError("Resource temporarily unavailable")
        _, message = getattr(self._host.wire, self._side).pop(0)
        self._host.clock.sleep(self._host.wire.slow)
        return bytes(message)


class Poller:
    def __init__(self) -> None:
        self._sockets: list[ZmqSocket] = []

    def register(self, socket: ZmqSocket, flags: object = None) -> None:
        self._sockets.append(socket)

    def poll(self, timeout: float | None = None) -> list[tuple[ZmqSocket, int]]:
        return [(socket, 1) for socket in self._sockets[:1] if socket.poll(timeout)]


# --- the host ----------------------------------------------------------------------------------------


@dataclass
class Host:
    """A host of which a case says how it is connected, where the ranks met, and what arrives."""

    online: bool = True
    met: str | None = f"{CABLE}:20000"  # as the server's arguments say it
    initialized: bool = False
    clock: Clock = field(default_factory=Clock)
    wire: Wire = field(default_factory=Wire)

    def source_towards(self, address: str) -> str:
        host = ipaddress.ip_address(address)
        if host.is_loopback:
            return str(host)
        if host.version == 6 or not self.online:
            raise OSError("network is unreachable")
        return CABLE if host in ipaddress.ip_network("10.0.0.0/24") else WIFI

    def stubs(self) -> dict[str, object]:
        zmq = Opaque(
            "zmq",
            **{name: name for name in ("NOBLOCK", "RCVTIMEO", "POLLIN", "SUB", "XPUB")},
            Context=lambda *args: SimpleNamespace(socket=lambda kind: ZmqSocket(self)),
            Again=AgainError,
            ZMQError=AgainError,
            Poller=Poller,
        )
        addresses = {name: [SimpleNamespace(family=2, address=ip)] for name, ip in INTERFACES.items()}
        netifaces = SimpleNamespace(
            AF_INET=2, AF_INET6=10, ifaddresses=lambda name: {2: [{"addr": INTERFACES[name]}]}
        )
        return {
            "zmq": zmq,
            "socket": _sockets(self),
            "time": self.clock,
            "psutil.net_if_addrs": lambda: addresses,
            "netifaces": netifaces,
            "get_open_port": lambda: PORT,
            "get_parallel": lambda: self._settings("get_parallel()"),
            "get_server_args": lambda: self._settings("get_server_args()"),
            "ShmRingBuffer": Opaque("ShmRingBuffer"),
            "torch.distributed.is_initialized": lambda: self.initialized,
            "torch.distributed.get_world_size": lambda *group: 2,
            "init_world_group": lambda *args, **named: SimpleNamespace(world_size=2),
            "get_torch_distributed_pg_options": lambda *args: None,
        }

    def _settings(self, name: str) -> Opaque:
        return Opaque(name, dist_init_addr=self.met, nnodes=2, node_rank=0)


class DatagramSocket:
    """A UDP socket whose connect() chooses the source address by the route."""

    def __init__(self, host: Host) -> None:
        self._host, self._source = host, ("", 0)

    def connect(self, address: tuple[str, int]) -> None:
        self._source = (self._host.source_towards(address[0]), 50000)

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


def _addresses(host: str) -> tuple[str, ...]:
    try:
        return (str(ipaddress.ip_address(host)),)
    except ValueError:
        if host not in NAMES:
            raise real_socket.gaierror(-2, "Name or service not known") from None
        return NAMES[host]


def _look_up(host: str, port: object = None, *args: object, **kwargs: object) -> list[tuple[object, ...]]:
    families = {4: real_socket.AF_INET, 6: real_socket.AF_INET6}
    return [
        (families[ipaddress.ip_address(a).version], real_socket.SOCK_DGRAM, 17, "", (a, port or 0))
        for a in _addresses(host)
    ]


def _sockets(host: Host) -> SimpleNamespace:
    constants = {name: value for name, value in vars(real_socket).items() if name.isupper()}
    return SimpleNamespace(
        **constants,
        socket=lambda *args: DatagramSocket(host),
        gaierror=real_socket.gaierror,
        error=OSError,
        timeout=TimeoutError,
        getaddrinfo=_look_up,
        gethostbyname=lambda name: _addresses(name)[-1],
        gethostname=lambda: "spark-1" if host.online else "nameless",
        inet_pton=real_socket.inet_pton,
    )


class Queues:
    """The message queues of a tree on a host."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.host = Host()
        program = Program(tree, self.host.stubs())
        groups = locate(tree, GROUPS, b"def init_distributed_environment")
        if groups is None:
            raise CannotTell("nothing defines init_distributed_environment")
        self._meet = program.module(groups).init_distributed_environment
        self._make = program.module(path).MessageQueue

    @contextmanager
    def _as(self, variables: dict[str, str], **state: object) -> Iterator[None]:
        for name, value in (vars(Host()) | state).items():
            if name not in ("clock", "wire"):
                setattr(self.host, name, value)
        with environment(**variables):
            yield

    def _join(self, method: str, variables: dict[str, str], state: dict[str, Any]) -> None:
        with self._as(variables, **state):
            call(
                self._meet,
                world_size=2,
                rank=0,
                local_rank=0,
                distributed_init_method=method,
                backend="gloo",
                timeout=None,
                moe_a2a_backend="none",
                max_world_size=None,
                recovered_rank=False,
            )

    def advertised(
        self,
        method: str | None = f"tcp://{CABLE}:20000",
        *,
        remote: int = 1,
        variables: Any = (),
        **state: object,
    ) -> str:
        """The address that a new queue advertises after the ranks met like this.

        Args:
            method: where they met, as torch is told it; ``None`` when they did not.
            remote: readers on other nodes; without one there is a reader on this node.
            variables: of the environment.
            state: of the host.
        """
        if method is not None:
            self._join("env://", {}, {"met": None})  # nothing is left of the case before
            self._join(method, dict(variables), state)
        with self._as(dict(variables), **state):
            queue = self._make(n_reader=max(remote, 1), n_local_reader=0 if remote else 1)
            return str(queue.handle.connect_ip)

    def writer(self, local: int, remote: int) -> Any:
        self.advertised()
        with self._as({}):
            return self._make(n_reader=local + remote, n_local_reader=local)

    def reader(self, local: bool) -> Any:
        handle = self.writer(2, 2).export_handle()
        return self._make.create_from_handle(handle, 0 if local else 3)

    def wait(self, queue: Any, wire: Wire, **variables: str) -> Waited:
        """What comes of a wait."""
        clock = self.host.clock
        clock.now = wire.start = 1000.0
        self.host.wire = wire
        said: str | None = ""
        try:
            with self._as(variables):
                queue.wait_until_ready()
        except WaitsForEver:
            said = None
        except CRASHES as error:
            raise CannotTell(f"a wait ends with {type(error).__name__}: {error}") from error
        except Exception as error:
            said = str(error) or type(error).__name__
        return Waited(said, clock.now - wire.start, wire)


@dataclass(frozen=True)
class Waited:
    """What came of a wait.

    Args:
        said: the error that ended it; ``""`` when all is well, ``None`` when nothing ended it.
        seconds: how long it took.
    """

    said: str | None
    seconds: float
    wire: Wire

    def greeted(self, side: str) -> bool:
        """Whether the readers of one side were told READY, and not before all had connected."""
        return any(s == side and data == b"READY" and at == self.last for s, at, data in self.wire.sent)

    @property
    def last(self) -> float:
        return self.wire.start + self.seconds


# --- the questions -----------------------------------------------------------------------------------


def _wrong_addresses(queues: Queues) -> list[str]:
    """What is advertised that readers on the cable cannot use, or that the user did not want."""
    ask = queues.advertised
    no_rendezvous = {"method": "env://", "met": None}
    unmet = _or_error(lambda: ask(None, met=None))  # first of all, while nothing is known
    cases = {
        "the ranks met on the network of 10.0.0.1": (CABLE, ask()),
        "they met there before SGLang started": (CABLE, ask(initialized=True)),
        "MASTER_ADDR is 10.0.0.1": (CABLE, ask("env://", variables={"MASTER_ADDR": CABLE})),
        "they met at a name of the other host": (CABLE, ask("tcp://spark-0:20000", met="spark-0:20000")),
        "SGLANG_HOST_IP says so": ("172.16.0.9", ask(variables={"SGLANG_HOST_IP": "172.16.0.9"})),
        "HOST_IP says so": ("172.16.0.8", ask(variables={"HOST_IP": "172.16.0.8"})),
        "SGLANG_HOST_IP comes before HOST_IP": (
            "172.16.0.9",
            ask(variables={"SGLANG_HOST_IP": "172.16.0.9", "HOST_IP": "172.16.0.8"}),
        ),
        "SGLANG_LOCAL_IP_NIC names its interface": (FIBRE, ask(variables={"SGLANG_LOCAL_IP_NIC": "ib0"})),
    }
    wrong = [
        f"advertises {got}, although {why} ({right})" for why, (right, got) in cases.items() if got != right
    ]
    fallbacks = {
        "no rank has met another": lambda: unmet,
        "no rendezvous host is known": lambda: ask(**no_rendezvous),
        "the rendezvous host is this host's loopback": lambda: ask(
            "tcp://spark-1:20000", met="spark-1:20000"
        ),
        "the rendezvous host cannot be resolved": lambda: ask("tcp://nowhere:20000", met="nowhere:20000"),
    }
    for why, fallback in fallbacks.items():
        got = _or_error(fallback)
        if got != WIFI:
            wrong.append(f"advertises {got} instead of the default route's {WIFI} where {why}")
    nothing = _or_error(lambda: ask(**no_rendezvous, online=False))
    if "refused" not in nothing:
        wrong.append(f"advertises {nothing} on a host without a network")
    alone = _or_error(lambda: ask(**no_rendezvous, remote=0, online=False))
    if alone != "127.0.0.1":
        wrong.append(f"a queue within one node advertises {alone}")
    return wrong


def _or_error(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except CRASHES as error:
        raise CannotTell(f"no address is chosen: {type(error).__name__}: {error}") from error
    except Exception as error:
        return f"refused: {error}"


NEVER: list[tuple[float, bytes]] = []
JOINED = b"\x01"


def _at(*seconds: float, message: bytes = JOINED) -> list[tuple[float, bytes]]:
    return [(second, message) for second in seconds]


def _wrong_waits(queues: Queues, ours: bool) -> list[str]:
    """Waits that have no end, end too soon, or end well although somebody is missing."""
    late = (60.0, 110.0) if ours else (10.0, 20.0)
    wrong = []
    for side, writer in (("local", queues.writer(2, 0)), ("remote", queues.writer(0, 2))):
        both = queues.wait(writer, Wire(**{side: _at(*late)}))
        if both.said != "" or not both.greeted(side):
            wrong.append(
                f"a writer whose two {side} readers connect after {late} s is not ready: {both.said}"
            )
        for missing, arrivals in (("no", NEVER), ("one", _at(1.0))):
            waited = queues.wait(writer, Wire(**{side: list(arrivals)}))
            wrong += _unended(f"a writer of which {missing} {side} reader connects", waited, ours, side)
        asleep = queues.wait(writer, Wire(**{side: _at(1.0), "slow": 2 * BOUND}))
        if asleep.said is None:
            wrong.append(f"a writer that was stopped after the first {side} reader waits for ever")
    mixed = queues.writer(1, 1)
    whole = queues.wait(mixed, Wire(local=_at(1.0), remote=_at(2.0)))
    if whole.said != "" or {side for side, _, data in whole.wire.sent if data == b"READY"} != {
        "local",
        "remote",
    }:
        wrong.append(f"a writer with a reader on each side is not ready: {whole.said}")
    for side in ("local", "remote"):
        half = queues.wait(mixed, Wire(**{side: _at(1.0)}))
        other = "remote" if side == "local" else "local"
        wrong += _unended(f"a writer whose {other} reader never connects", half, ours, other)
        reader = queues.reader(side == "local")
        told = queues.wait(reader, Wire(**{side: _at(late[1], message=b"READY")}))
        if told.said != "":
            wrong.append(f"a {side} reader that is told READY after {late[1]} s is not ready: {told.said}")
        if queues.wait(reader, Wire(**{side: _at(1.0, message=b"NOT YET")})).said == "":
            wrong.append(f"a {side} reader that is told NOT YET is ready")
        untold = queues.wait(reader, Wire())
        wrong += _unended(f"a {side} reader whose writer never answers", untold, ours, side)
    return wrong


def _unended(who: str, waited: Waited, ours: bool, side: str) -> list[str]:
    """What is wrong with the end of a wait that must fail."""
    if waited.said is None or waited.seconds > BOUND:
        return [f"{who} waits {'for ever' if waited.said is None else f'{waited.seconds:.0f} s'}"]
    if not waited.said:
        return [f"{who} is called ready"]
    if ours and abs(waited.seconds - OUR_BOUND) > 1:
        return [f"{who} waits {waited.seconds:.1f} s, not {OUR_BOUND:.0f} s"]
    helpful = [text in waited.said for text in ("SGLANG_HOST_IP", CABLE, "cx7")]
    if side == "remote" and not (all(helpful) if ours else any(helpful)):
        return [f"{who} says neither address, interface nor SGLANG_HOST_IP: {waited.said[:60]}"]
    return []


def _wrong_setting(queues: Queues) -> list[str]:
    """What is wrong with the setting that our own patch adds."""
    writer, wrong = queues.writer(0, 2), []
    for seconds, expected in (("30", 30.0), ("0", None)):
        waited = queues.wait(writer, Wire(remote=_at(1.0)), **{OURS: seconds})
        ended = None if waited.said is None else waited.seconds
        endless = ended is None or expected is None
        right = ended is expected if endless else abs(ended - expected) < 1
        if not right:
            wrong.append(f"with {OURS}={seconds} a wait ends after {ended} s")
    return wrong


def probe(tree: Tree) -> Answer:
    path = locate(tree, QUEUE, b"class MessageQueue")
    if path is None:
        return unknown("the queue was not found: nothing defines class MessageQueue")
    queues = Queues(tree, path)
    ours = ENVIRON in tree and OURS.encode() in tree.read(ENVIRON)
    addresses, waits = _wrong_addresses(queues), _wrong_waits(queues, ours)
    settings = _wrong_setting(queues) if ours and not waits else []
    wrong = addresses[:1] + waits[:2] + settings
    if wrong:
        more = len(addresses + waits + settings) - len(wrong)
        return defect("; ".join(wrong) + (f"; and {more} more" if more else ""))
    return fixed(
        f"advertises {CABLE}, where the ranks met, not {WIFI}; writers and readers stop waiting and say so"
    )
