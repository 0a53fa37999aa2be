"""All ranks as a Kubernetes StatefulSet (apps/v1), one pod a node, on the nodes' own network.

Which pod lands on which node is the scheduler's choice. A pod therefore takes the rank of the address that
its node has, and not the number that it got: the rendez-vous and the interface pins belong to nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from builder.launch.compose import commented, dumped
from builder.launch.server import GRACE, HEALTH_INTERVAL, HEALTH_RETRIES, HEALTH_START, Rank


def render_statefulset(ranks: Sequence[Rank], comments: Sequence[str]) -> str:
    """The manifest: a headless service, as a StatefulSet wants one, and the set.

    Args:
        ranks: all of them.
        comments: lines for its head.
    """
    first = ranks[0]
    name = re.sub(r"[._]", "-", first.name.removesuffix("-rank0"))
    labels = {"app.kubernetes.io/name": name}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"clusterIP": "None", "selector": labels, "ports": [{"name": "http", "port": _port(first)}]},
    }
    pod = {
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": GRACE,
        "affinity": _one_a_node(labels),
        "containers": [_container(ranks)],
        "volumes": _volumes(first),
    }
    workload = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "serviceName": name,
            "replicas": len(ranks),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    return commented(comments) + dumped(service) + "---\n" + dumped(workload)


def _container(ranks: Sequence[Rank]) -> dict[str, Any]:
    first = ranks[0]
    probe = {"exec": {"command": list(first.health)}, "timeoutSeconds": 15}
    return {
        "name": "sglang",
        "image": first.image,
        "command": ["/bin/bash", "-c", _script(ranks)],
        "env": [
            {"name": key, "value": _literal(value)}
            for key, value in first.environment.items()
            if key != "SGLANG_HOST_IP"
        ],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        # A device of the host is open to privileged containers alone.
        "securityContext": {"privileged": True} if first.devices else {"capabilities": {"add": ["IPC_LOCK"]}},
        "startupProbe": probe
        | {"periodSeconds": HEALTH_INTERVAL, "failureThreshold": HEALTH_START // HEALTH_INTERVAL},
        "readinessProbe": probe | {"periodSeconds": HEALTH_INTERVAL},
        "livenessProbe": probe | {"periodSeconds": HEALTH_INTERVAL, "failureThreshold": HEALTH_RETRIES},
        "volumeMounts": [
            {"name": f"volume{number}", "mountPath": volume.container, "readOnly": volume.read_only}
            for number, volume in enumerate(first.volumes)
        ]
        + [{"name": f"device{number}", "mountPath": path} for number, path in enumerate(first.devices)]
        + [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108 (the container's own)
    }


def _script(ranks: Sequence[Rank]) -> str:
    """Starts the rank whose address this node has."""
    lines = ['case " $(hostname -I) " in']
    for rank in ranks:
        own = {"SGLANG_HOST_IP": str(rank.node.address), **rank.pins}
        exported = " ".join(f"{key}={shlex.quote(value)}" for key, value in own.items())
        lines += [
            f'  *" {rank.node.address} "*)',
            f"    export {exported}",
            f"    exec {shlex.join(rank.command)} ;;",
        ]
    addresses = ", ".join(str(rank.node.address) for rank in ranks)
    lines += ["esac", f'echo "this node has none of {addresses}" >&2', "exit 1"]
    return _literal("\n".join(lines) + "\n")


def _literal(text: str) -> str:
    """Text in which Kubernetes expands nothing: ``$(…)`` with another ``$`` before it."""
    return text.replace("$(", "$$(")


def _volumes(rank: Rank) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {
            "name": f"volume{number}",
            "hostPath": {
                "path": volume.host,
                "type": "Directory" if volume.read_only else "DirectoryOrCreate",
            },
        }
        for number, volume in enumerate(rank.volumes)
    ]
    volumes += [
        {"name": f"device{number}", "hostPath": {"path": path}} for number, path in enumerate(rank.devices)
    ]
    memory = {"medium": "Memory", "sizeLimit": "32Gi"}
    return [*volumes, {"name": "shared-memory", "emptyDir": memory}]


def _one_a_node(labels: dict[str, str]) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _port(rank: Rank) -> int:
    return int(rank.command[rank.command.index("--port") + 1])
