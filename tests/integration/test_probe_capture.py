"""States captured for a drafter: each probe sees its defect, its fix, half of it, and it in other words."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from builder.probe.harness import Answer, Tree
from builder.probe.run import Prober
from builder.probe.trees import MappingTree
from tests.integration.sources import PATCHES, WheelTree, changed, patched, release_tree

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
def prober() -> Iterator[Prober]:
    with Prober() as prober:
        yield prober


@pytest.fixture(scope="module")
def release() -> dict[str, WheelTree]:
    return {version: release_tree(version) for version in ("0.5.17", "0.5.20", "0.5.23")}


@pytest.fixture(scope="module")
def development(release: dict[str, WheelTree]) -> MappingTree:
    """The development branch between #36708 and #36755, as far as the patch touches it: a reconstruction."""
    return changed(release["0.5.20"], GLM5, {WITH_THE_FIX: BEFORE_THE_FIX})


def said(prober: Prober, name: str, tree: Tree) -> Answer:
    return prober.ask(PATCHES / "probes" / f"{name}.py", tree)


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


def test_patch_of_the_development_lane_mends_the_reconstruction(
    prober: Prober, development: MappingTree
) -> None:
    assert said(prober, DFLASH, development).state == "defect"
    mended = patched(development, f"v0.5.20-dev/{DFLASH}")
    assert said(prober, DFLASH, mended).state == "fixed"
    assert said(prober, EAGLE3, mended).state == "defect"


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


GUARD = "        if residual is not None:\n            aux_hidden_state = aux_hidden_state + residual\n"
CONTRACT = "        if self.dflash_capture and self.config.mhc:\n"
BROKEN_DFLASH = {
    "reverted": {GUARD: "        aux_hidden_state = aux_hidden_state + residual\n"},
    "guard the wrong way round": {GUARD: GUARD.replace("is not None", "is None")},
    "residual never added": {GUARD: ""},
    "guard by mHC alone": {GUARD: GUARD.replace("residual is not None", "not self.config.mhc")},
    "contracted for EAGLE3 too": {CONTRACT: "        if self.config.mhc:\n"},
    "sum moved below, unguarded": {
        GUARD: "",
        "        return aux_hidden_state\n": "        return aux_hidden_state + residual\n",
    },
}
REWRITTEN_DFLASH = {
    "as an expression": {
        GUARD: "        aux_hidden_state = hidden_states if residual is None else residual + hidden_states\n"
    },
    "early return": {
        GUARD: "        if residual is None and not (self.dflash_capture and self.config.mhc):\n"
        "            return aux_hidden_state\n" + GUARD
    },
    "renamed": {"    def _prepare_aux_hidden_state(\n": "    def _captured(\n"},
    "the other way round": {
        GUARD: "        if residual is None:\n            pass\n        else:\n"
        "            aux_hidden_state = residual + aux_hidden_state\n"
    },
}


@pytest.mark.parametrize("mutation", BROKEN_DFLASH)
def test_broken_dflash_fix_is_not_called_fixed(
    prober: Prober, development: MappingTree, mutation: str
) -> None:
    mended = patched(development, f"v0.5.20-dev/{DFLASH}")
    answer = said(prober, DFLASH, changed(mended, GLM5, BROKEN_DFLASH[mutation]))
    assert answer.state in ("defect", "unknown"), answer


@pytest.mark.parametrize("refactoring", REWRITTEN_DFLASH)
def test_dflash_fix_in_other_words_is_still_fixed(
    prober: Prober, development: MappingTree, refactoring: str
) -> None:
    mended = patched(development, f"v0.5.20-dev/{DFLASH}")
    answer = said(prober, DFLASH, changed(mended, GLM5, REWRITTEN_DFLASH[refactoring]))
    assert answer.state == "fixed", answer


FIRST = """                    captured = hidden_states
                    if residual is not None:
                        captured = captured + residual
                    aux_hidden_states.append(captured)
"""
BROKEN_EAGLE3 = {
    "reverted": {FIRST: "                    aux_hidden_states.append(hidden_states + residual)\n"},
    "residual never added": {FIRST: FIRST.replace("captured + residual", "captured")},
    "nothing captured before the first layer": {
        FIRST: "                    if residual is not None:\n"
        "                        aux_hidden_states.append(hidden_states + residual)\n"
    },
    "captured after the layer": {
        FIRST: "                    pass\n",
        "                    zero_allocator,\n                )\n\n        if normal_end_layer": (
            "                    zero_allocator,\n                )\n"
            "                if i in self.layers_to_capture:\n"
            "                    aux_hidden_states.append(hidden_states + residual)\n\n"
            "        if normal_end_layer"
        ),
    },
}
REWRITTEN_EAGLE3 = {
    "as an expression": {
        FIRST: "                    aux_hidden_states.append(\n"
        "                        hidden_states if residual is None else residual + hidden_states\n"
        "                    )\n"
    },
    "in a method": {
        FIRST: "                    aux_hidden_states.append(_layer_input(hidden_states, residual))\n",
        "class Glm4MoeLiteModel(": (
            "def _layer_input(hidden_states, residual):\n"
            "    return hidden_states if residual is None else hidden_states + residual\n\n\n"
            "class Glm4MoeLiteModel("
        ),
    },
}


@pytest.mark.parametrize("mutation", BROKEN_EAGLE3)
def test_broken_eagle3_fix_is_not_called_fixed(
    prober: Prober, release: dict[str, WheelTree], mutation: str
) -> None:
    mended = patched(release["0.5.20"], f"v0.5.20/{EAGLE3}")
    answer = said(prober, EAGLE3, changed(mended, GLM4, BROKEN_EAGLE3[mutation]))
    assert answer.state in ("defect", "unknown"), answer


@pytest.mark.parametrize("refactoring", REWRITTEN_EAGLE3)
def test_eagle3_fix_in_other_words_is_still_fixed(
    prober: Prober, release: dict[str, WheelTree], refactoring: str
) -> None:
    mended = patched(release["0.5.20"], f"v0.5.20/{EAGLE3}")
    answer = said(prober, EAGLE3, changed(mended, GLM4, REWRITTEN_EAGLE3[refactoring]))
    assert answer.state == "fixed", answer


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
