"""``shm-broadcast-host-ip``: the defect, both patches, ways to break them, and other ways to repair it."""

from __future__ import annotations

import pytest

from builder.probe.run import Prober
from builder.probe.trees import MappingTree
from tests.integration.sources import PATCHES, patched, release_tree

PROBE = PATCHES / "probes" / "shm-broadcast-host-ip.py"
SRT = "python/sglang/srt/"
QUEUE = SRT + "distributed/device_communicators/shm_broadcast.py"
GROUPS = SRT + "distributed/parallel_state.py"
NETWORK = SRT + "utils/network.py"
ENVIRON = SRT + "environ.py"


@pytest.fixture(scope="module")
def repaired() -> dict[str, MappingTree]:
    return {v: patched(release_tree(v), f"v{v}/shm-broadcast-host-ip") for v in ("0.5.17", "0.5.20")}


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20", "0.5.23"])
def test_every_release_advertises_the_default_route(prober: Prober, version: str) -> None:
    answer = prober.ask(PROBE, release_tree(version))
    assert answer.state == "defect"
    assert "advertises 192.168.1.5" in answer.evidence
    assert answer.evidence.count("waits for ever") == 2


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20"])
def test_patch_advertises_the_rendezvous_network(
    prober: Prober, repaired: dict[str, MappingTree], version: str
) -> None:
    answer = prober.ask(PROBE, repaired[version])
    assert answer.state == "fixed", answer
    assert "advertises 10.0.0.1" in answer.evidence


def test_moved_file_is_found(prober: Prober, repaired: dict[str, MappingTree]) -> None:
    tree = repaired["0.5.20"]
    there = {path: tree.read(path) for path in tree.paths(SRT) if path.endswith(".py")}
    moved = {**there, SRT + "distributed/message_queue.py": there.pop(QUEUE)}
    assert prober.ask(PROBE, MappingTree(moved)).state == "fixed"


def test_queue_that_is_not_found_is_unknown(prober: Prober) -> None:
    assert prober.ask(PROBE, MappingTree({SRT + "x.py": b"pass\n"})).state == "unknown"


def test_queue_without_what_it_needs_is_unknown(prober: Prober, repaired: dict[str, MappingTree]) -> None:
    tree = repaired["0.5.20"]
    for missing in (GROUPS, NETWORK, ENVIRON):
        rest = {path: tree.read(path) for path in (QUEUE, GROUPS, NETWORK, ENVIRON) if path != missing}
        answer = prober.ask(PROBE, MappingTree(rest))
        assert answer.state == "unknown", (missing, answer)
