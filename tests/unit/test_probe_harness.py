"""The source is run piece by piece, and what is not known is said, never guessed."""

from __future__ import annotations

import pytest

from builder.probe.harness import (
    Answer,
    CannotTell,
    Opaque,
    Program,
    absent,
    ask,
    call,
    definition,
    environment,
    fixed,
    locate,
    module_name,
    names_in,
    parse,
    strings_in,
)
from builder.probe.trees import MappingTree


def tree(**files: str) -> MappingTree:
    """A tree of ``sglang`` modules, by dotted name with ``__`` for dots."""
    return MappingTree(
        {f"python/sglang/{name.replace('__', '/')}.py": text.encode() for name, text in files.items()}
    )


def run(source: str, name: str, **stubs: object) -> object:
    """The value of ``name`` in a module with this source."""
    return getattr(Program(tree(m=source), stubs).module("sglang.m"), name)


def test_only_what_is_needed_runs() -> None:
    source = "import torch\nif torch.cuda.is_available():\n    backend = 1\n\nlimit = 2 * 21\n"
    assert run(source, "limit") == 42
    with pytest.raises(CannotTell, match=r"the truth of torch\.cuda\.is_available"):
        run(source, "backend")


def test_what_could_not_be_told_cannot_be_told_again() -> None:
    source = "import torch\nbackend = 1 if torch.x else 2\n"
    module = Program(tree(m=source)).module("sglang.m")
    for _ in range(2):
        with pytest.raises(CannotTell):
            _ = module.backend


def test_statements_with_side_effects_alone_do_not_run() -> None:
    assert run("raise SystemExit\nx = 1\n", "x") == 1


def test_names_are_bound_in_order() -> None:
    assert run("x = [1]\nx = [*x, 2]\nx += [3]\n", "x") == [1, 2, 3]


def test_helpers_constants_and_classes_come_along() -> None:
    source = (
        "from dataclasses import dataclass, field\n"
        "import functools\n"
        "SIZE = 4\n"
        "def twice(x): return 2 * x\n"
        "@functools.lru_cache\n"
        "def total(x): return twice(x) + SIZE\n"
        "@dataclass\n"
        "class Box:\n"
        "    size: UnknownType = SIZE\n"
        "    items: list = field(default_factory=list)\n"
        "    def total(self): return total(self.size)\n"
    )
    box = run(source, "Box")
    assert box().total() == 12  # type: ignore[operator]


def test_imports_reach_other_modules_of_the_tree() -> None:
    files = {
        "a.py": "from sglang.pack import helper, sub\nfrom .b import value as renamed\nimport sglang.b as b\n"
        "import sglang.loose.c\n"
        "def f():\n    from sglang.pack.sub import deep\n"
        "    return helper(), sub.deep, renamed, b.value, deep\n"
        "def g(): return sglang.loose.c.value\n",
        "b.py": "value = 7\n",
        "loose/c.py": "value = 8\n",
        "pack/__init__.py": "from .inner import *\n",
        "pack/inner.py": "from ..b import value\ndef helper(): return value\n_private = 1\n",
        "pack/sub.py": "deep = 3\n",
    }
    program = Program(MappingTree({f"python/sglang/{path}": text.encode() for path, text in files.items()}))
    assert program.module("sglang.a").f() == (7, 3, 7, 7, 3)
    assert program.module("sglang.a").g() == 8


def test_missing_module_of_the_tree_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError):
        run("import sglang.nowhere as x\n", "x")


def test_dynamic_attributes_of_a_module() -> None:
    assert run("def __getattr__(name): return name.upper()\n", "dynamic") == "DYNAMIC"


def test_stub_by_bare_name_stands_in_everywhere() -> None:
    files = tree(
        a="from sglang.b import is_hip\nx = is_hip()\n", b="def is_hip(): return 1 / 0\ny = is_hip()\n"
    )
    program = Program(files, {"is_hip": lambda: "no"})
    assert (program.module("sglang.a").x, program.module("sglang.b").y) == ("no", "no")


def test_stub_by_dotted_name_stands_in_there_alone() -> None:
    files = tree(a="import torch\nx = torch.cuda.count()\ny = torch.other\n", b="f = 1\n", c="f = 2\n")
    program = Program(files, {"torch.cuda.count": lambda: 8, "sglang.b.f": 9})
    assert program.module("sglang.a").x == 8
    assert repr(program.module("sglang.a").y) == "<torch.other>"
    assert (program.module("sglang.b").f, program.module("sglang.c").f) == (9, 2)


def test_stub_of_none_is_a_module_that_is_not_installed() -> None:
    source = "try:\n    import netifaces\n    there = True\nexcept ImportError:\n    there = False\n"
    assert run(source, "there") is True
    assert run(source, "there", netifaces=None) is False


@pytest.mark.parametrize(
    "decision",
    [
        "bool(torch.x)",
        "1 if torch.x > 3 else 2",
        "len(torch.x)",
        "[i for i in torch.x]",
        "int(torch.x)",
        "range(torch.x)",
        "3 in torch.x",
        "torch.x in [1, 2]",
        "isinstance(object(), torch.Tensor)",
        "float(torch.x.y()[0] + 1)",
    ],
)
def test_deciding_by_the_unknown_cannot_be_told(decision: str) -> None:
    body = f"    try:\n        return {decision}\n    except Exception:\n        return 0\n"
    source = f"import torch\ndef f():\n{body}"
    with pytest.raises(CannotTell, match=r"torch"):
        run(source, "f")()  # type: ignore[operator]


def test_the_unknown_can_be_carried_round() -> None:
    source = (
        "import torch\nfrom torch import nn\n"
        "@torch.compile(dynamic=True)\n"
        "def f(x: torch.Tensor, kind: torch.dtype = torch.float32):\n"
        "    with torch.no_grad():\n        y = -(x + torch.ones(3)[0] * 2)\n"
        "    return isinstance(3, torch.Tensor), kind\n"
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.size = 5\n"
    )
    module = Program(tree(m=source)).module("sglang.m")
    assert module.f(1)[0] is False
    assert module.M().size == 5


def test_opaque_has_the_attributes_it_was_given() -> None:
    thing = Opaque("self", page_size=64)
    thing.later = 3
    assert (thing.page_size, thing.later) == (64, 3)
    assert str(thing.other.deeper(1)) == "<self.other.deeper(...)>"


def test_ask_makes_every_failure_unknown() -> None:
    def failing(_: object) -> Answer:
        raise ValueError("no\nway")

    def leaving(_: object) -> Answer:
        raise SystemExit

    def puzzled(_: object) -> Answer:
        raise CannotTell("why")

    assert ask(failing, tree()).evidence == "the probe stopped: ValueError: no way"
    assert ask(leaving, tree()).state == "unknown"
    assert ask(puzzled, tree()) == Answer("unknown", "why")
    assert ask(lambda _: "fixed", tree()).state == "unknown"  # type: ignore[arg-type,return-value]
    assert ask(lambda _: fixed("8 of 8", "torch"), tree()) == Answer("fixed", "8 of 8", ("torch",))


def test_site_is_found_where_it_was_or_by_search() -> None:
    files = tree(a="class X: pass\n", b="class Y: pass\n", c="class Y: pass\n")
    assert locate(files, ["python/sglang/gone.py", "python/sglang/a.py"], b"class X") == "python/sglang/a.py"
    assert locate(files, ["python/sglang/b.py"], b"class X") == "python/sglang/a.py"
    assert locate(files, [], b"class Z") is None
    with pytest.raises(CannotTell, match=r"in 2 files"):
        locate(files, [], b"class Y")
    assert locate(files, ["python/sglang/c.py"], b"class Y") == "python/sglang/c.py"


def test_syntax_trees_can_be_searched() -> None:
    node = parse(
        tree(m="class A:\n    def f(self): return B.c('s')\n    def f(self): return d\n"),
        "python/sglang/m.py",
    )
    found = definition(node, "A.f")
    assert found is not None
    assert names_in(found) == {"d"}
    assert strings_in(node) == {"s"}
    assert definition(node, "A.g") is None
    assert module_name("python/sglang/srt/utils/__init__.py") == "sglang.srt.utils"


def test_what_does_not_parse_cannot_be_told() -> None:
    with pytest.raises(CannotTell, match="does not parse"):
        parse(tree(m="def"), "python/sglang/m.py")
    with pytest.raises(CannotTell, match="not in the tree"):
        Program(tree()).module("sglang.m")


def test_call_gives_what_is_wanted() -> None:
    def f(a: int, *, b: int = 2) -> tuple[int, int]:
        return a, b

    assert call(f, a=1, c=3) == (1, 2)
    with pytest.raises(CannotTell, match="f wants a"):
        call(f, b=1)


def test_environment_is_exactly_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_HOST_IP", "1.2.3.4")
    source = "import os\ndef f(): return os.environ.get('SGLANG_HOST_IP'), os.getenv('OTHER')\n"
    f = run(source, "f")
    with environment(OTHER="x"):
        assert f() == (None, "x")  # type: ignore[operator]
    assert f() == ("1.2.3.4", None)  # type: ignore[operator]


ABSENT = [
    ("python/sglang/m.py:f", "absent"),
    ("python/sglang/m.py:C.g", "absent"),
    ("python/sglang/m.py:LIMIT", "absent"),
    ("python/sglang/m.py:imported", "absent"),
    ("python/sglang/m.json", "absent"),
    ("", "unknown"),
    ("python/sglang/m.py", "unknown"),
    ("python/sglang/m.py:h", "unknown"),
    ("python/sglang/m.py:C.f", "unknown"),
    ("python/sglang/n.py:f", "unknown"),
    ("python/sglang/broken.py:f", "unknown"),
    ("flashinfer-python", "unknown"),
]


@pytest.mark.parametrize(("site", "state"), ABSENT)
def test_absent_is_said_of_a_place_that_is_there(site: str, state: str) -> None:
    source = "from a import b as imported\nLIMIT = 2\ndef f(): pass\nclass C:\n    def g(self): pass\n"
    there = tree(m=source, broken="def f(:\n")
    there = MappingTree({"python/sglang/m.json": b"{}"}, under=there)
    answer = ask(lambda _: absent("it does not", site), there)
    assert answer.state == state
    assert "it does not" in answer.evidence
    assert ("a name that is not found is not a defect that is gone" in answer.evidence) == (
        state == "unknown"
    )


def test_shorthand_of_answers() -> None:
    assert absent("it asks no more", "a.py:f", "torch") == Answer(
        "absent", "it asks no more", ("torch",), "a.py:f"
    )
