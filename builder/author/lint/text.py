"""Rules for one patch file by itself: its bytes, its mail, its trailers, the lines it adds."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from difflib import get_close_matches
from urllib.parse import urlsplit

from builder.author.lint.finding import Finding
from builder.errors import InvalidInput
from builder.patch.message import Head, raw_date, read_head, split_author
from builder.patch.patch import FEATURES, FLAWS, parse_patch, read_status, read_suppressions
from builder.patch.repair import added_lines, diff_start, put_back_blanks, recount, repair_text, split
from builder.project.requirements import parse_requirements

MAX_BYTES = 64 << 10
MAX_CHANGED = 600
MAX_TRAILERS = 100
TODO = b"TODO"

# Trailer -> whether it may stand more than once.
TRAILERS = {
    "Upstream-Status": False, "Bug": True, "Origin": False, "Forwarded": False, "Applied-Upstream": False,
    "Last-Update": False, "Overlay-Hardware": False, "Overlay-Depends": False, "Overlay-Drop-After": False,
    "Overlay-Import": True, "Overlay-Allow": True, "Overlay-Requires": True, "Overlay-Probe": False,
    "Overlay-Provides": True,
    "Overlay-Retired": False, "Overlay-Evidence": True, "Signed-off-by": True, "Co-authored-by": True,
    "Reported-by": True,
    "Reviewed-by": True, "Tested-by": True, "Acked-by": True, "Suggested-by": True, "Fixes": True,
    "Link": True, "Cc": True, "Change-Id": False,
}  # fmt: skip
_NEEDS_URL = ("Submitted", "Denied")
_MARKERS = re.compile(rb"(<{7}|>{7}|\|{7}) |={7}\Z")
_PRINT = re.compile(rb"\s*(print\(|breakpoint\(\)|import i?pdb\b|i?pdb\.set_trace\()")
_SLEEP = re.compile(rb"\s*(await )?(time|asyncio)\.sleep\(")
_CAPABILITY = re.compile(r"\d{1,2}\.\d\Z")
_RELEASE = re.compile(r"v\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?\Z")


def lint_patch(name: str, file: str, data: bytes) -> Iterator[Finding]:
    """Every rule that one patch file can break by itself.

    Args:
        name: the patch's name.
        file: how its file is called in findings.
        data: its bytes.
    """
    repaired, repairs = repair_text(data)
    whole, lost = put_back_blanks(repaired)
    counted, miscounts = recount(whole)
    for repair in repairs:
        yield Finding(
            repair.rule,
            file,
            repair.line,
            repair.what,
            repair.expected,
            repair.found,
            "overlay patch lint --fix",
        )
    for repair in (*lost, *miscounts):
        series = file.split("/")[-2] if "/" in file else ""
        yield Finding(
            repair.rule, file, repair.line, repair.what, repair.expected, repair.found,
            f"overlay patch refresh {series} {name}",
        )  # fmt: skip
    lines = split(counted)
    start = diff_start(lines)
    head = read_head(b"".join(lines[:start]))
    found = [*_size(file, lines, len(data)), *_mail(file, head), *_trailers(file, head, lines[:start])]
    yield from found
    yield from _added(file, lines)
    if not any(finding.rule == "status" for finding in found):
        try:
            parse_patch(name, counted)
        except InvalidInput as error:
            yield _unreadable(file, error)


def _unreadable(file: str, error: InvalidInput) -> Finding:
    line = error.facts.get("line")
    return Finding(
        "hunk-counts" if "hunk" in error.facts else "readable",
        file,
        line if isinstance(line, int) else None,
        error.what,
        error.expected or "",
        error.found or "",
        error.hint or "",
    )


def _size(file: str, lines: list[bytes], size: int) -> Iterator[Finding]:
    start = diff_start(lines)
    changed = sum(line[:1] in (b"+", b"-") and line[:4] not in (b"+++ ", b"--- ") for line in lines[start:])
    if size > MAX_BYTES or changed > MAX_CHANGED:
        yield Finding(
            "size", file, None, "patch is too large to be reviewed and carried",
            f"at most {MAX_BYTES} bytes and {MAX_CHANGED} changed lines", f"{size} bytes, {changed} lines",
        )  # fmt: skip


def _mail(file: str, head: Head) -> Iterator[Finding]:
    for field, value in (("From", head.author), ("Date", head.date), ("Subject", head.subject)):
        if not value:
            yield Finding("mail-head", file, 1, f"mail has no {field}", f"a line {field}: …")
    try:
        if head.author:
            split_author(head.author)
        if head.date:
            raw_date(head.date)
    except InvalidInput as error:
        yield Finding("mail-head", file, 1, error.what, error.expected or "", error.found or "")
    if TODO in head.subject or re.search(rb"\bTODO\b", head.text):
        yield Finding("placeholder", file, 1, "the skeleton's TODO is still there", "what was done and why")


def _trailers(file: str, head: Head, lines: list[bytes]) -> Iterator[Finding]:
    pairs = head.trailers()
    if len(pairs) > MAX_TRAILERS:
        yield Finding("size", file, None, "patch has too many trailers", str(MAX_TRAILERS), str(len(pairs)))
        pairs = pairs[:MAX_TRAILERS]
    keys = [key for key, _ in pairs]
    if "Upstream-Status" not in keys:
        yield Finding(
            "status", file, None, "patch has no Upstream-Status", "such as Upstream-Status: Pending",
            ", ".join(keys) or "no trailers in the last paragraph of the message",
        )  # fmt: skip
    for number, (key, value) in enumerate(pairs):
        line = _line_of(lines, key, keys[:number].count(key))
        if key not in TRAILERS:
            near = get_close_matches(key, TRAILERS, n=1)
            hint = f"{near[0]}, perhaps" if near else "one of overlay help formats"
            yield Finding("trailer", file, line, "trailer is not known", hint, key)
        elif not TRAILERS[key] and key in keys[:number]:
            yield Finding("trailer", file, line, "trailer stands twice", "one", f"{key}: {value}")
        yield from _value(file, line, key, value)


def _value(file: str, line: int | None, key: str, value: str) -> Iterator[Finding]:
    if key == "Upstream-Status":
        yield from _status(file, line, value)
    elif key in ("Bug", "Applied-Upstream", "Origin") and not _names_url(key, value):
        yield Finding("url", file, line, f"{key} names no real URL", "https://HOST/PATH", value)
    elif key == "Forwarded" and value not in ("no", "not-needed", "yes") and not is_url(value):
        yield Finding("url", file, line, "Forwarded is none of its words", "a URL, no or not-needed", value)
    elif key == "Last-Update" and not _is_day(value):
        yield Finding("date", file, line, "Last-Update is not a day that has been", "YYYY-MM-DD", value)
    elif key == "Overlay-Hardware" and not all(map(_CAPABILITY.match, value.split() or [""])):
        yield Finding(
            "hardware", file, line, "not a list of compute capabilities", "such as 12.0 12.1", value
        )
    elif key == "Overlay-Requires":
        yield from _requires(file, line, value)
    elif key == "Overlay-Allow" and not _allows(value):
        what = "Overlay-Allow does not say what is allowed, and why"
        yield Finding(
            "trailer", file, line, what, f"KIND NAME [reason], KIND one of {', '.join(FLAWS)}", value
        )
    elif key == "Overlay-Provides" and value not in FEATURES:
        yield Finding(
            "trailer", file, line, "Overlay-Provides is none of its words", ", ".join(FEATURES), value
        )
    elif key == "Overlay-Drop-After" and not _RELEASE.match(value):
        yield Finding("drop-after", file, line, "not a release", "such as v0.5.20", value)


def _requires(file: str, line: int | None, value: str) -> Iterator[Finding]:
    try:
        parse_requirements(value, where=file)
    except InvalidInput as error:
        yield Finding("requires", file, line, error.what, error.expected or "", error.found or "")


def _allows(value: str) -> bool:
    return any(kind in FLAWS for kind, _ in read_suppressions([value]))


def _status(file: str, line: int | None, value: str) -> Iterator[Finding]:
    try:
        status = read_status(value, where=file)
    except InvalidInput as error:
        yield Finding("status", file, line, error.what, error.hint or error.expected or "", value)
        return
    reason = status.reason or ""
    if status.word in _NEEDS_URL and not is_url(reason):
        yield Finding(
            "status", file, line, f"{status.word} needs the URL", f"{status.word} [https://…]", value
        )
    elif status.word == "Backport" and not (is_url(reason) or re.match(r"[0-9a-f]{12,40}\b", reason)):
        yield Finding("status", file, line, "Backport needs a URL or commit", "Backport [https://…]", value)
    elif status.word in ("Inappropriate", "Inactive-Upstream") and not reason:
        yield Finding("status", file, line, f"{status.word} needs a reason", f"{status.word} [why]", value)


def is_url(text: str) -> bool:
    """Whether a text is an https (or http) URL that names more than a host."""
    if any(char.isspace() for char in text):
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    host = parts.hostname or ""
    return parts.scheme in ("https", "http") and "." in host and len(parts.path) > 1


def _names_url(key: str, value: str) -> bool:
    """DEP-3: Origin is ``upstream, URL`` or the like; Applied-Upstream ``VERSION, URL`` or a commit."""
    last = value.rpartition(",")[2].strip()
    if key != "Bug" and re.match(r"(commit:)?[0-9a-f]{7,40}\Z", last):
        return True
    return is_url(last if key != "Bug" else value)


def _is_day(value: str) -> bool:
    try:
        day = datetime.date.fromisoformat(value)
    except ValueError:
        return False
    # A day of grace: somewhere it is tomorrow already.
    today = datetime.datetime.now(datetime.UTC).date()
    return len(value) == 10 and day <= today + datetime.timedelta(days=1)


def _line_of(lines: list[bytes], key: str, skip: int) -> int | None:
    prefix = key.encode() + b":"
    numbers = [number for number, line in enumerate(lines, 1) if line.startswith(prefix)]
    return numbers[skip] if skip < len(numbers) else None


def _added(file: str, lines: list[bytes]) -> Iterator[Finding]:
    for number, path, text in added_lines(lines):
        if _MARKERS.match(text):
            yield Finding(
                "conflict-marker", file, number, "added line is a conflict marker", found=_shown(text)
            )
        if not path.endswith((b".py", b".pyi")):
            continue
        if _PRINT.match(text):
            yield Finding("added-print", file, number, "added line prints", "logger", _shown(text))
        if _SLEEP.match(text):
            yield Finding(
                "added-sleep", file, number, "added line sleeps", "waiting for an event", _shown(text)
            )


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace").strip()[:80]
