"""The nodes: one rank each, with an address of its own on the network where all of them meet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from builder.errors import UsageError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
# Names under which Linux has what never leads to another node, or does so badly.
_REFUSED = (
    (re.compile(r"lo\d*"), "the loopback, which leads to no other node"),
    (re.compile(r"wl.*"), "a Wi-Fi: too slow for tensor parallelism, and it drops out"),
    (re.compile(r"(docker|br-|virbr|veth|cni|flannel|cali).*"), "a bridge of this host's own containers"),
)


@dataclass(frozen=True)
class Node:
    """One rank's node.

    Args:
        rank: from 0.
        address: on the network where the ranks meet.
        interface: of that address; None where nobody said.
    """

    rank: int
    address: Address
    interface: str | None


def read_nodes(
    addresses: Sequence[str], interfaces: Sequence[str] = (), network: str | None = None
) -> tuple[Node, ...]:
    """The nodes, rank 0 first: the others meet at its address.

    Args:
        addresses: one a rank.
        interfaces: none, one for all, or one a rank.
        network: ``ADDRESS/BITS`` on which all must be; else rank 0's /24 (/16 for link-local addresses, /64
            for IPv6).

    Raises:
        UsageError: naming the rank whose address or interface cannot be.
    """
    read = [_address(text, rank) for rank, text in enumerate(addresses)]
    if not read:
        raise UsageError("no node is named", where="--nodes", expected="ADDRESS,ADDRESS")
    _check_distinct(read)
    _check_network(read, _network(network, read[0]))
    if len(interfaces) not in (0, 1, len(read)):
        raise UsageError(
            "the interfaces are not one for all or one a rank",
            where="--iface",
            expected=f"1 or {len(read)}",
            found=", ".join(interfaces),
        )
    names: list[str | None] = [_interface(name) for name in interfaces]
    named = names * len(read) if len(names) == 1 else names or [None] * len(read)
    return tuple(
        Node(rank, address, name) for rank, (address, name) in enumerate(zip(read, named, strict=True))
    )


def with_port(address: Address, port: int) -> str:
    """``ADDRESS:PORT``, IPv6 in brackets."""
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _address(text: str, rank: int) -> Address:
    where = f"--nodes, rank {rank}"
    try:
        address = ip_address(text)
    except ValueError as error:
        raise UsageError(
            "a node is named by its address",
            where=where,
            expected="an IPv4 or IPv6 address",
            found=text,
            hint="a name can resolve to the wrong one of a host's networks",
        ) from error
    if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_reserved:
        raise UsageError("no other node can reach this address", where=where, found=text)
    return address


def _check_distinct(addresses: Sequence[Address]) -> None:
    for rank, address in enumerate(addresses):
        if (first := addresses.index(address)) != rank:
            raise UsageError(
                "two ranks have one address",
                where=f"--nodes, rank {rank}",
                expected="an address of its own for each rank",
                found=f"{address}, the address of rank {first}",
                hint="each rank announces its own; with equal ones they wait for each other for ever",
            )


def _network(text: str | None, first: Address) -> Network:
    if text is None:
        link_local = 16 if first.version == 4 else 64
        bits = link_local if first.is_link_local else 24 if first.version == 4 else 64
        text = f"{first}/{bits}"
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise UsageError("not a network", where="--network", expected="ADDRESS/BITS", found=text) from error


def _check_network(addresses: Sequence[Address], network: Network) -> None:
    for rank, address in enumerate(addresses):
        if address not in network:
            raise UsageError(
                "a rank's address is not on the network of the rendez-vous",
                where=f"--nodes, rank {rank}",
                expected=f"an address of {network}",
                found=str(address),
                hint="take the addresses of the cable between the nodes, or name a wider --network",
            )
        small = network.prefixlen >= network.max_prefixlen - 1
        if address.version == 4 and not small and address in (network[0], network[-1]):
            raise UsageError(
                "this is not a node's address, but the network's own",
                where=f"--nodes, rank {rank}",
                found=str(address),
            )


def _interface(name: str) -> str:
    if not _INTERFACE.fullmatch(name):
        raise UsageError(
            "not an interface", where="--iface", expected="a name such as enp1s0f0np0", found=name
        )
    for pattern, what in _REFUSED:
        if pattern.fullmatch(name):
            raise UsageError(
                "the ranks do not meet on this interface",
                where="--iface",
                found=f"{name}: {what}",
                hint="ip -brief address shows which one has the node's address",
            )
    return name
