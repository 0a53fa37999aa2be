"""A template renders to what both engines read alike, and no value leaves its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.dockerfile import parse_dockerfile
from builder.errors import InvalidInput
from builder.template import quoted, render_template

_ONE_LINE = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=60)


def _render(directory: Path, text: str, **values: object) -> str:
    path = directory / "Dockerfile.in"
    path.write_text(text)
    return render_template(path, values)


@given(_ONE_LINE)
def test_any_one_line_value_survives_quoting(value: str) -> None:
    recipe = parse_dockerfile(f"FROM x@sha256:0\nENV A={quoted(value)}\nLABEL b={quoted(value)}\n")
    assert recipe.environment == {"A": value}
    assert recipe.labels == {"b": value}


@pytest.mark.parametrize("value", ["a\nRUN id", "a\r\nRUN id", "a\x85b", "a\u2028b", "\x00", "a\\\nb"])
def test_a_value_with_a_line_break_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        _render(tmp_path, "FROM x\nLABEL a={{ value }}\n", value=value)
    assert str(caught.value.where).endswith("Dockerfile.in, line 2")


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ value.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ self._TemplateReference__context }}",
        "{{ cycler.__init__ }}",
        "{{ lipsum() }}",
        "{{ range(10) }}",
        "{% set _ = value.append(1) %}",
        "{{ 'a' * 999999999 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'a'.center(999999999) }}",
        "{{ '{:999999999}'.format(1) }}",
    ],
)
def test_the_sandbox_holds(tmp_path: Path, attack: str) -> None:
    with pytest.raises(InvalidInput):
        _render(tmp_path, attack, value=[1])


def test_a_template_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile.in"
    path.write_bytes(b"FROM x\n# \xff\n")
    with pytest.raises(InvalidInput, match="not UTF-8") as caught:
        render_template(path, {})
    assert str(caught.value.where).endswith("line 2")


def test_an_undefined_name_is_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        _render(tmp_path, "FROM x\n\nLABEL a={{ base.tag }}\n", base={})
    assert str(caught.value.where).endswith("line 3")
    assert "tag" in str(caught.value.found)


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("RUN true", 2),
        ("FROM y", 2),
        ("COPY a /b", 2),
        ('COPY --chmod=755 ["a", "/b"]', 2),
        ('COPY --from=x ["a", "/b"]', 2),
        ("ENV A=$PATH", 2),
        ('ENV A="$PATH"', 2),
        ("ENV A b", 2),
        ("USER root", 2),
        ("\n# note\nWORKDIR /", 4),
    ],
)
def test_what_only_an_engine_can_do_is_named_with_its_line(line: str, number: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_dockerfile(f"FROM x@sha256:0\n{line}\n")
    assert caught.value.where == f"Dockerfile, line {number}"
    assert "--engine docker" in str(caught.value.hint)


def test_copy_reads_owner_sources_and_destination() -> None:
    recipe = parse_dockerfile('FROM x@sha256:0\nCOPY --chown=1000:50 ["a b", "c", "/d e/"]\n')
    (copy,) = recipe.copies
    assert (copy.sources, copy.destination, copy.uid, copy.gid) == (("a b", "c"), "/d e/", 1000, 50)


def test_a_continued_line_is_one_instruction() -> None:
    recipe = parse_dockerfile('FROM x@sha256:0\nLABEL a="1" \\\n  b="2"\n')
    assert recipe.labels == {"a": "1", "b": "2"}
