"""A report as Markdown, for a pull request or an issue."""

from __future__ import annotations

from builder.printable import printable
from builder.retire.evaluate import Evaluation, Report
from builder.retire.evidence import Evidence

_PROOFS = {
    "lines": "there, by its lines",
    "syntax": "there, by the syntax",
    "no code": "nothing to carry",
    "hint": "perhaps there",
    "doubt": "there, and perhaps not in what counts",
}


def render_markdown(report: Report) -> str:
    """The matrix, and below it each verdict with its evidence."""
    subject = report.subject
    lines = [
        f"### {escaped(subject.name)} {escaped(subject.version)}, pinned to {escaped(subject.release)}",
        "",
        "| patch | " + " | ".join(escaped(target.name) for target in report.targets) + " |",
        "|---" * (len(report.targets) + 1) + "|",
    ]
    for patch in subject.series.patches:
        words = [report.of(patch.name, target.name) for target in report.targets]
        cells = (found.verdict.word + (" (!)" if found.verdict.contradictions else "") for found in words)
        lines.append(f"| {escaped(patch.name)} | " + " | ".join(cells) + " |")
    lines += ["", "(!) the evidence does not agree", ""]
    for target in report.targets:
        lines += [f"<details><summary>{escaped(target.name)}</summary>", ""]
        for evaluation in report.on(target.name):
            lines += _judgement(evaluation)
        lines += ["", "</details>", ""]
    return "\n".join(lines)


def _judgement(evaluation: Evaluation) -> list[str]:
    verdict = evaluation.verdict
    word = f"{verdict.word}, can be retired" if verdict.retirable else verdict.word
    lines = [f"- **{escaped(evaluation.patch)}**: {word}: {escaped(verdict.why)}"]
    lines += [f"  - {kind}: {escaped(said)}" for kind, said in evidence_rows(evaluation.evidence)]
    lines += [f"  - (!) {escaped(line)}" for line in evaluation.verdict.contradictions]
    return lines


def evidence_rows(evidence: Evidence) -> list[tuple[str, str]]:
    """Each kind of evidence and what it says, in one line each."""
    text = evidence.text
    moved = "".join(f"; {old} is now {new}" for old, new in text.renames.items())
    rows = [("text", f"{text}{moved}" + (f"; {text.note}" if text.note else ""))]
    rows += [
        (f"hunk {hunk.number} of {hunk.path}", f"{_PROOFS[hunk.standing.proof]}: {hunk.standing}")
        for hunk in text.hunks
        if hunk.standing is not None
    ]
    rows += [(f"uses of {other}", ", ".join(names)) for other, names in text.uses.items()]
    rows += [("the code went", str(place)) for place in text.went_to]
    rows += [("soundness", note) for note in evidence.notes]
    rows += [("pull request", str(landed)) for landed in evidence.landed]
    if evidence.behaviour is None:
        rows.append(("behaviour", "no probe"))
    else:
        for name, answer in (
            ("the pin", evidence.behaviour.pin),
            ("the target", evidence.behaviour.pristine),
            ("the target with the patch", evidence.behaviour.carried),
        ):
            if answer is not None:
                rows.append((f"behaviour of {name}", f"{answer.state}: {answer.evidence}"))
    rows += [("dependency", str(dependency)) for dependency in evidence.dependencies]
    if evidence.history is not None:
        history = evidence.history
        request = f" ({history.pull_request})" if history.pull_request else ""
        note = f"; {history.note}" if history.note and str(history) != history.note else ""
        rows.append(("history", f"since {history}{request}, by {history.method}{note}"))
    return rows


def escaped(text: str) -> str:
    """Text that stays in its place in Markdown."""
    line = printable(" ".join(text.split()), colors=False)
    for character in "\\|*_`<>[]#":
        line = line.replace(character, "\\" + character)
    return line
