"""A rank as the words of ``docker run``."""

from __future__ import annotations

import shlex

from builder.launch.server import GRACE, HEALTH_INTERVAL, HEALTH_RETRIES, HEALTH_START, SHARED_MEMORY, Rank


def container_options(rank: Rank) -> list[list[str]]:
    """Options of ``docker run``, grouped as people read them; without those that start and name it."""
    # Peers and NCCL are reached at the node's own address: a bridge would hide it.
    groups = [["--network", "host"], ["--gpus", "all"], ["--shm-size", SHARED_MEMORY]]
    groups += [["--ulimit", "memlock=-1"], ["--ulimit", "stack=67108864"]]
    groups += [["--device", device] for device in rank.devices]
    groups += [["--stop-timeout", str(GRACE)]]
    groups += [["--health-cmd", shlex.join(rank.health)]]
    groups += [["--health-interval", f"{HEALTH_INTERVAL}s", "--health-retries", str(HEALTH_RETRIES)]]
    groups += [["--health-start-period", f"{HEALTH_START}s"]]
    groups += [["--env", f"{name}={value}"] for name, value in rank.environment.items()]
    groups += [["--volume", str(volume)] for volume in rank.volumes]
    return groups


def command_groups(rank: Rank) -> list[list[str]]:
    """The container's command, one argument with its values a group."""
    program, *rest = _split(rank.command)
    return [program, *rest]


def _split(words: tuple[str, ...]) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    return groups
