"""How often do the plain ways of asking "is my patch still needed?" answer wrongly, and how often do we?

    python -m benchmarks.verdicts

Each case is a small repository of its own (``tests/projects/adversarial_cases.py``). The plain methods say
"needed" or "not needed"; where one only fails, a person takes that for "needed". Ours must give the exact
verdict. Writes
``docs/verdicts.md``; fails when ours is wrong once.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import taken
from builder.patch.patch import Patch
from builder.source.git import git_environment
from tests.conftest import ROOT
from tests.projects.adversarial_cases import CASES, Case
from tests.projects.history import HistoryProject

TAKEN = 4
"""How many changes of each pair of adjacent releases are judged."""

_WHO = {"GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@example.org"}


def main() -> int:
    rows = [measure(case) for case in CASES]
    tally = taken.measure(taken.all_releases(), TAKEN, taken.Tally())
    report = render(rows) + "\n" + taken.render(tally, TAKEN)
    (ROOT / "docs" / "verdicts.md").write_text(report, "utf-8")
    print(report)
    print("\n".join(tally.wrong))
    ours = [row[1]["overlay diff"] == case.right for case, row in zip(CASES, rows, strict=True)]
    return 0 if all(ours) and not tally.wrong else 1


def measure(case: Case) -> tuple[Case, dict[str, str]]:
    """What each method says of a case."""
    said: dict[str, str] = {}
    for name, method in METHODS.items():
        with tempfile.TemporaryDirectory(prefix="overlay-verdicts-") as directory:
            lab = HistoryProject(Path(directory))
            pin, patch, target = case.make(lab)
            said[name] = method(lab, pin, patch, target)
    return case, said


def is_wrong(case: Case, method: str, said: str) -> bool:
    """Whether an answer is wrong: ours by the verdict, the plain ones by "needed" alone."""
    if method == "overlay diff":
        return said != case.right
    return (said == "needed") != case.needed


def render(rows: list[tuple[Case, dict[str, str]]]) -> str:
    """The table, wrong answers in bold, and how many there are of each."""
    names = list(METHODS)
    lines = [
        "# Wrong verdicts",
        "",
        "What the usual ways of asking whether a patch is still needed say, and what is true. Wrong answers",
        "are bold. Each row is a small repository made by `tests/projects/adversarial_cases.py`; this page",
        "is made by `python -m benchmarks.verdicts`, which fails when ours is wrong.",
        "",
        "| what happened upstream | true | " + " | ".join(f"`{name}`" for name in names) + " |",
        "|---" * (len(names) + 2) + "|",
    ]
    wrong = dict.fromkeys(names, 0)
    for case, said in rows:
        cells = []
        for name in names:
            bad = is_wrong(case, name, said[name])
            wrong[name] += bad
            cells.append(f"**{said[name]}**" if bad else said[name])
        lines.append(f"| {case.name} | {case.right} | " + " | ".join(cells) + " |")
    lines.append(
        f"| **wrong of {len(rows)}** | | " + " | ".join(f"**{wrong[name]}**" for name in names) + " |"
    )
    return "\n".join(lines) + "\n"


# --- the methods --------------------------------------------------------------------------------------------


def _run(lab: HistoryProject, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["git", *arguments], cwd=lab.repository, input=stdin, env=git_environment(_WHO),
        capture_output=True, check=False,
    )  # fmt: skip


def reverse_check(lab: HistoryProject, pin: str, patch: Patch, target: str) -> str:
    """It is there when it can be taken back."""
    lab.git("checkout", "--quiet", "--force", target)
    done = _run(lab, "apply", "--reverse", "--check", "-", stdin=patch.diff)
    return "needed" if done.returncode else "not needed"


def three_way(lab: HistoryProject, pin: str, patch: Patch, target: str) -> str:
    """It is there when applying it changes nothing."""
    lab.git("checkout", "--quiet", "--force", target)
    done = _run(lab, "apply", "--3way", "--index", "-", stdin=patch.diff)
    changed = _run(lab, "diff", "--quiet", "HEAD").returncode
    return "needed" if done.returncode or changed else "not needed"


def cherry(lab: HistoryProject, pin: str, patch: Patch, target: str) -> str:
    """It is there when upstream has a commit of the same patch-id."""
    made = lab.after(pin, patch)
    done = _run(lab, "cherry", target, made, pin)
    return "not needed" if done.stdout.startswith(b"-") else "needed"


def am_three_way(lab: HistoryProject, pin: str, patch: Patch, target: str) -> str:
    """It is there when git says so, and makes no commit."""
    lab.git("checkout", "--quiet", "--force", target)
    done = _run(lab, "am", "--3way", "-", stdin=patch.data)
    moved = lab.git("rev-parse", "HEAD") != target
    return "needed" if done.returncode or moved else "not needed"


def ours(lab: HistoryProject, pin: str, patch: Patch, target: str) -> str:
    return lab.judge(pin, [patch], target).of(patch.name, target).verdict.word


METHODS: dict[str, Callable[[HistoryProject, str, Patch, str], str]] = {
    "git apply -R --check": reverse_check,
    "git apply --3way": three_way,
    "git cherry": cherry,
    "git am --3way": am_three_way,
    "overlay diff": ours,
}


if __name__ == "__main__":
    sys.exit(main())
