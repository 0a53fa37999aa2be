"""What lint finds, and the rules it knows (docs/formats.md lists the same)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

# id -> what must hold. The order is the one of docs/formats.md.
RULES = {
    "readable": "The patch can be read: a mail, a diff, paths inside the tree.",
    "mail-head": "From, Date and Subject are there and of their form.",
    "placeholder": "No TODO of a skeleton is left in the message, or in a spec's summary.",
    "line-endings": "The patch's own lines end in LF.",
    "last-newline": "The file ends with a newline.",
    "blank-context": "A blank context line is one space, not nothing.",
    "blank-line": "No blank line stands between or behind the hunks.",
    "hunk-counts": "A hunk has as many lines as its header counts.",
    "size": "At most 64 KiB and 600 changed lines a patch.",
    "status": "Upstream-Status is there once, of the vocabulary, with the reason its word asks for.",
    "trailer": "Trailers are known, and stand once where one is meant.",
    "url": "Bug, Origin and Applied-Upstream name https URLs with a path; Forwarded a URL, no or not-needed.",
    "date": "Last-Update is a day that has been: YYYY-MM-DD.",
    "hardware": "Overlay-Hardware lists compute capabilities, such as 12.0 12.1, and all of each overlay's.",
    "requires": "Overlay-Requires names distributions, or cuda, with versions (PEP 440).",
    "drop-after": "Overlay-Drop-After names a release.",
    "conflict-marker": "No added line is a conflict marker.",
    "added-print": "No added line of Python prints or stops in a debugger.",
    "added-sleep": "No added line of Python sleeps.",
    "added-import": "An added import is of the standard library, SGLang, or what the touched files import.",
    "series-file": "The series file can be read, names each patch once as NAME.patch, and each has its file.",
    "depends": "Overlay-Depends names patches of the series that come before, without a circle.",
    "unused-patch": "Every patch file is in its series, and every series in an overlay.",
    "unused-probe": "Every probe belongs to a patch of its name.",
    "probe-lists": "The lists of mutants and variants beside a probe can be read.",
    "overlay": "A spec's only and except name patches of its series.",
    "applies": "The series applies to its pinned release.",
    "blob-ids": "Index lines name the release's blobs: the pre-image and what the patch makes of it.",
    "canonical": "The patch is what overlay patch export writes.",
    "compiles": "Every Python file compiles after every patch of the series.",
    "undefined-name": "No patch leaves a name that nothing defines.",
    "unresolved-import": "No patch leaves an import from within the tree that finds nothing.",
    "missing-attribute": "No patch takes by a dot what a module of the tree does not have.",
    "data-file": "JSON, TOML and YAML files that parsed before a patch still parse.",
    "mutants": "No mutant of the patched source is called fixed by its probe, and every list's edit fits.",
    "variants": "Of a patched source in other words, a probe calls 90 % fixed and none defect or absent.",
    "allowance": "What a series is excused from was found, and is a rule.",
}
# Those that can only be judged with the release's sources.
RELEASE_RULES = frozenset(
    {
        "applies",
        "blob-ids",
        "canonical",
        "compiles",
        "undefined-name",
        "unresolved-import",
        "missing-attribute",
        "data-file",
        "added-import",
    }
)
# Those that are judged by running the probes many times, when that is asked for.
PROBE_RULES = frozenset({"mutants", "variants"})


@dataclass(frozen=True)
class Finding:
    """One place where a rule does not hold.

    Args:
        rule: a key of :data:`RULES`.
        file: the file, relative to the root.
        line: its line, from 1; None where the whole file is meant.
        what: one sentence.
        expected, found: where that is a matter of two values.
        repair: the command that repairs it; empty where only a person can.
    """

    rule: str
    file: str
    line: int | None
    what: str
    expected: str = ""
    found: str = ""
    repair: str = ""

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}" if self.line else self.file
        return f"{at}: {self.rule}: {self.what}"

    @property
    def by_export(self) -> bool:
        """Whether ``overlay patch export`` repairs it."""
        return self.rule in ("blob-ids", "canonical")

    def as_json(self) -> dict[str, object]:
        facts = asdict(self)
        facts["mend"] = facts.pop("repair")
        return {key: value for key, value in facts.items() if value not in ("", None)}
