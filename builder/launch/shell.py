"""All ranks as one script: every node runs the same, and starts the rank whose address it has."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from builder.launch.docker import command_groups, container_options
from builder.launch.server import INTERFACE_PINS, Rank

_HEAD = """\
#!/bin/bash
{comments}
#
# Run it on every node: each starts the rank whose address it has.
set -euo pipefail

# The interface of this host that has an address; nothing where none has.
interface_of() {{
  ip -oneline address show | awk -v wanted="$1" '{{ split($4, part, "/"); if (part[1] == wanted) print $2 }}'
}}
"""

_RANK = """
# rank {rank} of {ranks}
interface=$(interface_of {address})
if [ -n "$interface" ]; then
{check}  exec docker run {options}
fi
"""

_CHECK = """\
  if [ "$interface" != {interface} ]; then
    echo "{address} is on $interface here, and not on {interface}" >&2
    exit 1
  fi
"""

_TAIL = """
echo "no rank runs here: this host has none of {addresses}" >&2
exit 1
"""


def render_script(ranks: Sequence[Rank], comments: Sequence[str]) -> str:
    """The script.

    Args:
        ranks: those it can start.
        comments: lines for its head.
    """
    addresses = ", ".join(str(rank.node.address) for rank in ranks)
    head = _HEAD.format(comments="\n".join(f"# {line}".rstrip() for line in comments))
    return head + "".join(_rank(rank, len(ranks)) for rank in ranks) + _TAIL.format(addresses=addresses)


def _rank(rank: Rank, ranks: int) -> str:
    address = str(rank.node.address)
    check = ""
    if rank.node.interface:
        check = _CHECK.format(interface=rank.node.interface, address=address)
    # The script found out on which interface this node has its address, whatever the others call theirs.
    pins = [f'--env {name}="$interface"' for name in INTERFACE_PINS]
    lines = [f"--detach --name {shlex.quote(rank.name)} --restart unless-stopped"]
    lines += [shlex.join(group) for group in container_options(rank)]
    lines += [*pins, shlex.quote(rank.image), *(shlex.join(group) for group in command_groups(rank))]
    return _RANK.format(
        rank=rank.node.rank, ranks=ranks, address=address, check=check, options=" \\\n    ".join(lines)
    )
