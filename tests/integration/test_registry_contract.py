"""What the unit tests' registry is trusted for, of docker-registry."""

from __future__ import annotations

import pytest

from tests.contracts.registry import *  # noqa: F403 - its tests are run here
from tests.integration.conftest import Registry


@pytest.fixture
def space(registry: Registry) -> str:
    return f"{registry.address}/{registry.space}"
