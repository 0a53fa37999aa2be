"""Images that a release takes and never looks at are known from its source and the transformers it pins."""

from __future__ import annotations

import pytest

from builder.launch.images import CONFIGS, lacks, unseen_in
from builder.probe.trees import MappingTree
from builder.retire.dependency import METADATA, PYPROJECT

CONFIG = b"""
from transformers import PretrainedConfig

class Glm5NextVisionConfig(PretrainedConfig):
    model_type = "glm5_next_vision"

class Glm5NextConfig(PretrainedConfig):
    model_type = "glm5_next"

    def __init__(self, text_config=None, vision_config=None):
        pass
"""


def tree(pin: bytes = b"transformers==5.12.1", config: bytes | None = CONFIG) -> MappingTree:
    files = {METADATA: b"Name: sglang\nRequires-Dist: " + pin + b"\n"}
    return MappingTree(files | ({} if config is None else {f"{CONFIGS}glm5_next.py": config}))


def test_a_model_whose_processor_is_not_in_the_pinned_transformers_is_named() -> None:
    (said,) = unseen_in(tree())
    assert "glm5_next" in said
    assert "transformers==5.12.1" in said
    checkout = MappingTree(
        {PYPROJECT: b'dependencies = ["transformers==5.12.1"]', f"{CONFIGS}glm5_next.py": CONFIG}
    )
    assert unseen_in(checkout) == [said]


@pytest.mark.parametrize(
    "quiet",
    [
        tree(config=None),
        tree(b"transformers==5.19.0"),
        tree(b"transformers>=5.12.1"),
        tree(b"torch==2.13.0"),
        tree(config=CONFIG.replace(b"vision_config", b"audio_config")),
        tree(
            config=CONFIG.replace(
                b"class Glm5NextConfig", b"@register_customized_processor(P)\nclass Glm5NextConfig"
            )
        ),
        tree(config=CONFIG + b"AutoProcessor.register(Glm5NextConfig, Glm5NextProcessor)\n"),
        tree(config=b"def broken(:\n"),
        tree(config=b"\0"),
    ],
)
def test_nothing_is_said_where_there_is_a_processor_or_where_that_cannot_be_told(quiet: MappingTree) -> None:
    assert unseen_in(quiet) == []


@pytest.mark.parametrize(
    ("specifier", "lacking"),
    [
        ("==5.12.1", True),
        ("==5.16.0", True),
        ("==5.16.1", False),
        ("==5.17", False),
        ("==6", False),
        (">=5.12,<5.16", True),
        ("<5.16.1", True),
        ("<=5.16.1", False),
        (">=5.12", False),
        ("", False),
    ],
)
def test_a_requirement_lacks_what_came_after_its_upper_bound(specifier: str, *, lacking: bool) -> None:
    assert lacks(specifier, "5.16.1") is lacking
