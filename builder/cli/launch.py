"""``overlay launch``"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from builder.cli.options import lock_option, name_argument, platform_option, root_option, source_options
from builder.cli.output import Progress, json_option, print_json, warn
from builder.errors import UsageError
from builder.launch.arguments import Arguments
from builder.launch.compose import render_compose
from builder.launch.image import launch_image
from builder.launch.images import unseen_images
from builder.launch.kubernetes import render_statefulset
from builder.launch.memory import MemoryPlan, Sizes, plan_memory, read_size
from builder.launch.nodes import Node, read_nodes
from builder.launch.patched_source import patched_parser
from builder.launch.server import CACHE, Listening, Rank, Server, Volume, server_arguments
from builder.launch.shell import render_script
from builder.launch.systemd import render_unit, unit_name
from builder.patch.series import chosen_series
from builder.project.lock import read_lock
from builder.project.project import cache_path, find_root
from builder.project.spec import read_spec
from builder.source.upstream import resolve_upstream

_EXAMPLES = """\b
Examples:
  overlay launch dsv4-flash-gb10 --nodes 192.168.100.10,192.168.100.11 -- --model-path /models/ds > start.sh
  overlay launch dsv4-flash-gb10 --nodes 192.168.100.10,192.168.100.11 --iface enp1s0f0np0 --as compose \\
      --volume /models:/models:ro -- --model-path /models/ds
  overlay launch … --memory 119GiB --weights 71GiB --kv-per-token 80KiB --state 72MiB -- \\
      --model-path /models/glm --mem-fraction-static 0.85 --max-running-requests 8
"""

FORMS = ("run", "compose", "systemd", "statefulset")


def _several(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Words separated by commas."""
    return tuple(word.strip() for word in value.split(",")) if value else ()


def _plan_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a model takes on one rank."""
    options = [
        click.option(
            "--memory", metavar="SIZE", help="Plan the memory: bytes of a rank's GPU, such as 119GiB."
        ),
        click.option("--weights", metavar="SIZE", help="Plan: weights on one rank."),
        click.option("--kv-per-token", metavar="SIZE", help="Plan: attention KV of one token on one rank."),
        click.option(
            "--state", metavar="SIZE", help="Plan: one recurrent state on one rank, from the boot log."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command("launch", epilog=_EXAMPLES)
@name_argument
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVER ARGUMENTS]")
@click.option(
    "--nodes", callback=_several, required=True, metavar="A,B[,…]", help="The nodes' addresses, rank 0 first."
)
@click.option(
    "--iface",
    callback=_several,
    metavar="NAME[,…]",
    help="Interface of those addresses: one for all, or one each.",
)
@click.option("--network", metavar="ADDRESS/BITS", help="The nodes' network (default: rank 0's /24).")
@click.option(
    "--as", "form", type=click.Choice(FORMS), default="run", show_default=True, help="What to print."
)
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank (default: all).")
@click.option("--image", metavar="REF@DIGEST", help="The image (default: the one that was pushed last).")
@platform_option
@click.option(
    "--listen", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where requests are taken."
)
@click.option("--port", type=click.IntRange(1, 65535), default=30000, show_default=True, help="For requests.")
@click.option(
    "--rendezvous-port",
    type=click.IntRange(1, 65535),
    default=25000,
    show_default=True,
    help="Where ranks meet.",
)
@click.option(
    "--volume", "volumes", multiple=True, metavar="DIR:DIR[:ro]", help="A directory to mount; repeatable."
)
@click.option(
    "--device", "devices", multiple=True, metavar="PATH", help="A device to pass on, such as /dev/infiniband."
)
@click.option(
    "--kernels", default=CACHE, show_default=True, metavar="DIR", help="Compiled kernels, on the host."
)
@_plan_options
@lock_option
@source_options
@root_option
@json_option
def command(
    name: str,
    arguments: tuple[str, ...],
    nodes: tuple[str, ...],
    iface: tuple[str, ...],
    network: str | None,
    form: str,
    rank: int | None,
    image: str | None,
    platform: str | None,
    listen: str,
    port: int,
    rendezvous_port: int,
    volumes: tuple[str, ...],
    devices: tuple[str, ...],
    kernels: str,
    memory: str | None,
    weights: str | None,
    kv_per_token: str | None,
    state: str | None,
    lock_file: Path | None,
    source: str,
    upstream_url: str | None,
    wheel: Path | None,
    root: Path | None,
    as_json: bool,
) -> None:
    """Print how each rank is started: image by digest, its own address, caches by patch set. Runs nothing.

    Server arguments follow after --. The release must know them; they replace the recommended ones.
    """
    from builder.oci.model import Platform

    read = read_nodes(nodes, iface, network)
    project = find_root(root)
    spec = read_spec(project.spec_path(name))
    series = chosen_series(project.patches, spec.patches)
    lock = read_lock([lock_file] if lock_file else project.locks(name))
    chosen = launch_image(image, name, lock, series.digest, Platform.parse(platform) if platform else None)
    progress = Progress()
    try:
        upstream = resolve_upstream(
            spec.upstream, cache_path(), source=source, url=upstream_url, wheel_file=wheel, progress=progress
        )
        parser = patched_parser(spec, upstream, series)
        notes = unseen_images(upstream)
    finally:
        progress.close()
    checked = server_arguments(parser, spec.arguments, arguments, len(read))
    for note in notes:
        warn(note)
    pool_grows = any("growing-state-pool" in patch.provides for patch in series.patches)
    plan = _plan(memory, weights, kv_per_token, state, checked, pool_grows)
    server = Server(
        spec.name,
        chosen,
        series.digest,
        checked,
        Listening(_address(listen), port, rendezvous_port),
        _directory(kernels),
        tuple(_volume(text) for text in volumes),
        tuple(_directory(text) for text in devices),
    )
    if listen not in ("127.0.0.1", "::1") and not checked.has("--api-key"):
        warn(f"requests are taken at {listen} from everybody who reaches it")
    if plan and plan.warning:
        warn(plan.warning)
    ranks = server.ranks(read)
    comments = _comments(spec.name, chosen, series.digest, plan)
    files = _files(ranks, form, comments, rank)
    if as_json:
        print_json(
            {
                "name": spec.name,
                "image": chosen,
                "patchset": series.digest,
                "plan": plan.as_json() if plan else None,
                "notes": notes,
                "ranks": [one.as_json() for one in ranks],
                "files": files,
            }
        )
        return
    click.echo("\n".join(files.values()), nl=False)


def _plan(
    memory: str | None,
    weights: str | None,
    kv_per_token: str | None,
    state: str | None,
    arguments: Arguments,
    pool_grows: bool,
) -> MemoryPlan | None:
    """The memory plan that was asked for; None without one."""
    if memory is None and weights is None and kv_per_token is None and state is None:
        return None
    if memory is None or weights is None:
        raise UsageError(
            "a memory plan needs the memory and the weights", where="--memory, --weights", expected="both"
        )
    sizes = Sizes(
        read_size(memory), read_size(weights), read_size(kv_per_token or "0"), read_size(state or "0")
    )
    return plan_memory(sizes, arguments, pool_grows=pool_grows)


def _comments(name: str, image: str, patchset: str, plan: MemoryPlan | None) -> list[str]:
    lines = [f"{name}, made by overlay launch", f"image      {image}", f"patch set  {patchset}"]
    return lines + (["", *plan.lines()] if plan else [])


def _files(ranks: list[Rank], form: str, comments: list[str], only: int | None) -> dict[str, str]:
    """What is printed, by the name it would be kept under."""
    if only is not None and only >= len(ranks):
        raise UsageError(
            "there is no such rank", where="--rank", expected=f"0 to {len(ranks) - 1}", found=str(only)
        )
    shown = [rank for rank in ranks if only in (None, rank.node.rank)]
    if form == "run":
        return {"start.sh": render_script(shown, comments)}
    _check_pinned([rank.node for rank in ranks], form)
    if form == "compose":
        return {"compose.yaml": render_compose(shown, comments)}
    if form == "systemd":
        return {unit_name(rank): render_unit(rank, len(ranks), comments) for rank in shown}
    if only is not None:
        raise UsageError("a StatefulSet holds all ranks", where="--rank", hint="leave --rank out")
    return {"statefulset.yaml": render_statefulset(ranks, comments)}


def _check_pinned(nodes: list[Node], form: str) -> None:
    if len(nodes) > 1 and any(node.interface is None for node in nodes):
        raise UsageError(
            "the ranks' interface is not known",
            where="--iface",
            expected=f"--iface NAME with --as {form}",
            hint="only the script of --as run finds it out on each node by itself",
        )


def _address(text: str) -> str:
    from ipaddress import ip_address

    try:
        return str(ip_address(text))
    except ValueError as error:
        raise UsageError("not an address", where="--listen", found=text) from error


def _directory(text: str) -> str:
    parts = text.split("/")
    if not text.startswith("/") or ".." in parts or any(ord(char) < 32 or char in ":," for char in text):
        raise UsageError("not an absolute path without : and , in it", found=text)
    return text


def _volume(text: str) -> Volume:
    host, _, rest = text.partition(":")
    container, _, mode = rest.partition(":")
    if mode not in ("", "ro", "rw"):
        raise UsageError("not a volume", where="--volume", expected="DIR:DIR[:ro]", found=text)
    return Volume(_directory(host), _directory(container), mode == "ro")
