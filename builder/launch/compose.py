"""All ranks as one compose file (compose-spec): each node starts its own by its profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from builder.launch.server import GRACE, HEALTH_INTERVAL, HEALTH_RETRIES, HEALTH_START, SHARED_MEMORY, Rank


def render_compose(ranks: Sequence[Rank], comments: Sequence[str]) -> str:
    """The file.

    Args:
        ranks: its services.
        comments: lines for its head.
    """
    document = {"services": {f"rank{rank.node.rank}": _service(rank) for rank in ranks}}
    usage = "On the node of rank N: docker compose --profile rankN up --detach"
    return commented([*comments, "", usage]) + "\n" + dumped(_escaped(document))


def commented(lines: Sequence[str]) -> str:
    """Lines as comments."""
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def dumped(document: Mapping[str, Any]) -> str:
    """YAML in the order in which it was made."""
    return yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)


def _service(rank: Rank) -> dict[str, Any]:
    service: dict[str, Any] = {
        "profiles": [f"rank{rank.node.rank}"],
        "container_name": rank.name,
        "image": rank.image,
        "command": list(rank.command),
        "network_mode": "host",
        "restart": "unless-stopped",
        "environment": {**rank.environment, **rank.pins},
        "volumes": [str(volume) for volume in rank.volumes],
        "shm_size": SHARED_MEMORY,
        "ulimits": {"memlock": -1, "stack": 67108864},
        "stop_grace_period": f"{GRACE}s",
        "healthcheck": {
            "test": ["CMD", *rank.health],
            "interval": f"{HEALTH_INTERVAL}s",
            "timeout": "15s",
            "retries": HEALTH_RETRIES,
            "start_period": f"{HEALTH_START}s",
        },
        "deploy": {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}
            }
        },
    }
    if rank.devices:
        service["devices"] = list(rank.devices)
    return service


def _escaped(value: Any) -> Any:
    """``$`` doubled, so that compose puts nothing in its place."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value
