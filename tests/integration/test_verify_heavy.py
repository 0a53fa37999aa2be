"""Verifying a large image reads what overlay added, not the base."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Overlay
from tests.integration.conftest import PushedBase, registry_log
from tests.integration.judge import OVERLAY


def test_with_a_warm_layer_index_only_the_overlays_layer_is_read(
    prepared: Overlay, heavy: PushedBase, wheel: Callable[[str], Path]
) -> None:
    target = heavy.reference.partition("@")[0] + "-verified:x"
    options = ("--base", heavy.reference, "--wheel", wheel("0.5.20"), "--push", target, "--no-attach")
    built = prepared("build", OVERLAY, *options, "--json").check().json
    image = f"{target.rpartition(':')[0]}@{built['digest']}"
    prepared("verify", image).check()
    log = registry_log()
    assert log is not None
    before = len(log.read_text().splitlines())
    prepared("verify", image).check()
    space = f"/v2/{target.partition('/')[2].partition('/')[0]}/"
    lines = [line for line in log.read_text().splitlines()[before:] if space in line]
    layers = {layer["digest"] for layer in heavy.base.layout.image(heavy.base.digest).manifest["layers"]}
    read = {found[1] for line in lines if (found := re.search(r'"GET \S+/blobs/(sha256:[0-9a-f]{64})', line))}
    assert built["images"][0]["layer"]["digest"] in read
    assert not read & layers
    assert len(read) == 3, "its layer, its config, and the base's config"
