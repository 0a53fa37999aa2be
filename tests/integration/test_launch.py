"""``overlay launch`` on the real releases; what it prints is accepted by the programs that read it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import Overlay, Run
from tests.integration.conftest import Registry, needed_program, run_program

NODES = ("--nodes", "192.168.100.10,192.168.100.11")
IMAGE = "registry.example/sglang@sha256:" + "5" * 64
GLM = ("glm53-flash-gb10", "0.5.20", ("--model-path", "/models/glm", "--tp-size", "2"))
DEEPSEEK = ("dsv4-flash-gb10", "0.5.17", ("--model-path", "/models/ds"))


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory, wheel: Callable[[str], Path]) -> Callable[..., Run]:
    overlay = Overlay.prepare(tmp_path_factory.mktemp("launch"))

    def run(which: tuple[str, str, tuple[str, ...]], *options: str, code: int = 0) -> Run:
        name, release, words = which
        command = ["launch", name, *NODES, "--wheel", wheel(release), "--image", IMAGE, *options]
        return overlay(*command, "--", *words).check(code)

    return run


@pytest.mark.parametrize("which", [GLM, DEEPSEEK], ids=lambda which: which[1])
def test_both_ranks_are_printed_for_each_release(
    launch: Callable[..., Run], which: tuple[str, str, tuple[str, ...]]
) -> None:
    script = launch(which).out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    found = launch(which, "--json").json
    assert [rank["environment"]["SGLANG_HOST_IP"] for rank in found["ranks"]] == NODES[1].split(",")
    assert all(IMAGE in script and rank["image"] == IMAGE for rank in found["ranks"])
    recommended = ["--disable-cuda-graph"] if which is DEEPSEEK else []
    assert all(set(recommended) <= set(rank["command"]) for rank in found["ranks"])


def test_images_that_the_release_would_ignore_are_named(launch: Callable[..., Run]) -> None:
    name, release, words = GLM
    for flags in ((), ("--enable-multimodal",)):
        said = launch((name, release, (*words, *flags)), "--json")
        (note,) = said.json["notes"]
        assert "glm5_next" in note
        assert "transformers==5.12.1" in note
        assert f"warning: {note}" in said.err
    later = launch(("glm53-flash-gb10-v0.5.23", "0.5.23", (*words, "--enable-multimodal")), "--json")
    assert later.json["notes"] == launch(DEEPSEEK, "--json").json["notes"] == []
    assert "images" not in later.err


@pytest.mark.parametrize("which", [GLM, DEEPSEEK], ids=lambda which: which[1])
def test_the_releases_own_arguments_are_known_and_no_others(
    launch: Callable[..., Run], which: tuple[str, str, tuple[str, ...]]
) -> None:
    name, release, words = which
    known = (
        "--mem-fraction-static",
        "0.8",
        "--enable-metrics",
        "--tool-call-parser",
        "glm",
        "--api-key",
        "k",
    )
    launch((name, release, (*words, *known)))
    refused = launch((name, release, (*words, "--mem-fraction-statik", "0.8")), code=2)
    assert "did you mean --mem-fraction-static" in refused.err


def test_an_argument_of_a_later_release_is_unknown_to_the_earlier(launch: Callable[..., Run]) -> None:
    later = ("--gated-launch-port", "9000")
    launch((*GLM[:2], (*GLM[2], *later)))
    assert "does not know" in launch((*DEEPSEEK[:2], (*DEEPSEEK[2], *later)), code=2).err


def test_docker_compose_accepts_the_file(launch: Callable[..., Run], tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    awkward = (*GLM[:2], (*GLM[2], "--json-model-override-args", '{"a": "$b ${c}"}'))
    path.write_text(launch(awkward, "--as", "compose", "--iface", "enp1s0f0np0").out)
    program = needed_program("docker-compose")
    config = [program, "--file", str(path), "--profile", "rank0", "--profile", "rank1", "config"]
    said = yaml.safe_load(run_program(config, environment={"b": "wrong"}))
    assert set(said["services"]) == {"rank0", "rank1"}
    assert '{"a": "$$b $${c}"}' in said["services"]["rank1"]["command"]
    assert said["services"]["rank1"]["environment"]["SGLANG_HOST_IP"] == "192.168.100.11"


def test_systemd_accepts_each_unit(launch: Callable[..., Run], tmp_path: Path) -> None:
    files = launch(GLM, "--as", "systemd", "--iface", "enp1s0f0np0", "--json").json["files"]
    assert set(files) == {"glm53-flash-gb10-rank0.service", "glm53-flash-gb10-rank1.service"}
    (tmp_path / "docker.service").write_text("[Service]\nExecStart=/bin/true\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        # Other units of this machine may be complained of as well: only ours count.
        command = [needed_program("systemd-analyze"), "verify", "--man=no", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert name not in done.stderr, done.stderr
    broken = files["glm53-flash-gb10-rank0.service"].replace("ExecStart=", "ExecStart=no-such-path/")
    (tmp_path / "broken.service").write_text(broken)
    command = [needed_program("systemd-analyze"), "verify", "--man=no", str(tmp_path / "broken.service")]
    assert "broken.service" in subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_the_manifest_is_valid_kubernetes(launch: Callable[..., Run]) -> None:
    import kubernetes_validate

    text = launch(GLM, "--as", "statefulset", "--iface", "enp1", "--device", "/dev/infiniband").out
    service, workload = yaml.safe_load_all(text)
    for document in (service, workload):
        kubernetes_validate.validate(document, "1.31", strict=True)
    workload["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(workload, "1.31", strict=True)


@pytest.mark.parametrize("form", ["compose", "systemd", "statefulset"])
def test_forms_that_cannot_find_the_interface_want_it(launch: Callable[..., Run], form: str) -> None:
    assert "--iface" in launch(GLM, "--as", form, code=2).err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--rank", "2"), "no such rank"),
        (("--rank", "0", "--as", "statefulset", "--iface", "enp1"), "holds all ranks"),
        (("--iface", "wlan0"), "Wi-Fi"),
        (("--network", "10.0.0.0/8"), "not on the network"),
        (("--listen", "spark-1"), "not an address"),
        (("--volume", "models:/models"), "not an absolute path"),
        (("--volume", "/models:/models:rx"), "not a volume"),
        (("--device", "infiniband"), "not an absolute path"),
        (("--kernels", "/var/../etc"), "not an absolute path"),
        (("--memory", "119GiB"), "needs the memory and the weights"),
        (("--memory", "119GiB", "--weights", "71GiB"), "needs the share"),
        (("--image", "registry.example/sglang:latest"), "named by digest"),
    ],
)
def test_what_cannot_be_is_refused(launch: Callable[..., Run], options: tuple[str, ...], says: str) -> None:
    refused = launch(GLM, *options, code=2)
    assert says in refused.err
    assert not refused.out


def test_the_plan_is_shown_with_the_script(launch: Callable[..., Run]) -> None:
    sizes = ("--memory", "119GiB", "--weights", "71GiB", "--kv-per-token", "40KiB", "--state", "72MiB")
    words = (
        "--mem-fraction-static",
        "0.85",
        "--max-running-requests",
        "8",
        "--speculative-num-draft-tokens",
        "12",
    )
    run = launch((*GLM[:2], (*GLM[2], *words)), *sizes)
    assert "# [WWW" in run.out
    subprocess.run(["bash", "-n"], input=run.out, text=True, check=True)
    planned = launch((*GLM[:2], (*GLM[2], *words)), *sizes, "--json").json["plan"]
    assert planned["served"] == 8
    assert planned["warning"] is None
    many = launch((*GLM[:2], (*GLM[2], *words[:-3], "500", *words[-2:])), *sizes, "--json")
    assert "500 requests are asked for" in many.json["plan"]["warning"]
    assert many.json["plan"]["warning"] in many.err


def test_what_was_pushed_last_is_launched(
    prepared: Overlay, small_base_pushed: str, wheel: Callable[[str], Path], registry: Registry
) -> None:
    target = registry.repository("patched")
    file = wheel("0.5.20")
    command = ("build", GLM[0], "--base", small_base_pushed, "--wheel", file, "--push", target, "--json")
    digest = prepared(*command).check().json["digest"]
    launched = prepared("launch", GLM[0], *NODES, "--wheel", file, "--json", "--", *GLM[2]).check()
    assert launched.json["image"] == f"{target}@{digest}"
    spec = prepared.directory / "overlays" / f"{GLM[0]}.yaml"
    spec.write_text(
        spec.read_text().replace(
            "  series: v0.5.20", "  series: v0.5.20\n  except: [mamba-cache-for-requests]"
        )
    )
    other = prepared("launch", GLM[0], *NODES, "--wheel", file, "--json", "--", *GLM[2]).check(5)
    assert "another patch set" in json.loads(other.out)["error"]["what"]
