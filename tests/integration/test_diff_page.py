"""The page of ``overlay diff --html`` in a real browser: width, keyboard, names, contrast."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.patch.patch import parse_patch
from builder.patch.series import Series
from builder.probe.harness import Answer
from builder.retire.evaluate import Evaluation, Report, Subject
from builder.retire.evidence import Behaviour, Dependency, Evidence, History, HunkEvidence, TextEvidence
from builder.retire.page import render_page
from builder.retire.verdict import MEANINGS, Verdict, Word
from builder.source.git import GitStore
from builder.source.revision import Target
from builder.source.upstream import Mount, Upstream
from tests.integration.browser import Browser, browser
from tests.projects.history import mail

pytestmark = pytest.mark.integration

HOSTILE = "<script>document.title='broken'</script>"
DIFF = b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"


def large_report() -> Report:
    """8 releases and 12 patches, with every verdict and the longest names."""
    names = [f"sm12x-some-quite-long-patch-name-{number}" for number in range(12)]
    patches = tuple(parse_patch(name, mail(f"fix {HOSTILE}", DIFF)) for name in names)
    upstream = Upstream("v0.5.20", "wheel", (Mount("", GitStore(Path("none")), "0" * 40),))
    targets = tuple(Target(f"v0.5.{number}", upstream) for number in range(21, 29))
    words = itertools.cycle(MEANINGS)
    evaluations = [
        _judgement(name, target.name, next(words)) for name, target in itertools.product(names, targets)
    ]
    subject = Subject("demo", "1", "v0.5.20", None, upstream, Series("v0.5.20", patches))
    return Report(subject, targets, tuple(evaluations))


def _judgement(patch: str, target: str, word: Word) -> Evaluation:
    hunk = HunkEvidence(
        "python/sglang/" + "long/" * 20 + "f.py", 1, "conflict", details=f"- a {HOSTILE}\n+ b"
    )
    answer = Answer("fixed", f"says {HOSTILE}", ("flashinfer-python",))
    evidence = Evidence(
        TextEvidence("conflict", (hunk,), {"python/sglang/a.py": "python/sglang/b.py"}),
        Behaviour(answer, answer, None),
        (Dependency("flashinfer-python", "==0.6.17", "==0.6.18", "python/pyproject.toml"),),
        History("bisection", target, "0" * 40, "repair it (#1)", "#1", 10),
    )
    against = ("text says conflict, but the probe says fixed",) if word == "merged" else ()
    return Evaluation(patch, target, Verdict(word, f"because of {HOSTILE}", against), evidence)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    directory = tmp_path_factory.mktemp("page")
    (directory / "page.html").write_text(render_page([large_report()]), "utf-8")
    with browser(directory / "profile") as window:
        window.open(directory / "page.html")
        yield window


def test_eight_releases_and_twelve_patches_fit_1280_pixels(page: Browser) -> None:
    width, cells, right = page.run(
        "const cells = [...document.querySelectorAll('button.cell')];"
        "return [document.documentElement.scrollWidth, cells.length,"
        " Math.max(...cells.map(cell => cell.getBoundingClientRect().right))]"
    )
    assert (width <= 1280, cells, right <= 1280) == (True, 96, True)
    clipped = page.run(
        "return [...document.querySelectorAll('button.cell, th')]"
        ".filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.textContent)"
    )
    assert clipped == []


def test_nothing_comes_from_elsewhere_and_nothing_breaks_out(page: Browser) -> None:
    assert page.run("return performance.getEntriesByType('resource').map(entry => entry.name)") == []
    assert page.run("return document.title") == "overlay diff: demo"
    assert page.run("return document.querySelectorAll('script').length") == 1


def test_everything_has_a_name_and_a_role(page: Browser) -> None:
    nameless = page.run(
        "const ids = [...document.querySelectorAll('[id]')].map(e => e.id);"
        "return [...document.querySelectorAll('button.cell')].filter(cell =>"
        " !cell.getAttribute('aria-label') || !ids.includes(cell.getAttribute('aria-controls'))).length"
    )
    assert nameless == 0
    assert page.run("return document.documentElement.lang") == "en"
    assert page.run("return document.querySelectorAll('main h1').length") == 1
    assert page.run("return [...document.querySelectorAll('th')].every(cell => cell.scope)")
    assert page.run("const ids = [...document.querySelectorAll('[id]')].map(e => e.id);"
                    "return new Set(ids).size === ids.length")  # fmt: skip
    tree = page.devtools("Accessibility.getFullAXTree")["nodes"]
    buttons = [node for node in tree if node.get("role", {}).get("value") == "button"]
    assert len(buttons) == 96
    assert all(node["name"]["value"].strip() for node in buttons)


def test_evidence_opens_by_keyboard_and_gives_the_focus_back(page: Browser) -> None:
    page.run("document.activeElement.blur(); window.getSelection().removeAllRanges()")
    page.press("Tab")
    label = "return document.activeElement.getAttribute('aria-label')"
    assert str(page.run(label)).startswith("sm12x-some-quite-long-patch-name-0 on v0.5.21: merged")
    page.press("ArrowRight")
    page.press("ArrowDown")
    assert str(page.run(label)).startswith("sm12x-some-quite-long-patch-name-1 on v0.5.22")
    page.press("Enter")
    shown = (
        "return [...document.querySelectorAll('.evidence')]"
        ".filter(e => e.checkVisibility()).map(e => e.innerText)"
    )
    (text,) = page.run(shown)
    for said in ("flashinfer-python ==0.6.17 -> ==0.6.18", "repair it (#1)", "says <script>", "- a <script>"):
        assert said in text
    assert page.run("return document.activeElement.getAttribute('aria-expanded')") == "true"
    page.press("Escape")
    assert page.run(shown) == []
    assert str(page.run(label)).startswith("sm12x-some-quite-long-patch-name-1 on v0.5.22")


def test_evidence_opens_by_click_one_at_a_time(page: Browser) -> None:
    shown = "return [...document.querySelectorAll('.evidence')].filter(e => e.checkVisibility()).length"
    page.click("tbody tr:nth-child(3) td:nth-child(4) button")
    page.click("tbody tr:nth-child(1) td:nth-child(2) button")
    assert page.run(shown) == 1
    page.click("tbody tr:nth-child(1) td:nth-child(2) button")
    assert page.run(shown) == 0


# WCAG 2.2, success criterion 1.4.3: 4.5 to 1 for text of this size.
CONTRAST = """
const channel = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const color = text => text.match(/[\\d.]+/g).map(Number);
const behind = element => {
  for (let at = element; at; at = at.parentElement) {
    const found = color(getComputedStyle(at).backgroundColor);
    if (found.length === 3 || found[3] > 0) return found;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const low = [];
let count = 0;
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || element.closest("script")) continue;
  count += 1;
  const pair = [light(color(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
  const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
  if (ratio < 4.5) low.push([ratio, walker.currentNode.data.trim().slice(0, 40)]);
}
return [count, low];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable(page: Browser, scheme: str) -> None:
    page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    count, low = page.run(CONTRAST)
    assert count > 500
    assert low == []
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
