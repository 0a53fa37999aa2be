"""What is printed for each rank fits the release, the network and the memory; what does not is refused."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from builder.errors import ImageMismatch, InvalidInput, UsageError
from builder.launch.arguments import Arguments, Parser, merged, read_parser
from builder.launch.compose import render_compose
from builder.launch.docker import container_options
from builder.launch.image import launch_image
from builder.launch.kubernetes import render_statefulset
from builder.launch.memory import MemoryPlan, Sizes, plan_memory, read_size
from builder.launch.nodes import Node, read_nodes
from builder.launch.server import Rank, Server, Volume, server_arguments
from builder.launch.shell import render_script
from builder.launch.systemd import render_unit
from builder.oci.model import Platform
from builder.project.lock import Lock

GIB, MIB = 1 << 30, 1 << 20
IMAGE = "registry.example/sglang@sha256:" + "5" * 64
PATCHSET = "sha256:" + "ab" * 32
PAIR = ("192.168.100.10", "192.168.100.11")

# A parser as releases declare it: annotated fields in one file, calls in another.
FIELDS = b"""
class Model:
    model_path: A[str, Arg(help="Weights.", aliases=["--model"])]
    tp_size: A[int, Arg(help="Ranks.", aliases=["--tensor-parallel-size"])] = 1
    pp_size: A[int, "Stages."] = 1
    dp_size: A[int, "Replicas."] = 1
    mem_fraction_static: A[Optional[float], "Share."] = None
    max_running_requests: A[Optional[int], "Requests."] = None
    max_mamba_cache_size: A[Optional[int], "Slots."] = None
    mamba_full_memory_ratio: A[float | None, "Ratio."] = None
    mamba_radix_cache_strategy: A[str, Arg(help="", choices=["auto", "no_buffer", "extra_buffer"])] = "auto"
    speculative_num_draft_tokens: A[Optional[int], "Tokens."] = None
    context_length: A[Optional[int], "Tokens."] = None
    disable_overlap_schedule: A[bool, "No overlap."] = False
    disable_radix_cache: A[bool, "No prefix cache."] = False
    enable_dp_attention: A[bool, "DP attention."] = False
    dtype: A[Literal["auto", "bf16"], "Type."] = "auto"
    lora_paths: A[Optional[List[str]], Arg(help="Adapters.", nargs="*")] = None
    cuda_graph_bs: A[Optional[List[int]], "Batch sizes."] = None
    replicate: A[Optional[bool], Arg(help="", action=argparse.BooleanOptionalAction)] = None
    internal: A[Optional[str], Arg(help="", no_cli=True)] = None
    json_model_override_args: A[str, "JSON."] = "{}"
    nnodes: A[int, "Nodes."] = 1
    node_rank: A[int, "Rank."] = 0
    dist_init_addr: A[Optional[str], Arg(help="", aliases=["--nccl-init-addr"])] = None
    plain: int = 3
"""
CALLS = b"""
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--host", type=str, default="127.0.0.1")
        parser.add_argument("--port", type=int)
        parser.add_argument("--api-key", type=str)
        parser.add_argument("--old", action=DeprecatedAction, help="gone")
        parser.add_argument("--skip", action="store_true")
"""


@pytest.fixture(scope="module")
def parser() -> Parser:
    return read_parser(
        "v1", {"python/sglang/srt/server_args.py": CALLS, "python/sglang/srt/arg_groups/f.py": FIELDS}
    )


def given(parser: Parser, text: str) -> Arguments:
    return parser.read(shlex.split(text))


# --- arguments ---------------------------------------------------------------------------------------------


def test_both_forms_of_declaration_are_read(parser: Parser) -> None:
    names = {name for known in parser.known for name in known.names}
    assert {"--model", "--tensor-parallel-size", "--host", "--replicate", "--no-replicate", "--old"} <= names
    assert not {"--internal", "--plain"} & names


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("--model M", {"--model-path": ("M",)}),
        ("--tensor-parallel-size=4", {"--tp-size": ("4",)}),
        ("--tp 4", {"--tp-size": ("4",)}),
        ("--skip --port 1", {"--skip": (), "--port": ("1",)}),
        ("--cuda-graph-bs 1 2 4 --skip", {"--cuda-graph-bs": ("1", "2", "4"), "--skip": ()}),
        ("--no-replicate", {"--no-replicate": ()}),
        ("--port -1", {"--port": ("-1",)}),
        ("--lora-paths", {"--lora-paths": ()}),
        ("--dtype bf16", {"--dtype": ("bf16",)}),
        (
            """--json-model-override-args '{"a": "$(b)"}'""",
            {"--json-model-override-args": ('{"a": "$(b)"}',)},
        ),
    ],
)
def test_words_are_read_as_the_release_reads_them(
    parser: Parser, words: str, values: Mapping[str, tuple[str, ...]]
) -> None:
    assert given(parser, words).values == values


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--tp-sise 2", "did you mean --tp-size"),
        ("--internal x", "does not know"),
        ("--d 2", "several server arguments begin so"),
        ("--port", "not the values"),
        ("--skip yes", "without an argument"),
        ("--port eight", "not a number"),
        ("--dtype fp8", "not one of its values"),
        ("stray --port 1", "without an argument"),
        ("--cuda-graph-bs", "not the values"),
        ("--skip=1", "not the values"),
    ],
)
def test_arguments_that_the_release_does_not_take_are_refused(parser: Parser, words: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        given(parser, words)
    assert says in f"{error.value.what} {error.value.hint}"


def test_a_release_without_a_parser_is_refused() -> None:
    with pytest.raises(InvalidInput, match="declares no server arguments"):
        read_parser("v1", {"python/sglang/srt/server_args.py": b"x = 1\n"})
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_parser("v1", {"python/sglang/srt/server_args.py": b"def (:\n"})


def test_given_arguments_replace_recommended_ones_also_by_their_alias(parser: Parser) -> None:
    found = server_arguments(
        parser, {"--tp-size": "2", "--skip": True}, ["--model", "M", "--tensor-parallel-size", "4"], 2
    )
    assert found.values == {"--tp-size": ("4",), "--skip": (), "--model-path": ("M",)}


@pytest.mark.parametrize(
    ("recommended", "words", "nodes", "says"),
    [
        ({"--nnodes": "2"}, "--model M", 1, "another number of nodes"),
        ({}, "--tp-size 2", 2, "does not start without"),
        ({}, "--model M --node-rank 1 --tp-size 2", 2, "launch says this itself"),
        ({}, "--model M --nccl-init-addr a:1 --tp-size 2", 2, "launch says this itself"),
        ({}, "--model M --host ::", 1, "launch says this itself"),
        ({}, "--model M", 2, "cannot be spread"),
        ({}, "--model M --tp-size 3", 2, "cannot be spread"),
        ({}, "--model M --tp-size 2 --dp-size 2", 2, "data-parallel attention"),
        ({"--gone-in-this-release": True}, "--model M", 1, "does not know"),
    ],
)
def test_arguments_that_do_not_fit_the_nodes_are_refused(
    parser: Parser, recommended: dict[str, str | bool], words: str, nodes: int, says: str
) -> None:
    with pytest.raises(UsageError) as error:
        server_arguments(parser, recommended, words.split(), nodes)
    assert says in error.value.what


# --- nodes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addresses", "interfaces", "network", "says"),
    [
        ([], [], None, "no node"),
        (["10.0.0.1", "10.0.0.1"], [], None, "two ranks have one address"),
        (["10.0.0.1", "10.0.0.2", "10.0.0.2"], [], None, "two ranks have one address"),
        (["fe80::1", "fe80:0::1"], [], None, "two ranks have one address"),
        (["192.168.100.10", "192.168.1.11"], [], None, "not on the network of the rendez-vous"),
        (["192.168.100.10", "fe80::1"], [], None, "not on the network of the rendez-vous"),
        (["10.1.0.1", "10.2.0.1"], [], "10.1.0.0/16", "not on the network of the rendez-vous"),
        (["10.0.0.1", "10.0.0.2"], [], "10.9.0.0/16", "not on the network of the rendez-vous"),
        (["10.0.0.1", "10.0.0.255"], [], None, "the network's own"),
        (["10.0.0.0", "10.0.0.1"], [], None, "the network's own"),
        (["spark-1", "spark-2"], [], None, "named by its address"),
        (["127.0.0.1", "127.0.0.2"], [], None, "no other node can reach"),
        (["0.0.0.0", "10.0.0.1"], [], None, "no other node can reach"),
        (["224.0.0.1", "224.0.0.2"], [], None, "no other node can reach"),
        (PAIR, ["wlan0"], None, "do not meet"),
        (PAIR, ["wlP9s9"], None, "do not meet"),
        (PAIR, ["lo"], None, "do not meet"),
        (PAIR, ["docker0"], None, "do not meet"),
        (PAIR, ["enp1s0", "wlan0"], None, "do not meet"),
        (PAIR, ["en0;reboot"], None, "not an interface"),
        (PAIR, ["a-name-of-more-than-15"], None, "not an interface"),
        (PAIR, ["a", "b", "c"], None, "not one for all"),
        (PAIR, [], "192.168", "not a network"),
    ],
)
def test_addresses_that_ranks_cannot_meet_at_are_refused(
    addresses: list[str], interfaces: list[str], network: str | None, says: str
) -> None:
    with pytest.raises(UsageError) as error:
        read_nodes(addresses, interfaces, network)
    assert says in error.value.what


def test_link_local_addresses_of_a_cable_are_one_network() -> None:
    assert len(read_nodes(["169.254.1.2", "169.254.200.7"])) == 2
    assert len(read_nodes(["10.1.0.1", "10.2.0.1"], network="10.0.0.0/8")) == 2


def test_each_rank_may_have_an_interface_of_its_own() -> None:
    assert [node.interface for node in read_nodes(PAIR, ["enp1", "enp2"])] == ["enp1", "enp2"]
    assert [node.interface for node in read_nodes(PAIR, ["enp1"])] == ["enp1", "enp1"]


# --- memory ------------------------------------------------------------------------------------------------


def plan(parser: Parser, text: str, *, pool_grows: bool = False, **sizes: int) -> MemoryPlan:
    return plan_memory(Sizes(**sizes), given(parser, text), pool_grows=pool_grows)


# What published boot logs say of K slots and the requests that they serve at five slots a request.
LOGS = [
    (10, 8, 2, "sgl-project/sglang#36889, before"),
    (40, 8, 8, "sgl-project/sglang#36889, after"),
    (64, 16, 12, "MiaAI-Lab/Qwen3.8-27B-SGLang-DGX-Spark#7"),
    (47, 48, 9, "sgl-project/sglang#38846"),
]


@pytest.mark.parametrize(("slots", "asked", "served", "source"), LOGS)
def test_the_plan_reproduces_published_logs(
    parser: Parser, slots: int, asked: int, served: int, source: str
) -> None:
    text = f"--mem-fraction-static 0.85 --max-mamba-cache-size {slots}"
    sizes = {"memory": 128 * GIB, "weights": 20 * GIB, "state": 64 * MIB}
    found = plan(parser, f"{text} --max-running-requests {asked}", **sizes)
    assert found.served == served, source
    if served == asked:
        assert found.warning is None
    else:
        assert f"{asked} requests are asked for and {served} would be served" in str(found.warning)
        assert f"--max-mamba-cache-size {asked * 5 + 1}" in str(found.warning)


# 16 GiB for states and attention KV, 64 MiB a state, 16 draft tokens.
SIXTEEN = {"memory": 40 * GIB, "weights": 4 * GIB, "state": 64 * MIB}
DRAFTING = "--mem-fraction-static 0.5 --speculative-num-draft-tokens 16"


@pytest.mark.parametrize(
    ("more", "sizes", "slots", "served"),
    [
        ("--max-running-requests 8", {}, 41, 8),
        ("--max-running-requests 9", {}, 24, 4),  # would leave 19 % to attention
        ("--max-running-requests 16", {}, 24, 4),
        ("--max-running-requests 64", {}, 24, 4),
        ("--max-running-requests 1024", {}, 24, 4),
        ("", {}, 24, 4),
        ("--max-running-requests 8 --mamba-full-memory-ratio 0.9", {}, 24, 4),
        ("--max-running-requests 8 --mamba-full-memory-ratio 0.6", {}, 18, 3),
        ("--max-running-requests 8 --max-mamba-cache-size 20", {}, 20, 4),
        ("--max-running-requests 6 --pp-size 2", {}, 20, 5),  # 4 slots a request; 6 would leave 46 %
        ("--max-running-requests 16 --dp-size 2 --enable-dp-attention", {}, 41, 8),
        ("--max-running-requests 8 --context-length 32768", {"kv_token": 64 << 10}, 41, 8),
        ("--max-running-requests 8 --context-length 32768", {"kv_token": 160 << 10}, 24, 4),
        ("--max-running-requests 4 --disable-radix-cache", {}, 4, 4),
    ],
)
def test_the_pool_grows_for_all_that_is_asked_for_or_not(
    parser: Parser, more: str, sizes: dict[str, int], slots: int, served: int
) -> None:
    found = plan(parser, f"{DRAFTING} {more}", pool_grows=True, **SIXTEEN, **sizes)
    assert (found.slots, found.served) == (slots, served)


def test_without_the_patch_the_pool_follows_the_ratio_alone(parser: Parser) -> None:
    # As measured by running the release's sizing code.
    text = f"{DRAFTING} --max-running-requests 8"
    stock = plan(parser, text, **SIXTEEN)
    assert (stock.served, stock.slots) == (4, 24)
    assert stock.attention / GIB == pytest.approx(9.4, abs=0.05)
    grown = plan(parser, text, pool_grows=True, **SIXTEEN)
    assert grown.attention / GIB == pytest.approx(4.4, abs=0.05)
    assert grown.warning is None


@pytest.mark.parametrize("asked", [8, 9])
def test_what_the_warning_advises_serves_all(parser: Parser, asked: int) -> None:
    text = f"{DRAFTING} --max-running-requests {asked}"
    warning = str(plan(parser, text, **SIXTEEN).warning)
    assert f"{asked} requests are asked for and 4 would be served" in warning
    for flag in ("--max-mamba-cache-size", "--mamba-full-memory-ratio"):
        value = warning.split(f"{flag} ")[1].split()[0]
        followed = plan(parser, f"{text} {flag} {value}", **SIXTEEN)
        assert (followed.served, followed.warning) == (asked, None)


def test_the_warning_says_when_no_split_would_do(parser: Parser) -> None:
    warning = str(plan(parser, f"{DRAFTING} --max-running-requests 64", **SIXTEEN).warning)
    assert "85.1 GiB of 16.0 GiB" in warning
    assert "--mem-fraction-static" in warning
    assert "--mamba-ssm-dtype bfloat16" in warning


def test_the_plan_accounts_for_every_byte(parser: Parser) -> None:
    text = "--mem-fraction-static 0.8 --max-mamba-cache-size 41 --max-running-requests 8"
    found = plan(parser, text, memory=100 * GIB, weights=40 * GIB, state=64 * MIB, kv_token=80 << 10)
    assert found.sizes.weights + found.state + found.attention == found.static == 80 * GIB
    assert found.tokens == found.attention // (80 << 10)
    bar = next(line for line in found.lines() if line.startswith("["))
    assert (bar.count("W"), bar.count("S"), bar.count("."), len(bar)) == (24, 2, 12, 62)


@pytest.mark.parametrize(
    ("text", "sizes", "where", "hint"),
    [
        ("--skip", {}, "server arguments", "chooses one"),
        ("--mem-fraction-static 0.5", {"weights": 60 * GIB}, "--mem-fraction-static", "more ranks"),
        ("--mem-fraction-static 1.5", {}, "--mem-fraction-static", None),
        ("--mem-fraction-static nan", {}, "--mem-fraction-static", None),
        ("--mem-fraction-static 0.5", {"state": 30 * GIB}, "--max-running-requests", "--mamba-ssm-dtype"),
        (
            "--mem-fraction-static 0.5 --max-mamba-cache-size 4",
            {"state": 64 * MIB},
            "--max-running-requests",
            "--max-mamba-cache-size 6",
        ),
        (
            "--mem-fraction-static 0.5 --max-mamba-cache-size 700",
            {"state": 64 * MIB},
            "--max-mamba-cache-size",
            "fewer requests",
        ),
        (
            "--mem-fraction-static 0.5 --context-length 500000",
            {"kv_token": 1 * MIB},
            "--context-length",
            "shorter",
        ),
        (
            "--mem-fraction-static 0.5 --mamba-full-memory-ratio 0",
            {"state": MIB},
            "--mamba-full-memory-ratio",
            None,
        ),
    ],
)
def test_plans_that_cannot_work_are_refused(
    parser: Parser, text: str, sizes: dict[str, int], where: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as error:
        plan(parser, text, **({"memory": 100 * GIB, "weights": 10 * GIB} | sizes))
    assert error.value.where == where
    assert hint is None or hint in str(error.value.hint)


def test_draft_tokens_and_strategy_count(parser: Parser) -> None:
    sizes = {"memory": 100 * GIB, "weights": 10 * GIB, "state": 64 * MIB}
    by_default = plan(parser, "--mem-fraction-static 0.5", **sizes)
    unbuffered = plan(parser, "--mem-fraction-static 0.5 --mamba-radix-cache-strategy no_buffer", **sizes)
    drafted = plan(parser, "--mem-fraction-static 0.5 --speculative-num-draft-tokens 8", **sizes)
    assert by_default.served is not None
    assert unbuffered.served is not None
    assert drafted.served is not None
    assert drafted.served < by_default.served < unbuffered.served


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("71.5MiB", 71 * MIB + MIB // 2), ("120GB", 120 * 10**9), ("2 GiB", 2 * GIB)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1", "1TB", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        read_size(text)


# --- the image ---------------------------------------------------------------------------------------------


def lock(**image: object) -> Lock:
    return Lock(images={"linux/arm64": {"digest": "sha256:" + "7" * 64, "patchset": PATCHSET, **image}})


def test_the_image_that_was_pushed_last_is_launched_by_its_digest() -> None:
    pushed = lock(references=["registry.example/sglang:v1@sha256:" + "5" * 64])
    assert launch_image(None, "x", pushed, PATCHSET, None) == IMAGE
    assert launch_image(None, "x", pushed, PATCHSET, Platform("linux", "arm64")) == IMAGE
    hosts = ("registry.example", "b.example")
    twice = lock(references=[f"{host}/sglang:v1@sha256:{'5' * 64}" for host in hosts])
    assert launch_image(None, "x", twice, PATCHSET, None) == IMAGE


@pytest.mark.parametrize(
    ("known", "text", "says"),
    [
        (Lock(), None, "no pushed image"),
        (lock(references=[]), None, "no pushed image"),
        (
            lock(references=["a.example/x:1@sha256:" + "5" * 64, "b.example/x:1@sha256:" + "6" * 64]),
            None,
            "choose",
        ),
        (Lock(), "registry.example/sglang:latest", "named by digest"),
        (Lock(), "oci:image@sha256:" + "5" * 64, "cannot pull from a directory"),
    ],
)
def test_an_image_that_nodes_could_disagree_about_is_refused(
    known: Lock, text: str | None, says: str
) -> None:
    with pytest.raises(UsageError) as error:
        launch_image(text, "x", known, PATCHSET, None)
    assert says in error.value.what


def test_an_image_of_another_patch_set_is_refused() -> None:
    pushed = lock(references=["registry.example/sglang:v1@sha256:" + "5" * 64], patchset="sha256:" + "0" * 64)
    with pytest.raises(ImageMismatch, match="another patch set"):
        launch_image(None, "x", pushed, PATCHSET, None)


# --- renderings --------------------------------------------------------------------------------------------

AWKWARD = """it's "100%" $HOME $(reboot) `reboot` \\n ; end"""


def ranks(parser: Parser, *interfaces: str) -> list[Rank]:
    arguments = merged(
        given(parser, "--model M --tp-size 2"),
        given(parser, f"--json-model-override-args {shlex.quote(AWKWARD)}"),
    )
    volumes = (Volume("/models", "/models", read_only=True),)
    server = Server("over.lay", IMAGE, PATCHSET, arguments, volumes=volumes, devices=("/dev/infiniband",))
    return server.ranks(read_nodes(PAIR, interfaces))


def test_every_rank_has_its_own_address_and_all_meet_at_the_first(parser: Parser) -> None:
    first, second = ranks(parser, "enp1")
    assert [rank.environment["SGLANG_HOST_IP"] for rank in (first, second)] == list(PAIR)
    for number, rank in enumerate((first, second)):
        words = " ".join(rank.command)
        assert f"--nnodes 2 --node-rank {number} --dist-init-addr 192.168.100.10:25000" in words
        assert "--host 127.0.0.1 --port 30000" in words
        assert set(rank.pins) == {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}
        assert set(rank.pins.values()) == {"enp1"}


def test_kernel_caches_are_named_after_the_patch_set(parser: Parser) -> None:
    for rank in ranks(parser):
        (volume,) = [v for v in rank.volumes if v.container == "/var/cache/sglang-overlay"]
        assert volume.host == "/var/cache/sglang-overlay/" + "ab" * 6
        caches = {name for name in rank.environment if "CACHE" in name or name == "FLASHINFER_WORKSPACE_BASE"}
        assert {"TRITON_CACHE_DIR", "TILELANG_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"} <= caches
        assert all(rank.environment[name].startswith(volume.container + "/") for name in caches)


def test_one_node_needs_no_rendezvous(parser: Parser) -> None:
    server = Server("x", IMAGE, PATCHSET, given(parser, "--model M"))
    (rank,) = server.ranks(read_nodes(["10.0.0.1"]))
    assert not {"--nnodes", "--node-rank", "--dist-init-addr"} & set(rank.command)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """An ``ip`` that knows two interfaces, and a ``docker`` that writes down what it was told."""
    place = tmp_path / "programs"
    place.mkdir()
    addresses = r"""#!/bin/sh
echo '2: wlan0    inet 192.168.1.7/24 brd 192.168.1.255 scope global wlan0'
echo '3: enp1    inet 192.168.100.11/24 scope global enp1'
"""
    (place / "ip").write_text(addresses)
    (place / "docker").write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {tmp_path}/told\n')
    for program in place.iterdir():
        program.chmod(0o755)
    return place


def bash(script: str, programs: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": "/root"}
    return subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )


def test_the_script_is_bash_and_starts_the_rank_of_its_host(
    parser: Parser, programs: Path, tmp_path: Path
) -> None:
    script = render_script(ranks(parser), ["head\nof it".replace("\n", " ")])
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    done = bash(script, programs)
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "told").read_text().split("\0")
    assert told[told.index("--name") + 1] == "over.lay-rank1"
    assert "SGLANG_HOST_IP=192.168.100.11" in told
    assert "NCCL_SOCKET_IFNAME=enp1" in told
    assert told[told.index("--json-model-override-args") + 1] == AWKWARD
    assert told[told.index("--node-rank") + 1] == "1"


def test_the_script_starts_nothing_on_another_host_or_interface(
    parser: Parser, programs: Path, tmp_path: Path
) -> None:
    only_first = bash(render_script(ranks(parser)[:1], []), programs)
    assert only_first.returncode == 1
    assert "no rank runs here" in only_first.stderr
    elsewhere = bash(render_script(ranks(parser, "enp9"), []), programs)
    assert elsewhere.returncode == 1
    assert "is on enp1 here, and not on enp9" in elsewhere.stderr
    assert not (tmp_path / "told").exists()


def test_compose_holds_the_same_and_expands_nothing(parser: Parser) -> None:
    services = yaml.safe_load(render_compose(ranks(parser, "enp1"), ["head"]))["services"]
    assert list(services) == ["rank0", "rank1"]
    for number, service in enumerate(services.values()):
        assert service["image"] == IMAGE
        assert service["environment"]["SGLANG_HOST_IP"] == PAIR[number]
        assert AWKWARD.replace("$", "$$") in service["command"]
        assert service["stop_grace_period"] == "120s"
        assert "ports" not in service


def test_systemd_reads_the_command_as_it_is(parser: Parser) -> None:
    unit = render_unit(ranks(parser, "enp1")[1], 2, ["head"])
    joined = unit.replace("\\\n", " ")
    (start,) = [line for line in joined.splitlines() if line.startswith("ExecStart=")]
    assert '''"it's \\"100%%\\" $$HOME $$(reboot) `reboot` \\\\n ; end"''' in start
    assert "--env SGLANG_HOST_IP=192.168.100.11" in start


def test_the_stateful_set_gives_a_pod_the_rank_of_its_nodes_address(parser: Parser, tmp_path: Path) -> None:
    _, workload = yaml.safe_load_all(render_statefulset(ranks(parser, "enp1"), ["head"]))
    spec = workload["spec"]["template"]["spec"]
    assert workload["spec"]["replicas"] == 2
    assert spec["hostNetwork"] is True
    (container,) = spec["containers"]
    script = container["command"][-1]
    assert "$$(hostname -I)" in script  # Kubernetes makes $( of it
    place = tmp_path / "pod"
    place.mkdir()
    (place / "hostname").write_text("#!/bin/sh\necho '172.17.0.1 192.168.100.11 '\n")
    (place / "python3").write_text('#!/bin/sh\nprintf "%s\\0" "$SGLANG_HOST_IP" "$@"\n')
    for program in place.iterdir():
        program.chmod(0o755)
    said = bash(script.replace("$$(", "$("), place).stdout.split("\0")
    assert said[0] == "192.168.100.11"
    assert said[said.index("--node-rank") + 1] == "1"
    assert said[said.index("--json-model-override-args") + 1] == AWKWARD


def test_every_form_has_health_and_grace(parser: Parser) -> None:
    (first, _) = ranks(parser, "enp1")
    assert ["--stop-timeout", "120"] in container_options(first)
    assert any(group[0] == "--health-cmd" for group in container_options(first))
    assert "http://127.0.0.1:30000/health" in first.health[-1]
    compile(first.health[-1], "health", "exec")
    assert json.dumps(first.as_json())


def test_a_node_is_a_value() -> None:
    (node,) = read_nodes(["10.0.0.1"])
    assert node == Node(0, node.address, None)
