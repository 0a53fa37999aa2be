"""``shm-broadcast-host-ip``: the defect, both patches, ways to break them, and other ways to mend it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builder.probe.harness import Answer, Tree
from builder.probe.run import Prober
from builder.probe.trees import MappingTree
from tests.integration.sources import PATCHES, changed, patched, release_tree

PROBE = PATCHES / "probes" / "shm-broadcast-host-ip.py"
SRT = "python/sglang/srt/"
QUEUE = SRT + "distributed/device_communicators/shm_broadcast.py"
GROUPS = SRT + "distributed/parallel_state.py"
NETWORK = SRT + "utils/network.py"
ENVIRON = SRT + "environ.py"


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    with Prober() as prober:
        yield prober


@pytest.fixture(scope="module")
def mended() -> dict[str, MappingTree]:
    return {v: patched(release_tree(v), f"v{v}/shm-broadcast-host-ip") for v in ("0.5.17", "0.5.20")}


def renamed(tree: Tree, names: dict[str, str], *paths: str) -> MappingTree:
    """``tree`` with names replaced wherever they stand in these files."""
    files: dict[str, bytes | None] = {}
    for path in paths:
        text = tree.read(path)
        for old, new in names.items():
            assert old.encode() in text
            text = text.replace(old.encode(), new.encode())
        files[path] = text
    return MappingTree(files, tree)


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20", "0.5.23"])
def test_every_release_advertises_the_default_route(prober: Prober, version: str) -> None:
    answer = prober.ask(PROBE, release_tree(version))
    assert answer.state == "defect"
    assert "advertises 192.168.1.5" in answer.evidence
    assert answer.evidence.count("waits for ever") == 2


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20"])
def test_patch_advertises_the_rendezvous_network(
    prober: Prober, mended: dict[str, MappingTree], version: str
) -> None:
    answer = prober.ask(PROBE, mended[version])
    assert answer.state == "fixed", answer
    assert "advertises 10.0.0.1" in answer.evidence


READER_WAIT = """            message = recv(
                self.remote_socket,
                "the writer on another node sent nothing",
                self._unreachable_hint,
            )
"""
WRITER_WAIT = """                recv(
                    self.remote_socket,
                    f"only {i} of {self.n_remote_reader} remote readers connected",
                    self._unreachable_hint,
                )
"""
PEER_FIRST = """    if peer:
        if ip := get_local_ip_towards(peer):
            return ip
        logger.warning(
            f"No network of this host leads to {peer}; using the default route's "
            "address. Set SGLANG_HOST_IP if other nodes can not reach it."
        )
    # Fallback
    if ip := get_local_ip_by_remote():
        return ip
"""
PEER_LAST = """    # Fallback
    if ip := get_local_ip_by_remote():
        return ip
    if peer:
        if ip := get_local_ip_towards(peer):
            return ip
"""
BROKEN = {
    "guess again": (QUEUE, {"get_local_ip_auto(peer=get_rendezvous_host())": 'get_local_ip_auto("0.0.0.0")'}),
    "rendezvous not recorded": (GROUPS, {"    _DISTRIBUTED_INIT_METHOD = distributed_init_method\n": ""}),
    "default route before the peer": (NETWORK, {PEER_FIRST: PEER_LAST}),
    "SGLANG_HOST_IP not read": (
        NETWORK,
        {'os.getenv("SGLANG_HOST_IP", "") or os.getenv("HOST_IP", "")': 'os.getenv("HOST_IP", "")'},
    ),
    "readers wait for ever": (QUEUE, {READER_WAIT: "            message = self.remote_socket.recv()\n"}),
    "writers wait for ever": (QUEUE, {WRITER_WAIT: "                self.remote_socket.recv()\n"}),
    "no bound unless configured": (
        ENVIRON,
        {"_MESSAGE_QUEUE_READY_TIMEOUT = EnvInt(120)": "_MESSAGE_QUEUE_READY_TIMEOUT = EnvInt(0)"},
    ),
    "nobody there is called ready": (QUEUE, {"raise TimeoutError(": "return str("}),
    "error without address and variable": (
        QUEUE,
        {'f"MessageQueue: {problem} within {timeout} s. {hint()}"': '"MessageQueue: not ready."'},
    ),
    "peers that connect are refused": (QUEUE, {"if not sock.poll(": "if sock.poll("}),
}


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20"])
@pytest.mark.parametrize("mutation", BROKEN)
def test_broken_patch_is_not_called_fixed(
    prober: Prober, mended: dict[str, MappingTree], mutation: str, version: str
) -> None:
    path, edits = BROKEN[mutation]
    answer = prober.ask(PROBE, changed(mended[version], path, edits))
    assert answer.state in ("defect", "unknown"), answer


BOUNDED_BY_POLL = """            left = None if deadline is None else deadline - time.monotonic()
            if not sock.poll(None if left is None else max(0, int(left * 1000))):
                raise TimeoutError(
"""
BOUNDED_BY_OPTION = """            sock.setsockopt(zmq.RCVTIMEO, int(timeout * 1000))
            try:
                return sock.recv()
            except zmq.Again:
                raise TimeoutError(
"""


def with_other_names(tree: Tree) -> Tree:
    names = {"get_local_ip_towards": "source_address_for", "get_nic_of_local_ip": "nic_with"}
    tree = renamed(tree, names, QUEUE, NETWORK)
    return renamed(tree, {"_DISTRIBUTED_INIT_METHOD": "_MET_AT"}, GROUPS)


def with_the_address_in_a_method(tree: Tree) -> Tree:
    edits = {
        "                connect_ip = get_local_ip_auto(peer=get_rendezvous_host())\n": (
            "                connect_ip = self._address(get_rendezvous_host())\n"
        ),
        "    def export_handle(self)": (
            "    def _address(self, host):\n        return get_local_ip_auto(None, host)\n\n"
            "    def export_handle(self)"
        ),
    }
    return changed(tree, QUEUE, edits)


def with_a_socket_option(tree: Tree) -> Tree:
    edits = {BOUNDED_BY_POLL: BOUNDED_BY_OPTION, "\nimport torch\n": "\nimport torch\nimport zmq\n"}
    return changed(tree, QUEUE, edits)


def with_the_configured_rendezvous(tree: Tree) -> Tree:
    """As upstream might do it: by the server's arguments, not by what torch was told."""
    edits = {
        "from sglang.srt.distributed.parallel_state import get_rendezvous_host": (
            "from sglang.srt.runtime_context import get_parallel"
        ),
        "peer=get_rendezvous_host()": "peer=NetworkAddress.parse(get_parallel().dist_init_addr).host",
    }
    return changed(tree, QUEUE, edits)


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20"])
@pytest.mark.parametrize(
    "rewrite",
    [
        with_other_names,
        with_the_address_in_a_method,
        with_a_socket_option,
        with_the_configured_rendezvous,
    ],
    ids=lambda rewrite: rewrite.__name__,
)
def test_the_same_mend_in_other_words_is_still_fixed(
    prober: Prober, mended: dict[str, MappingTree], version: str, rewrite: object
) -> None:
    answer: Answer = prober.ask(PROBE, rewrite(mended[version]))  # type: ignore[operator]
    assert answer.state == "fixed", answer


def test_moved_file_is_found(prober: Prober, mended: dict[str, MappingTree]) -> None:
    tree = mended["0.5.20"]
    there = {path: tree.read(path) for path in tree.paths(SRT) if path.endswith(".py")}
    moved = {**there, SRT + "distributed/message_queue.py": there.pop(QUEUE)}
    assert prober.ask(PROBE, MappingTree(moved)).state == "fixed"


def test_queue_that_is_not_found_is_unknown(prober: Prober) -> None:
    assert prober.ask(PROBE, MappingTree({SRT + "x.py": b"pass\n"})).state == "unknown"


def test_queue_without_what_it_needs_is_unknown(prober: Prober, mended: dict[str, MappingTree]) -> None:
    tree = mended["0.5.20"]
    for missing in (GROUPS, NETWORK, ENVIRON):
        rest = {path: tree.read(path) for path in (QUEUE, GROUPS, NETWORK, ENVIRON) if path != missing}
        answer = prober.ask(PROBE, MappingTree(rest))
        assert answer.state == "unknown", (missing, answer)
