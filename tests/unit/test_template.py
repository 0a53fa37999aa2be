"""A template renders to what both engines read alike, and no value leaves its line."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.build.dockerfile import parse_dockerfile
from builder.build.template import quoted, render_template
from builder.errors import InvalidInput

_ONE_LINE = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=60)


def _render(directory: Path, text: str, /, **values: object) -> str:
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
        "{{ '{x:999999999}'.format_map({'x': 1}) }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ value | map('upper') }}",
        "{{ 'a' ~ 'b' }}",
        "{% set x = 'a' %}",
        "{% set x %}a{% endset %}",
        "{% macro m() %}{% endmacro %}",
        "{% filter quoted %}a{% endfilter %}",
        "{% with x = 1 %}{% endwith %}",
        "{% for a in value recursive %}{{ loop(value) }}{% endfor %}",
        "{{ (1).to_bytes(300000000, 'big') | length }}",
        "{{ table.fromkeys(value, 'x') }}",
        "{{ value.copy() }}",
        "{{ loop }}",
        "{% for a in value %}{{ loop }}{% endfor %}",
        "{% for a in value %}{{ loop.cycle('a') }}{% endfor %}",
        "{{ text.upper }}",
        "{{ 1 | replace('a', 'b') }}",
        "{{ ['a'] | replace('a', 'b') }}",
        "{{ ['a', 'b'] | join(1) }}",
        "{{ text | join }}",
        "{{ table.values() }}",
        "{{ '\\ud800' }}",
        "{{ 'RUN true \\\\' }}",
        "{{ value.__len__() }}",
        "{{ text.zfill(999999999) }}",
        "{{ text.encode() }}",
        "{{ value(*value) }}",
    ],
)
def test_the_sandbox_holds(tmp_path: Path, attack: str) -> None:
    with pytest.raises(InvalidInput, match=r"template (is not valid|cannot be rendered)") as caught:
        _render(tmp_path, attack, value=[1], text="a", table={"a": 1})
    assert "line 1" in str(caught.value.where)
    assert "expected token" not in str(caught.value.found), "this is not a template, and shows nothing"


def nested(expression: str, times: int) -> str:
    """``expression`` with itself in the place of ``@``, so often."""
    text = "text"
    for _ in range(times):
        text = expression.replace("@", text)
    return "{{ " + text + " }}"


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(nested("(@) | replace('a', 'aa')", 60), id="replace that doubles"),
        pytest.param(nested("['', '', ''] | join(@)", 60), id="join that doubles"),
        pytest.param(nested("(@ + '\"') | quoted", 60), id="quotes that double"),
        pytest.param(nested("(@) | json", 60), id="escapes that double"),
        pytest.param("{{ large" + " + large" * 5000 + " }}", id="a long sum"),
        pytest.param("{{ [" + "large, " * 5000 + "] }}", id="a long list"),
        pytest.param("{{ [" + "large, " * 5000 + "] | json }}", id="a long list as JSON"),
        pytest.param("{{ [" + "large, " * 5000 + "] | join }}", id="a long list joined"),
        pytest.param("{{ large }}" * 5000, id="much output"),
        pytest.param("{% for a in many %}{% for b in many %}{{ large }}{% endfor %}{% endfor %}", id="loops"),
        pytest.param("{% for a in large %}{% for b in large %}{% endfor %}{% endfor %}", id="characters"),
        pytest.param("{% for a in many %}{% for b in many %}{% endfor %}{% endfor %}", id="many turns"),
        pytest.param("{% for a in many %}{% for b in many %}{% endfor %}{% endfor %}" * 100, id="many loops"),
        pytest.param("{% for a in many %}" + "{% if a %}{% endif %}" * 500 + "{% endfor %}", id="long loop"),
        pytest.param("{{ large.split('a') | sort | length }}" * 20, id="splits"),
        pytest.param("{% for a in many %}{% if large.upper() %}{% endif %}{% endfor %}", id="methods"),
        pytest.param("{% for a in many %}{% if large | quoted %}{% endif %}{% endfor %}", id="filters"),
        pytest.param("{% for a in many %}{% if large + large %}{% endif %}{% endfor %}", id="sums"),
        pytest.param("{% for a in many if large | replace('b', 'c') %}{% endfor %}", id="conditions"),
    ],
)
def test_no_template_makes_much_of_little(tmp_path: Path, attack: str) -> None:
    """Ends at once, in little memory: the limit here would not hold a hundredth of what was asked for."""
    values = {"text": "a", "large": "a" * 1_000_000, "many": ["x"] * 4000}
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="template"):
            _render(tmp_path, attack, **values)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("{% if 'x' in names and not none %}yes{% else %}no{% endif %}", "yes"),
        ("{{ names | join(' ') }}", "x y"),
        ("{{ patches | join(' ', attribute='name') }}", "p q"),
        ("{{ text.upper() + '!' }}", "LONG!"),
        ("{{ text | replace('o', '0') }}", "l0ng"),
        ("{{ names[0] if names | length > 1 else '' }}", "x"),
        ("{{ text[1:3] }}", "on"),
        ("{% for key, value in table.items() %}{{ key }}={{ value }};{% endfor %}", "a=1;b=2;"),
        ("{{ (names + [text]) | json }}", '["x", "y", "long"]'),
        ("{% for a in names %}{% for b in names if b != a %}{{ b }}{% endfor %}{% endfor %}", "yx"),
        ("{% for a in names %}{{ loop.index }}{{ ', ' if not loop.last else '' }}{% endfor %}", "1, 2"),
        ("{{ none is none }}", "True"),
        ("{{ names[-1] }}", "y"),
        ("{{ (names + ['B', 'a']) | sort | join }}", "aBxy"),
        ("{{ patches | sort(reverse=true, attribute='name') | join(attribute='name') }}", "qp"),
        ("{{ none | default('x', true) }}", "x"),
    ],
)
def test_what_a_template_may_use(tmp_path: Path, text: str, rendered: str) -> None:
    values = {"names": ["x", "y"], "patches": [{"name": "p"}, {"name": "q"}], "text": "long"}
    assert _render(tmp_path, text, **values, table={"a": 1, "b": 2}) == rendered


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
