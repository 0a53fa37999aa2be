"""Take patches that the pin does not need out of their series: evidence kept, overlays bumped, all or
nothing."""

from __future__ import annotations

import datetime
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from builder.errors import InvalidInput
from builder.patch.apply import try_series
from builder.patch.patch import Patch
from builder.patch.series import Series
from builder.patch.series_file import read_series_lines
from builder.project.project import Root
from builder.project.spec import Spec, read_spec
from builder.project.spec_edit import SpecText, bumped
from builder.project.transaction import write_all
from builder.retire.evaluate import Evaluation, Report
from builder.retire.markdown import evidence_rows
from builder.retire.verdict import TAKEN_BY_UPSTREAM

CHANGELOG = PurePosixPath("overlays/CHANGELOG.md")
_TITLE = "# Changes of the overlays\n"


@dataclass(frozen=True)
class Retirement:
    """What retiring would change.

    Args:
        overlay: the overlay that was judged.
        patches: the patches that go.
        kept: why others stay that upstream seems to have, a line each.
        changes: new contents by path below the root; None removes a file.
        diff: the same as a unified diff.
    """

    overlay: str
    patches: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    changes: Mapping[PurePosixPath, bytes | None] = field(default_factory=dict)
    diff: str = ""

    @property
    def summary(self) -> str:
        """One line."""
        if not self.patches:
            return f"{self.overlay}: nothing to retire"
        return f"{self.overlay}: retired {', '.join(self.patches)}; they are in patches/retired now"

    def as_json(self) -> dict[str, Any]:
        """The same facts for programs."""
        return {
            "overlay": self.overlay,
            "patches": list(self.patches),
            "kept": list(self.kept),
            "diff": self.diff,
            "files": {
                str(path): "removed" if data is None else "written" for path, data in self.changes.items()
            },
        }


def plan_retirement(report: Report, project: Root) -> Retirement:
    """What retiring the patches of a report would change; nothing is written.

    An overlay stays right for the release that it is pinned to: a patch goes when the pin itself can do
    without it. For a newer release, ``overlay rebase`` moves the pin and leaves it out.

    Args:
        report: of one overlay, judged on its own pin.
        project: the root, a checkout.

    Raises:
        InvalidInput: a patch that stays needs one that goes, or a spec cannot be changed in place.
    """
    subject = report.subject
    retired = {found.patch: found for found in report.evaluations if found.verdict.retirable}
    kept = [f"{j.patch} stays: {j.verdict.why}" for j in report.evaluations if j.verdict.is_text_alone]
    if not retired:
        return Retirement(subject.name, kept=tuple(kept))
    _check_rest(report, retired)
    changes = _changes(report, retired, project)
    diff = "".join(_diff(project.path, path, data) for path, data in changes.items())
    return Retirement(subject.name, tuple(retired), tuple(kept), changes, diff)


def retire(plan: Retirement, project: Root) -> None:
    """Do what a plan says, all of it or nothing.

    Raises:
        InvalidInput: the root cannot be written to.
    """
    if plan.changes:
        project.check_writable()
    write_all(project.path, plan.changes)


def today() -> datetime.date:
    """The date of a change: ``SOURCE_DATE_EPOCH`` where it is set, else now, in UTC."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = (
        datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
        if epoch
        else datetime.datetime.now(datetime.UTC)
    )
    return moment.date()


def with_changelog(text: str, date: datetime.date, line: str) -> str:
    """The changelog with one more line, newest first."""
    body = text.removeprefix(_TITLE).lstrip("\n") if text.startswith(_TITLE) else text
    return f"{_TITLE}\n- {date}: {line}\n{body}"


def retired_patch(patch: Patch, evaluation: Evaluation, date: datetime.date) -> bytes:
    """A patch file with why it went in its header; its diff stays byte for byte.

    Args:
        patch: as it was in the series.
        evaluation: the evidence.
        date: of the retirement.
    """
    lines = [f"Applied-Upstream: {_applied(patch, evaluation)}"]
    lines.append(f"Overlay-Retired: {evaluation.verdict.word} on {evaluation.target} ({date})")
    lines += [
        f"Overlay-Evidence: {kind}: {_ascii(said)}" for kind, said in evidence_rows(evaluation.evidence)
    ]
    lines += [
        f"Overlay-Evidence: contradiction: {_ascii(said)}" for said in evaluation.verdict.contradictions
    ]
    added = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    head, diff = patch.data[: patch.diff_offset], patch.data[patch.diff_offset :]
    rule = re.search(rb"^---[ \t]*$", head, re.MULTILINE)
    if rule is None:
        return head.rstrip(b"\n") + b"\n" + added + b"---\n" + diff
    return head[: rule.start()].rstrip(b"\n") + b"\n" + added + head[rule.start() :] + diff


def _applied(patch: Patch, evaluation: Evaluation) -> str:
    """DEP-3: the version, and the commit or address where they are known."""
    history = evaluation.evidence.history
    release = (history.release if history else None) or evaluation.target
    where = history.pull_request or history.commit if history else None
    if (
        where is None
        and evaluation.verdict.word == "merged"
        and patch.status.word in ("Backport", "Submitted")
    ):
        where = patch.status.reason
    if evaluation.verdict.word == "fixed-by-dependency":
        where = ", ".join(str(d) for d in evaluation.evidence.dependencies if d.changed)
    return f"{release}, {where}" if where else release


def _check_rest(report: Report, retired: Mapping[str, Evaluation]) -> None:
    """The patches that stay must apply without those that go, and lose nothing that they depend on."""
    subject = report.subject
    needless = {name for name, found in retired.items() if found.verdict.word not in TAKEN_BY_UPSTREAM}
    stay = [patch for patch in subject.series.patches if patch.name not in retired]
    if broken := {p.name: lost for p in stay if (lost := sorted(set(p.depends) & needless))}:
        raise InvalidInput(
            "a patch that stays needs one that goes, and that the release does not have",
            where=f"patches/{subject.series.name}",
            found="; ".join(f"{name}: Overlay-Depends: {', '.join(lost)}" for name, lost in broken.items()),
            hint="take the trailer out where the patch works without it",
        )
    rest = Series(subject.series.name, tuple(p for p in subject.series.patches if p.name not in retired))
    tried = try_series(rest, subject.pin.files(rest.paths), drop=subject.drop)
    if tried.failed:
        names = ", ".join(found.patch.name for found in tried.failed)
        raise InvalidInput(
            "a patch that stays does not apply without those that go",
            where=f"patches/{rest.name}",
            found=names,
            hint=f"overlay rebase {subject.name} --onto {subject.release} carries it over",
        )


def _changes(
    report: Report, retired: Mapping[str, Evaluation], project: Root
) -> dict[PurePosixPath, bytes | None]:
    subject, date = report.subject, today()
    directory = PurePosixPath("patches") / subject.series.name
    changes: dict[PurePosixPath, bytes | None] = {}
    for patch in subject.series.patches:
        if patch.name in retired:
            to = PurePosixPath("patches/retired") / subject.series.name / f"{patch.name}.patch"
            changes[to] = retired_patch(patch, retired[patch.name], date)
            changes[directory / f"{patch.name}.patch"] = None
        elif set(patch.depends) & set(retired):
            changes[directory / f"{patch.name}.patch"] = _without_depends(patch, retired)
    listed = read_series_lines(project.path / directory)
    left = [name for name in listed.names if name not in retired]
    changes[directory / "series"] = listed.with_names(left).data()
    log = project.path / CHANGELOG
    text = log.read_text("utf-8") if log.is_file() else ""
    for spec in _users(project, subject.series.name):
        _check_same_pin(spec, report, project)
        edited, version = _edited(spec, project, retired, date)
        changes[PurePosixPath("overlays") / f"{spec.name}.yaml"] = edited
        why = "; ".join(
            f"{name} {j.verdict.word} since {j.evidence.history or j.target}" for name, j in retired.items()
        )
        text = with_changelog(text, date, f"{spec.name} {version}: retired from {subject.series.name}: {why}")
    changes[CHANGELOG] = text.encode()
    return changes


def _users(project: Root, series: str) -> list[Spec]:
    """The overlays that take their patches from a series."""
    specs = (read_spec(project.spec_path(name)) for name in project.names())
    return [spec for spec in specs if spec.patches.series == series]


def _check_same_pin(spec: Spec, report: Report, project: Root) -> None:
    judged = read_spec(project.spec_path(report.subject.name))
    if spec.upstream != judged.upstream:
        raise InvalidInput(
            "another overlay uses the series with another pin",
            where=f"overlays/{spec.name}.yaml",
            expected=f"the pin of {judged.name}, {judged.upstream.release}",
            found=spec.upstream.release,
            hint="give it a series of its own first: overlay rebase",
        )


def _edited(
    spec: Spec, project: Root, retired: Mapping[str, Evaluation], date: datetime.date
) -> tuple[bytes, str]:
    path = project.spec_path(spec.name)
    text = SpecText(path, path.read_bytes().decode("utf-8"))
    for name in retired:
        text.remove_item(("patches", "only"), name)
        text.remove_item(("patches", "except"), name)
    if spec.patches.only and not set(spec.patches.only) - set(retired):
        raise InvalidInput(
            "the overlay would have no patch of its own left",
            where=str(path),
            found=f"patches.only: {', '.join(spec.patches.only)}",
            hint="remove the overlay, or name other patches",
        )
    version = bumped(spec.version)
    text.set(("version",), version)
    text.set(("date",), date.isoformat())
    return text.text.encode(), version


def _without_depends(patch: Patch, retired: Mapping[str, Evaluation]) -> bytes:
    """The patch without its dependence on patches that go."""
    head, diff = patch.data[: patch.diff_offset], patch.data[patch.diff_offset :]
    lines = []
    for line in head.split(b"\n"):
        key, colon, value = line.partition(b":")
        if colon and key.lower() == b"overlay-depends":
            left = [name for name in re.split(r"[,\s]+", value.decode()) if name and name not in retired]
            if not left:
                continue
            line = b"Overlay-Depends: " + ", ".join(left).encode()
        lines.append(line)
    return b"\n".join(lines) + diff


def _diff(root: Path, path: PurePosixPath, data: bytes | None) -> str:
    old = (root / path).read_bytes() if (root / path).is_file() else b""
    left, right = (
        content.decode("utf-8", "replace").splitlines(keepends=True) for content in (old, data or b"")
    )
    names = (f"a/{path}" if old else "/dev/null", "/dev/null" if data is None else f"b/{path}")
    return "".join(difflib.unified_diff(left, right, *names))


def _ascii(text: str) -> str:
    """One line for a trailer."""
    return " ".join(text.split())
