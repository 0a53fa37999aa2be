"""A spec is read whole or refused with the file, the line, the key, and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import InvalidInput
from builder.project.spec import Spec, read_spec

GOOD = """\
name: demo
version: "1"
date: 2026-11-29
summary: a demo
upstream:
  release: v0.5.20
  commit: 94602c9c2b7cbdb8efd5c52802dac6a1c180089e
base:
  image: docker.io/lmsysorg/sglang
patches:
  series: v0.5.20
hardware: ["12.1"]
"""


def _read(directory: Path, text: str) -> Spec:
    path = directory / "demo.yaml"
    path.write_text(text)
    return read_spec(path)


def _refused(directory: Path, text: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        _read(directory, text)
    return caught.value


def test_a_spec_needs_few_keys(tmp_path: Path) -> None:
    spec = _read(tmp_path, GOOD)
    assert spec.base.roots == {"python/sglang": "auto"}
    assert spec.upstream.repository == "https://github.com/sgl-project/sglang"
    assert spec.hardware == ("12.1",)


@pytest.mark.parametrize(
    ("old", "new", "line", "near"),
    [
        ("  series:", "  serie:", 11, "series"),
        ("summary:", "sumary:", 4, "summary"),
        ("  image: docker", "  platfrms: {}\n  image: docker", 9, "platforms"),
    ],
)
def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_known_one(
    tmp_path: Path, old: str, new: str, line: int, near: str
) -> None:
    error = _refused(tmp_path, GOOD.replace(old, new))
    assert f"demo.yaml, line {line}" in str(error.where)
    assert error.hint == f"did you mean {near}?"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: demo", "name: Demo"),
        ("name: demo", "name: ../demo"),
        ('version: "1"', 'version: "1\\nRUN id"'),
        ("summary: a demo", 'summary: "a\\nRUN id"'),
        ("summary: a demo", 'summary: "a\\u2028b"'),
        ("commit: 94602c", "commit: zz602c"),
        ("series: v0.5.20", "series: ../v0.5.20"),
        ("series: v0.5.20", "series: -x"),
        ('["12.1"]', '["121"]'),
        ("  release:", "  repository: ext::sh -c id\n  release:"),
        ("  release:", "  repository: --upload-pack=id\n  release:"),
        ("  release:", "  repository: ftp://example.org/x\n  release:"),
        ("  release:", "  repository: https://token@example.org/x\n  release:"),
        ("  release:", "  repository: ssh://me:secret@example.org/x\n  release:"),
        ("date: 2026-11-29", "date: 1969-12-31"),
        ("  image: docker", "  roots: {python/sglang: relative}\n  image: docker"),
        ("  image: docker", "  roots: {python/sglang: /a/../b}\n  image: docker"),
        ("  image: docker", "  roots: {../sglang: /a}\n  image: docker"),
        ("  image: docker", '  roots: {"python/sg\\nlang": /a}\n  image: docker'),
        ("  image: docker", '  roots: {python/sglang: "/a\\nb"}\n  image: docker'),
        ('["12.1"]', '["१२.1"]'),
        ("patches:", "environment: {A B: c}\npatches:"),
        ("patches:", 'environment: {A: "b\\nc"}\npatches:'),
        ("date: 2026-11-29", "date: yesterday"),
    ],
)
def test_a_value_that_could_mean_something_else_is_refused(tmp_path: Path, old: str, new: str) -> None:
    assert old in GOOD
    assert "demo.yaml, line" in str(_refused(tmp_path, GOOD.replace(old, new)).where)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["12.1"]', "12.1", "a list: [ONE, TWO]"),
        ('"12.1"', '"sm_121"', 'a compute capability, such as "12.1"'),
        ("94602c9c", "94602c", "40 hex digits in lower case"),
        ("name: demo", "name: Demo", "lower-case letters and digits, with . _ - between them"),
        ("  release: v0.5.20", "  release: v0.5 20", "a release, such as v0.5.20"),
        (
            "base:\n  image: docker.io/lmsysorg/sglang",
            "base: lmsysorg/sglang",
            "keys with values: KEY: VALUE",
        ),
    ],
)
def test_what_a_value_should_be_is_said_in_words(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert _refused(tmp_path, GOOD.replace(old, new)).expected == words


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    error = _refused(tmp_path, GOOD + "name: other\n")
    assert (error.what, error.found) == ("key stands twice", "name")


def test_a_key_that_is_no_word_is_refused(tmp_path: Path) -> None:
    assert _refused(tmp_path, GOOD + "? [a]\n: b\n").what == "key is not a word"


def test_a_name_must_be_its_files(tmp_path: Path) -> None:
    error = _refused(tmp_path, GOOD.replace("name: demo", "name: other"))
    assert (error.expected, error.found) == ("demo", "other")


def test_the_wheel_of_another_release_is_refused(tmp_path: Path) -> None:
    pin = "  wheel: {requirement: sglang==0.5.19, sha256: " + "ab" * 32 + "}\nbase:\n"
    error = _refused(tmp_path, GOOD.replace("base:\n", pin))
    assert (error.expected, error.found) == ("sglang==0.5.20", "sglang==0.5.19")
    assert "line 8" in (error.where or "")
    assert _read(tmp_path, GOOD.replace("base:\n", pin.replace("0.5.19", "0.5.20"))).upstream.wheel


def test_a_spec_without_a_pin_is_refused(tmp_path: Path) -> None:
    error = _refused(tmp_path, GOOD.replace("  commit: 94602c9c2b7cbdb8efd5c52802dac6a1c180089e\n", ""))
    assert error.what == "spec pins no source"


def test_aliases_are_refused_before_they_can_grow(tmp_path: Path) -> None:
    width = ", ".join(["*l{}"] * 60)
    lines = [f"l{n}: &l{n} [{width.replace('{}', str(n - 1))}]\n" for n in range(1, 6)]
    nested = "l0: &l0 [x]\n" + "".join(lines)
    error = _refused(tmp_path, GOOD + nested)
    line = GOOD.count("\n") + 2
    assert (error.what, error.where) == (
        "spec refers to another part of itself",
        f"{tmp_path / 'demo.yaml'}, line {line}",
    )


@pytest.mark.parametrize("deep", ["- " * 100_000 + "x", "{a: " * 20 + "x" + "}" * 20])
def test_deep_nesting_is_refused_before_it_is_read(tmp_path: Path, deep: str) -> None:
    assert _refused(tmp_path, GOOD + f"x:\n  {deep}\n").what == "spec is nested too deeply"


def test_a_key_has_one_name(tmp_path: Path) -> None:
    error = _refused(tmp_path, GOOD.replace("  series:", "  leave_out: [a]\n  series:"))
    assert error.what == "unknown key in spec"


def test_numbers_stay_as_they_are_written(tmp_path: Path) -> None:
    spec = _read(tmp_path, GOOD + "environment: {A: 12.10, B: 0x1f, C: 1e3}\narguments: {--tp-size: 2}\n")
    assert spec.environment == {"A": "12.10", "B": "0x1f", "C": "1e3"}
    assert spec.arguments == {"--tp-size": "2"}


def test_what_is_no_yaml_names_the_line(tmp_path: Path) -> None:
    assert str(_refused(tmp_path, GOOD + "x: [\n").where).startswith(str(tmp_path / "demo.yaml, line"))


@pytest.mark.parametrize(
    "address", ["https://me:hunter2@example.org/x", "https://me:hunter2@2@example.org/x"]
)
def test_credentials_of_a_repository_are_refused_and_not_repeated(address: str, tmp_path: Path) -> None:
    error = _refused(tmp_path, GOOD.replace("  release:", f"  repository: {address}\n  release:"))
    assert "no credentials" in str(error.expected)
    assert "hunter2" not in str(error.as_json())
    assert "***@example.org" in str(error.found)


def test_a_user_of_ssh_is_no_secret(tmp_path: Path) -> None:
    spec = _read(tmp_path, GOOD.replace("  release:", "  repository: ssh://git@example.org/x\n  release:"))
    assert spec.upstream.repository == "ssh://git@example.org/x"


def test_an_error_names_keys_and_not_the_kinds_that_were_tried(tmp_path: Path) -> None:
    error = _refused(tmp_path, GOOD + "arguments: {--speculate: false}\n")
    assert str(error.where).endswith("line 13: arguments.--speculate")
    assert "function" not in str(error.as_json())
