"""What a plan puts into an image for what a series does to the files of a base."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from builder.base.image import Base, BaseFiles, look_up_base_files, resolve_bases
from builder.build.plan import Plan, expected_settings, make_plan
from builder.errors import InvalidInput
from builder.oci.layout import Layout as ReadLayout
from builder.oci.reference import LayoutReference
from builder.patch.apply import AppliedSeries, try_series
from builder.patch.patch import parse_patch
from builder.patch.series import Series
from builder.project.spec import Spec
from builder.source.files import SourceFile
from tests.conftest import ROOT
from tests.projects.image import SYSTEM, TREE, Layout, layer

ONE, TWO, SHELL = "python/sglang/one.py", "python/sglang/two.py", "python/sglang/run.sh"
SOURCES = {
    ONE: SourceFile("100644", b"one\n"),
    TWO: SourceFile("100644", b"two\n"),
    SHELL: SourceFile("100755", b"#!/bin/sh\n"),
}
FILES = {
    f"{TREE}/sglang/one.py": b"one\n",
    f"{TREE}/sglang/two.py": b"two\n",
    f"{TREE}/sglang/run.sh": b"#!/bin/sh\n",
    f"{TREE}/sglang/__pycache__/one.cpython-312.pyc": b"old",
}
HEAD = "From: A <a@example.org>\nSubject: x\n\nUpstream-Status: Pending\n---\n\n"


def changed(path: str, old: str, new: str) -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{old}\n+{new}\n"


def created(path: str, mode: str = "100644") -> str:
    return (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
        "@@ -0,0 +1 @@\n+new\n"
    )


def deleted(path: str, old: str) -> str:
    return (
        f"diff --git a/{path} b/{path}\ndeleted file mode 100644\n--- a/{path}\n+++ /dev/null\n"
        f"@@ -1 +0,0 @@\n-{old}\n"
    )


def moved_mode(path: str, old: str, new: str) -> str:
    return f"diff --git a/{path} b/{path}\nold mode {old}\nnew mode {new}\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    layout = Layout.create(tmp_path_factory.mktemp("plan") / "base")
    layout.put_image([layer(SYSTEM), layer(FILES)])
    location = LayoutReference(layout.path, digest=layout.entry())
    spec = a_spec().base
    (found,) = resolve_bases(location, ReadLayout(layout.path), spec, [])
    return found


def a_spec() -> Spec:
    return Spec.model_validate(
        {
            "name": "demo",
            "version": "7",
            "summary": "a demo",
            "date": datetime.date(2026, 1, 31),
            "upstream": {"repository": "https://example.org/x", "release": "v1", "commit": "a" * 40},
            "base": {"image": "registry.example/x"},
            "patches": {"series": "one"},
            "environment": {"SGLANG_X": "1"},
            "hardware": ["12.1"],
        }
    )


def applied_of(*diffs: str, drop: Sequence[str] = ()) -> AppliedSeries:
    patches = [parse_patch(f"p{n}", (HEAD + diff).encode()) for n, diff in enumerate(diffs)]
    tried = try_series(Series("one", tuple(patches)), SOURCES, drop=drop)
    assert not tried.failed
    ids = {patch.name: "f" * 40 for patch in patches}
    return AppliedSeries(tried.series, tried.reports, tried.before, tried.after, "1" * 40, "2" * 40, ids)


def plan(
    base: Base,
    directory: Path,
    *diffs: str,
    drop: Sequence[str] = (),
    template: Path = ROOT / "Dockerfile.in",
) -> Plan:
    spec, applied = a_spec(), applied_of(*diffs, drop=drop)
    settings = expected_settings(spec, applied, base, template)
    facts: BaseFiles = look_up_base_files(
        base,
        sorted(applied.before),
        known=None,
        cache=directory,
        roots=spec.base.roots,
        progress=lambda *_: lambda _: None,
        settings=settings,
    )
    return make_plan(
        spec,
        applied,
        base,
        facts,
        template=template,
        probes={report.patch.name: "defect->fixed" for report in applied.reports},
        requirements=[],
        settings=settings,
        created=1_700_000_000,
    )


@pytest.mark.parametrize(
    ("diffs", "files", "removed"),
    [
        ([changed(ONE, "one", "1")], {"one.py": (b"1\n", 0o644)}, []),
        ([changed(SHELL, "#!/bin/sh", "#!/bin/dash")], {"run.sh": (b"#!/bin/dash\n", 0o644)}, []),
        ([created("python/sglang/new.py")], {"new.py": (b"new\n", 0o644)}, []),
        ([created("python/sglang/new.sh", "100755")], {"new.sh": (b"new\n", 0o755)}, []),
        ([moved_mode(ONE, "100644", "100755")], {"one.py": (b"one\n", 0o755)}, []),
        ([deleted(TWO, "two")], {}, ["two.py"]),
        # Only what is left at the end counts.
        ([changed(ONE, "one", "1"), changed(ONE, "1", "one"), changed(TWO, "two", "2")],
         {"two.py": (b"2\n", 0o644)}, []),
        ([created("python/sglang/new.py"), deleted("python/sglang/new.py", "new"), changed(TWO, "two", "2")],
         {"two.py": (b"2\n", 0o644)}, []),
    ],
)  # fmt: skip
def test_what_goes_in_and_what_goes_out(
    base: Base, tmp_path: Path, diffs: list[str], files: dict[str, tuple[bytes, int]], removed: list[str]
) -> None:
    made = plan(base, tmp_path, *diffs)
    sources = {
        file.image_path.removeprefix(f"{TREE}/sglang/"): (file.data, file.mode)
        for file in made.files
        if file.image_path.startswith(TREE) and not file.image_path.endswith(".pyc")
    }
    assert sources == files
    assert made.removed == tuple(f"{TREE}/sglang/{name}" for name in removed)
    assert [file.image_path for file in made.files] == sorted(file.image_path for file in made.files)
    for file in made.files:
        assert file.context == f"files/{file.image_path}"
        assert file.context in made.dockerfile


def test_bytecode_of_what_changes_is_emptied_and_the_rest_left(base: Base, tmp_path: Path) -> None:
    pyc = f"{TREE}/sglang/__pycache__/one.cpython-312.pyc"
    made = {file.image_path: file.data for file in plan(base, tmp_path, changed(ONE, "one", "1")).files}
    assert made[pyc] == b""
    other = plan(base, tmp_path, changed(TWO, "two", "2"))
    assert pyc not in {file.image_path for file in other.files}


def test_the_manifest_goes_in_and_says_what_was_done(base: Base, tmp_path: Path) -> None:
    diffs = [changed(ONE, "one", "1"), changed(TWO, "two", "2") + created("test/x.py"), created("docs/x")]
    made = plan(base, tmp_path, *diffs, drop=["test/*", "docs/*"])
    (record,) = [file for file in made.files if file.image_path.endswith("manifest.json")]
    assert (record.data, record.mode, record.uid) == (made.manifest.as_bytes(), 0o644, 0)
    said = json.loads(record.data)
    assert [patch["name"] for patch in said["patches"]] == [r.patch.name for r in applied_of(*diffs).reports]
    assert said["patches"][1]["dropped"] == [{"path": "test/x.py", "rule": "test/*"}]
    assert said["base"]["digest"] == base.manifest.digest
    assert (said["overlay"]["version"], said["upstream"]["commit"]) == ("7", "a" * 40)
    assert said["hardware"] == ["12.1"]
    assert (said["upstream"]["tree"], said["patched_tree"]) == ("1" * 40, "2" * 40)


def test_labels_lead_to_all_of_it(base: Base, tmp_path: Path) -> None:
    made = plan(base, tmp_path, changed(ONE, "one", "1"))
    assert made.labels["org.opencontainers.image.base.digest"] == base.manifest.digest
    assert made.labels["org.opencontainers.image.version"] == "v1-demo-7"
    assert made.labels["dev.sglang-overlay.name"] == "demo"
    assert made.labels["org.opencontainers.image.created"] == "2023-11-14T22:13:20Z"
    for name, value in made.labels.items():
        assert name in made.dockerfile
        assert value
    other = plan(base, tmp_path, changed(ONE, "one", "2"))
    assert {key for key in made.labels if made.labels[key] != other.labels[key]} >= {
        "dev.sglang-overlay.patchset",
        "dev.sglang-overlay.inputs",
    }


def test_the_same_inputs_make_the_same_plan(base: Base, tmp_path: Path) -> None:
    assert plan(base, tmp_path, changed(ONE, "one", "1")) == plan(base, tmp_path, changed(ONE, "one", "1"))


def test_a_template_that_sets_something_else_than_it_was_looked_up_for_is_refused(
    base: Base, tmp_path: Path
) -> None:
    text = (ROOT / "Dockerfile.in").read_text()
    more = "{% if labels['dev.sglang-overlay.name'] %}ENV PYTHONPATH=/x\n{% endif %}"
    (tmp_path / "Dockerfile.in").write_text(text + "\n" + more)
    with pytest.raises(InvalidInput):
        plan(base, tmp_path, changed(ONE, "one", "1"), template=tmp_path / "Dockerfile.in")
