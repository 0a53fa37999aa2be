"""What overlay needs is looked for where it is used, and what is missing is said with what to do."""

from __future__ import annotations

from pathlib import Path

from builder.probe.confinement import FULL
from tests.conftest import Overlay
from tests.integration.conftest import Engine, Registry, registry_address


def states(overlay: Overlay, *arguments: object, code: int = 0) -> dict[str, tuple[str, str]]:
    found = overlay("doctor", *arguments, "--json").check(code).json
    return {finding["name"]: (finding["state"], f"{finding['text']} {finding['hint']}") for finding in found}


def test_all_is_well(
    overlay: Overlay, registry: Registry, docker_engine: Engine, small_base_pushed: str
) -> None:
    found = states(overlay.with_environment(DOCKER_HOST=docker_engine.host), small_base_pushed)
    assert {state for state, _ in found.values()} == {"good"}
    assert "the image is there" in found[small_base_pushed.partition("@")[0]][1]
    assert docker_engine.host in found["engine"][1]


def test_the_wall_around_probes_is_named(overlay: Overlay) -> None:
    """Each limit is said to be there or not."""
    state, text = states(overlay, "--offline")["sandbox"]
    assert state == "good"
    assert all(limit in text for limit in FULL)


def test_a_registry_that_does_not_answer_is_exit_8(overlay: Overlay) -> None:
    lost = overlay.with_environment(OVERLAY_RETRY_ATTEMPTS="1")
    found = states(lost, "127.0.0.1:9/nothing", code=8)
    state, text = found["127.0.0.1:9/nothing"]
    assert state == "broken"
    assert "connection" in text


def test_no_engine_is_missing_and_not_broken(overlay: Overlay, tmp_path: Path) -> None:
    lost = overlay.with_environment(DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    state, text = states(lost, "--offline")["engine"]
    assert state == "missing"
    assert "--engine docker" in text


def test_a_login_is_named_and_its_secret_is_not(
    overlay: Overlay, tmp_path: Path, small_base_pushed: str
) -> None:
    import base64
    import json

    secret = base64.b64encode(b"somebody:hunter2-secret").decode()
    config = tmp_path / "docker"
    config.mkdir()
    (config / "config.json").write_text(json.dumps({"auths": {registry_address(): {"auth": secret}}}))
    run = overlay.with_environment(DOCKER_CONFIG=str(config))("doctor", small_base_pushed).check()
    assert "somebody" in run.out
    assert "hunter2" not in run.out + run.err
    assert secret not in run.out + run.err


def test_a_damaged_index_is_told_and_pruned(overlay: Overlay, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "layers").mkdir(parents=True)
    (cache / "layers" / f"sha256-{'a' * 64}-{'b' * 64}.layer").write_bytes(b"no such bytes")
    own = overlay.with_environment(OVERLAY_CACHE=str(cache))
    state, text = states(own, "--offline")["cache"]
    assert state == "missing"
    assert "overlay cache prune" in text
    assert "damaged" in own("cache", "list").check().out
    own("cache", "prune").check()
    assert states(own, "--offline")["cache"][0] == "good"


def test_a_git_that_is_too_old_is_exit_8(overlay: Overlay, tmp_path: Path) -> None:
    old = tmp_path / "bin"
    old.mkdir()
    (old / "git").write_text("#!/bin/sh\necho git version 2.17.1\n")
    (old / "git").chmod(0o755)
    aged = overlay.with_environment(PATH=f"{old}:{overlay.environment['PATH']}")
    state, text = states(aged, "--offline", code=8)["git"]
    assert state == "broken"
    assert "2.17.1" in text
    assert "2.39" in text
