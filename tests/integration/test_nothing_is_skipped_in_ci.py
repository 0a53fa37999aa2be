"""A skip says what is missing, and in CI it is a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

SKIPS = {
    "in_a_test": "import pytest\ndef test_x(): pytest.skip('no moon')\n",
    "by_a_mark": "import pytest\n@pytest.mark.skipif(True, reason='no moon')\ndef test_x(): pass\n",
    "of_a_module": "import pytest\npytest.skip('no moon', allow_module_level=True)\n",
    "for_want_of_a_package": "import pytest\npytest.importorskip('no_moon', reason='no moon')\n",
}


def test_a_skip_is_a_failure_in_ci_alone(tmp_path: Path) -> None:
    for how, text in SKIPS.items():
        (tmp_path / f"test_{how}.py").write_text(text)
    here = run_pytest(tmp_path, {"CI": ""})
    assert f" {len(SKIPS)} skipped in " in here.stdout.splitlines()[-1]
    in_ci = run_pytest(tmp_path, {"CI": "true"})
    assert in_ci.returncode == 1, in_ci.stdout
    assert "1 failed, 3 errors" in in_ci.stdout
    assert all(f"test_{how}.py" in in_ci.stdout for how in SKIPS)


def run_pytest(directory: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(directory), str(directory)]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )
