"""States captured for a drafter: each probe sees its defect, its fix, half of it, and it in other words."""

from __future__ import annotations

import re

import pytest

from builder.probe.run import Prober
from builder.probe.trees import MappingTree
from tests.integration.sources import PATCHES, WheelTree, changed, patched, said

GLM5 = "python/sglang/srt/models/glm5_next.py"
GLM4 = "python/sglang/srt/models/glm4_moe_lite.py"
DFLASH = "dflash-residual-none"
EAGLE3 = "eagle3-first-layer-residual"
PAGE = PATCHES.parent / "docs" / "patches.md"

# The fix as v0.5.20 has it, and what #36708 had in its place.
WITH_THE_FIX = """        self, hidden_states: torch.Tensor, residual: Optional[torch.Tensor]
    ) -> torch.Tensor:
        # mHC folds the residual into widened hidden state, so residual remains None
        # until hc_contract merges it; only plain residual streams are added here.
        aux_hidden_state = (
            hidden_states if residual is None else hidden_states + residual
        )
"""
BEFORE_THE_FIX = """        self, hidden_states: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        aux_hidden_state = hidden_states + residual
"""


@pytest.fixture(scope="module")
def development(release: dict[str, WheelTree]) -> MappingTree:
    """The development branch between #36708 and #36755, as far as the patch touches it: a reconstruction."""
    return changed(release["0.5.20"], GLM5, {WITH_THE_FIX: BEFORE_THE_FIX})


@pytest.mark.parametrize(
    ("name", "version", "state"),
    [
        (DFLASH, "0.5.17", "unknown"),
        (DFLASH, "0.5.20", "fixed"),
        (DFLASH, "0.5.23", "absent"),
        (EAGLE3, "0.5.17", "defect"),
        (EAGLE3, "0.5.20", "defect"),
        (EAGLE3, "0.5.23", "absent"),
    ],
)
def test_every_release_gets_an_answer(
    prober: Prober, release: dict[str, WheelTree], name: str, version: str, state: str
) -> None:
    answer = said(prober, name, release[version])
    assert answer.state == state, answer


def test_patch_of_the_development_lane_repairs_the_reconstruction(
    prober: Prober, development: MappingTree
) -> None:
    assert said(prober, DFLASH, development).state == "defect"
    repaired = patched(development, f"v0.5.20-dev/{DFLASH}")
    assert said(prober, DFLASH, repaired).state == "fixed"
    assert said(prober, EAGLE3, repaired).state == "defect"


def test_patch_of_the_development_lane_lands_in_a_longer_file(
    prober: Prober, development: MappingTree
) -> None:
    """A development image's file has its own line numbers: the hunk has one place in it."""
    text = development.read(GLM5)
    longer = MappingTree({GLM5: b"# one more line\n" * 121 + text}, development)
    assert said(prober, DFLASH, patched(longer, f"v0.5.20-dev/{DFLASH}")).state == "fixed"


def test_eagle3_patch_flips_its_own_probe_and_no_other(prober: Prober, release: dict[str, WheelTree]) -> None:
    tree = patched(release["0.5.20"], f"v0.5.20/{EAGLE3}")
    assert said(prober, EAGLE3, tree).state == "fixed"
    assert said(prober, DFLASH, tree).state == "fixed"  # as before


def test_defect_in_other_words_is_still_a_defect(
    prober: Prober, release: dict[str, WheelTree], development: MappingTree
) -> None:
    glm4, glm5 = release["0.5.20"].read(GLM4), development.read(GLM5)
    renamed = MappingTree({GLM4: glm4.replace(b"residual", b"carried")}, release["0.5.20"])
    assert said(prober, EAGLE3, renamed).state == "defect"
    renamed = MappingTree({GLM5: glm5.replace(b"residual", b"carried")}, development)
    assert said(prober, DFLASH, renamed).state == "defect"
    unheard_of = MappingTree({GLM5: glm5.replace(b"dflash_capture", b"draft_wants")}, development)
    assert said(prober, DFLASH, unheard_of).state == "unknown"


def test_documented_siblings_are_all_there_are(release: dict[str, WheelTree]) -> None:
    """Models at v0.5.20 that add a residual without looking whether there is one."""
    models = "python/sglang/srt/models/"
    unguarded = re.compile(r"^( *)(?!.*\belse\b).*\.append\(hidden_states \+ residual\)$", re.MULTILINE)
    guards = re.compile(r"else:\n *\S*\.append\(hidden_states \+ residual\)")
    found = {
        path.removeprefix(models).removesuffix(".py")
        for path in release["0.5.20"].paths(models)
        if unguarded.search(text := release["0.5.20"].read(path).decode()) and not guards.search(text)
    }
    documented = PAGE.read_text()
    rows = re.findall(
        r"^\| (`[^|]*`) \| (?:no|yes: EAGLE3)[^|]*\| (?:no: the unguarded|no \||yes, )", documented, re.M
    )
    assert found == {name for row in rows for name in re.findall(r"`(\w+)`", row)}
