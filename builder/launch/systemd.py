"""A rank as a systemd service (systemd.service(5), systemd.syntax(7))."""

from __future__ import annotations

from collections.abc import Sequence

from builder.launch.compose import commented
from builder.launch.docker import command_groups, container_options
from builder.launch.server import GRACE, Rank

_UNIT = """\
[Unit]
Description={name}: SGLang, rank {rank} of {ranks}
Wants=network-online.target
After=network-online.target docker.service
Requires=docker.service

[Service]
ExecStartPre=-/usr/bin/docker rm --force {name}
ExecStart=/usr/bin/docker run --rm --name {name} \\
  {options}
ExecStop=/usr/bin/docker stop --time {grace} {name}
TimeoutStartSec=infinity
TimeoutStopSec={stop}
Restart=on-failure
RestartSec=10

[Install]
WantedBy=multi-user.target
"""


def unit_name(rank: Rank) -> str:
    """The unit's file name."""
    return f"{rank.name}.service"


def render_unit(rank: Rank, ranks: int, comments: Sequence[str]) -> str:
    """The unit.

    Args:
        rank: which.
        ranks: how many there are.
        comments: lines for its head.
    """
    groups = [*container_options(rank)]
    groups += [["--env", f"{name}={value}"] for name, value in rank.pins.items()]
    groups += [[rank.image], *command_groups(rank)]
    options = " \\\n  ".join(" ".join(_quoted(word) for word in group) for group in groups)
    usage = f"On the node of rank {rank.node.rank}: /etc/systemd/system/{unit_name(rank)}"
    return commented([*comments, "", usage]) + _UNIT.format(
        name=rank.name,
        rank=rank.node.rank,
        ranks=ranks,
        options=options,
        grace=GRACE,
        stop=GRACE + 10,
    )


def _quoted(word: str) -> str:
    """A word that systemd reads as it is: quoted, and neither a specifier nor a variable in it."""
    text = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    plain = text == word and word and not any(char.isspace() or char in "'\";" for char in word)
    return text if plain else f'"{text}"'
