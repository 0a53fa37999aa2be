"""What is patched must still be Python: what a change breaks is found, and nothing else is called broken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder.probe.trees import MappingTree
from builder.soundness.check import Checker, Soundness
from builder.source.files import SourceFile
from tests.projects.history import HistoryProject, overlay, write_root
from tests.projects.series import Ran, SeriesProject, rules, workshop

__all__ = ["workshop"]

PACKAGE = "python/sglang/"
X = f"{PACKAGE}x.py"
TREE = {
    f"{PACKAGE}__init__.py": "",
    f"{PACKAGE}a.py": "def b(): pass\n",
    f"{PACKAGE}pk/__init__.py": "from sglang.a import *\nfrom .sub import x\n",
    f"{PACKAGE}pk/sub.py": "x = 1\n",
    f"{PACKAGE}lazy.py": "def __getattr__(name): return 1\n",
    f"{PACKAGE}made.py": "for n in 'ab':\n    globals()[n] = 1\n",
    f"{PACKAGE}paths.py": (
        "if X:\n    one = 1\nelse:\n    two = 2\ntry:\n    import torch\nexcept ImportError:\n    three = 3\n"
        "with open('x') as four, (five := six):\n    for seven in four: pass\n"
        "def f():\n    global eight\n    eight = 8\nnine: int = 9\n[ten, *eleven] = 1, 2\n"
        "match X:\n    case {'a': twelve, **thirteen}: pass\n    case [*fourteen]: pass\n"
        "    case fifteen: pass\n"
    ),
    f"{PACKAGE}typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sglang.a import b\n",
    f"{PACKAGE}listed.py": (
        "__all__ = ['one']\n__all__ += ('_shown',)\none = two = deleted = [i for i in (j := 1, 2)]\n"
        "_shown = 1\ndel deleted\n"
    ),
    f"{PACKAGE}private.py": "three = _private = 1\n",
    f"{PACKAGE}some.py": "from .listed import *\nfrom .private import *\n",
    f"{PACKAGE}joined.py": "from .private import *\n__all__ = ['a'] + [n for n in made]\n_x = y = 1\n",
    f"{PACKAGE}through.py": "from .joined import *\n",
    f"{PACKAGE}old.py": "from sglang.gone_already import z\n",
    f"{PACKAGE}pk/named.py": "",
    f"{PACKAGE}shadow/__init__.py": "from .both import both\n",
    f"{PACKAGE}shadow/both.py": "def both(): pass\n",
    f"{PACKAGE}patched.py": "import sglang.pk.sub as sub\nfrom sglang.pk import named\n\nnamed.set_here = 1\n"
    "setattr(sub, 'set_there', 2)\n",
}
Text = Mapping[str, str | None]


def versions(files: Text) -> dict[str, SourceFile | None]:
    return {p: None if text is None else SourceFile("100644", text.encode()) for p, text in files.items()}


def check(before: Text, after: Text, under: Mapping[str, str] = TREE) -> Soundness:
    tree = MappingTree({path: text.encode() for path, text in under.items()})
    return Checker(None).check(versions(before), versions(after), tree)


def added(text: str, *, to: str = X, before: str = "") -> list[str]:
    """What a patch breaks that makes a file of a name that text."""
    return [f"{flaw.kind} {flaw.line} {flaw.name}" for flaw in check({to: before}, {to: text}).flaws]


# --- what is found ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f = print\nf(key=1,\n  mode=2, mode=3)\n", "does-not-compile 3 python/sglang/x.py"),
        ("def f(a, a): pass\n", "does-not-compile 1 python/sglang/x.py"),
        ("x = 1\nreturn x\n", "does-not-compile 2 python/sglang/x.py"),
        ("def f():\n\treturn 1\n        return 2\n", "does-not-compile 3 python/sglang/x.py"),
        ("x = 1\nfrom __future__ import annotations\n", "does-not-compile 2 python/sglang/x.py"),
        ("a = 1\0", "does-not-compile None python/sglang/x.py"),
        ("def g():\n    return get_conf()\n", "undefined-name 2 get_conf"),
        ("class A:\n    y = 1\n    def f(self): return y\n", "undefined-name 3 y"),
        (
            "def f():\n    try: g()\n    except ValueError as e: pass\n    return e\ng = 1\n",
            "undefined-name 4 e",
        ),
        ("@wrap\ndef f(): pass\n", "undefined-name 1 wrap"),
        ("def f(a: Config): pass\n", "undefined-name 1 Config"),
        ("__all__ = ['f', 'g']\nf = 1\n", "undefined-name 1 g"),
        ("from sglang.pk import *\nb()\nzz()\n", "undefined-name 3 zz"),
        ("from sglang.a import c\n", "unresolved-import 1 sglang.a.c"),
        ("def f():\n    from .a import c\n", "unresolved-import 2 sglang.a.c"),
        ("from sglang.pk import y\n", "unresolved-import 1 sglang.pk.y"),
        ("import sglang.pk.nosub\n", "unresolved-import 1 sglang.pk.nosub"),
        ("from sglang.nothing import n\n", "unresolved-import 1 sglang.nothing.n"),
        ("from . import nope\n", "unresolved-import 1 sglang.nope"),
        ("from sglang.nothing import *\n", "unresolved-import 1 sglang.nothing"),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import b\nb()\n",
            "undefined-name 4 b",
        ),
        ("import typing as t\nif t.TYPE_CHECKING:\n    import q\ndef f(a: q.b): ...\n", "undefined-name 4 q"),
        ("from sglang.typed import b\n", "unresolved-import 1 sglang.typed.b"),
        (
            "import typing\nif not typing.TYPE_CHECKING:\n    from sglang.a import c\n",
            "unresolved-import 3 sglang.a.c",
        ),
        ("from sglang.some import two\n", "unresolved-import 1 sglang.some.two"),
        ("from sglang.some import _private\n", "unresolved-import 1 sglang.some._private"),
        ("from sglang.listed import *\ntwo\n", "undefined-name 2 two"),
        ("from sglang.listed import deleted\n", "unresolved-import 1 sglang.listed.deleted"),
        ("from sglang.listed import i\n", "unresolved-import 1 sglang.listed.i"),
        (
            "try:\n    from sglang.a import c\nexcept ValueError:\n    pass\n",
            "unresolved-import 2 sglang.a.c",
        ),
    ],
)
def test_what_would_not_run_is_found_with_name_and_line(text: str, expected: str) -> None:
    assert added(text) == [expected]


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("python/sglang/c.json", '{"a": 1}', '{"a": 1,}'),
        ("python/pyproject.toml", "a = 1\n", "a = 1\na = 2\n"),
        ("python/sglang/c.yaml", "a: [1]\n", "a: [1\n"),
        ("python/sglang/c.yml", "a: 1\n", "a: 1\n b: 2\n"),
    ],
)
def test_data_file_that_parsed_must_still_parse(path: str, good: str, bad: str) -> None:
    assert [flaw.kind for flaw in check({path: good}, {path: bad}).flaws] == ["data-file"]
    assert check({path: bad}, {path: bad + "\n"}).flaws == ()
    assert check({path: good}, {path: good + "\n"}) == Soundness()


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("python/sglang/c.json", '{"a": {"x": 1}, "b": {"x": 1}}', '{"a": {"x": 1, "x": 2}, "b": {"x": 1}}'),
        ("python/sglang/c.yaml", "a: 1\nb: [{a: 1}, {a: 2}]\n---\na: 2\n", "a: 1\nb: {c: 1}\n'a': 1\na: 2\n"),
    ],
)
def test_a_key_that_a_clean_merge_brings_twice_is_found(path: str, good: str, bad: str) -> None:
    assert "a key twice" in str(check({path: good}, {path: bad}).flaws[0])
    assert check({path: ""}, {path: good}).flaws == ()
    assert check({path: bad}, {path: bad + "\n"}).flaws == ()


def test_an_alias_of_nothing_is_no_yaml() -> None:
    path = "python/sglang/c.yml"
    assert check({path: "a: 1\n"}, {path: "a: *b\n"}).flaws
    assert check({path: "a: 1\n"}, {path: "a: &b {c: 1}\nd: {<<: *b, <<: *b}\n"}).flaws == ()


def test_a_name_that_was_undefined_before_excuses_no_other_file() -> None:
    y = f"{PACKAGE}y.py"
    bad = "def f():\n    return nope\n"
    found = check({X: bad, y: ""}, {X: bad + "\n", y: "def g():\n    return nope\n"}).flaws
    assert [flaw.path for flaw in found] == [y]


def test_an_import_certainly_finds_nothing_although_others_try_the_same() -> None:
    """A module that is not there may come from elsewhere; one that is there has what it has."""
    others = {f"{PACKAGE}stale.py": "def f():\n    from sglang.a import gone\n"}
    found = check({X: ""}, {X: "from sglang.a import gone\n"}, TREE | others).flaws
    assert [flaw.name for flaw in found] == ["sglang.a.gone"]


def test_an_import_that_went_is_found_where_its_name_is_still_used() -> None:
    before = "from sglang.a import b\n\n\ndef g():\n    return b()\n"
    assert added(before.replace("from sglang.a import b\n", ""), before=before) == ["undefined-name 4 b"]


def test_what_a_patch_takes_from_a_module_is_missed_where_others_import_it() -> None:
    """By files that the patch changes, and by files that it leaves alone."""
    users = {f"{PACKAGE}user.py": "from sglang.a import b\n", f"{PACKAGE}kind.py": "from . import a\n"}
    a = f"{PACKAGE}a.py"
    found = check({a: "def b(): pass\n"}, {a: "def c(): pass\n"}, TREE | users).flaws
    assert [(flaw.path, flaw.name) for flaw in found] == [(f"{PACKAGE}user.py", "sglang.a.b")]
    found = check({a: "def b(): pass\n"}, {a: None}, TREE | users).flaws
    assert {flaw.path for flaw in found} == {
        f"{PACKAGE}{name}.py" for name in ("user", "kind", "pk/__init__")
    }
    both = {a: "def b(): pass\n", X: "from sglang.a import b\n"}
    found = check(both, both | {a: "def c(): pass\n"}).flaws
    assert [
        (flaw.path, flaw.name) for flaw in found
    ] == []  # x.py is as it was, and the patch leaves it alone


def test_more_importers_than_are_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that only name the module are not counted: it is ``utils`` in every second one."""
    a = f"{PACKAGE}a.py"
    users = {f"{PACKAGE}user{n}.py": "from sglang.a import b\n" for n in range(3)}
    others = {f"{PACKAGE}other{n}.py": "from sglang.a import c\n" for n in range(9)}
    gone = ({a: "def b(): pass\ndef c(): pass\n"}, {a: "def c(): pass\n"}, {a: ""} | users | others)
    monkeypatch.setattr("builder.soundness.check.MOST_READERS", 3)
    assert (len(check(*gone).flaws), check(*gone).notes) == (3, ())
    monkeypatch.setattr("builder.soundness.check.MOST_READERS", 2)
    assert len(check(*gone).flaws) == 2
    assert "3 files may import what went from it, and 2 were looked at" in check(*gone).notes[0]


def test_a_data_file_too_large_to_parse_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.soundness.check.LARGEST_DATA", 4)
    found = check({f"{PACKAGE}x.json": "{}"}, {f"{PACKAGE}x.json": '{"a": 1}'})
    assert "8 bytes are too many to be looked at (at most 4)" in found.notes[0]


def test_changed_files_are_held_against_each_other() -> None:
    new = {X: "from .new import n\n", f"{PACKAGE}new.py": "n = 1\n"}
    assert check({X: "", f"{PACKAGE}new.py": None}, new).flaws == ()
    assert [
        f.name for f in check({X: "", f"{PACKAGE}new.py": None}, new | {f"{PACKAGE}new.py": ""}).flaws
    ] == ["sglang.new.n"]


# --- what is not --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "from typing import Annotated\ndef f(a: Annotated[int, 'help text'], b: 'Foo | None' = None): ...\n",
        "from typing import Literal, cast\nx: Literal['a b'] = 'a b'\ny = cast('Foo[bar]', x)\n",
        "from __future__ import annotations\ndef f(a: Config) -> Other: ...\n",
        "def f():\n    a: Config = 1\n    return a\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sglang.nothing import N\n",
        "import typing\nif typing.TYPE_CHECKING:\n    from sglang.a import N\nelse:\n    N = 1\nN\n",
        "try:\n    from sglang.a import c\nexcept ImportError:\n    c = None\n",
        "try:\n    import sglang.no\nexcept (OSError, ModuleNotFoundError):\n    from sglang.a import d\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    from sglang.a import c\n",
        "from sglang.version import __version__\nfrom sglang._version import v\n",
        "from sglang.srt.x_pb2 import Q\n",
        "from sglang.lazy import anything\nfrom sglang.made import a, b\n",
        "from sglang.pk import b, sub, x\nimport sglang.pk.sub as s\nfrom .pk import sub\nfrom . import pk\n",
        "from sglang.paths import one, two, three, four, five, seven, eight, nine, ten, eleven, twelve\n",
        "from sglang.paths import thirteen, fourteen, fifteen, torch, f\n",
        "from sglang.a import __name__, __doc__\n",
        "from sglang.gone_already import z\n",  # the tree itself takes it: from where nobody sees it
        "import torch.nothing\nfrom vllm import nope\nfrom .... import far\n",
        "from sglang.lazy import *\nanything()\n",
        "from torch import *\nanything()\n",
        "for name in 'ab':\n    globals()[name] = 1\na\n",
        "exec('a = 1')\na\n",
        "try:\n    unicode\nexcept NameError:\n    unicode = str\n",
        "import os\nif os.name:\n    y = 1\nprint(y)\ndel y\n",
        "def f():\n    global later\n    later = 1\n\n\ndef g():\n    return later\n",
        "x = [i for i in range(3) if (y := i)]\nprint(y, __file__, __name__, __builtins__)\n",
        "class A:\n    z = 1\n    w = [z for _ in range(3)]\n    __qualname__\n",
        "raise PythonFinalizationError\n",
        "from sglang.some import one, _shown, three\nfrom sglang.listed import one, two, j\n",
        "from sglang.through import _x, y, three\nfrom sglang.private import _private\n",
        "import typing\nif typing.TYPE_CHECKING:\n    from sglang.a import b\nelse:\n    b = 1\nb\n",
        "from typing import TYPE_CHECKING, cast\nif TYPE_CHECKING:\n    import q\ndef f(a: 'q.B'):\n"
        "    a: q.B\n    return cast('q.B', a)\n",
        "from __future__ import annotations\nimport typing\nif typing.TYPE_CHECKING and 1:\n    import q\n"
        "def f(a: q.B) -> q.B:\n    import q\n    return q.B()\nx: q.B = 1\n",
        "import typing\nif typing.TYPE_CHECKING or 1:\n    from sglang.a import c\nc\n",
    ],
)  # fmt: skip
def test_what_is_right_or_cannot_be_decided_is_no_finding(text: str) -> None:
    assert added(text) == []


def test_what_was_so_before_is_upstreams_own() -> None:
    """Also where it moved: by a rename, to another file, or to another line."""
    bad = "from sglang.a import gone\n\n\ndef f():\n    return nope\n"
    assert added("\n" + bad, before=bad) == []
    y = f"{PACKAGE}y.py"
    moved = check({X: "def f():\n    return nope\n", y: None}, {X: None, y: "def f():\n    return nope\n"})
    assert moved.flaws == ()
    assert added(bad + "\n\ndef g():\n    return 1 + nope\n", before=bad) == []


def test_a_file_that_did_not_compile_or_needs_a_newer_python_is_a_note() -> None:
    found = check({X: "def (:\n"}, {X: "def (:\n\n"})
    assert found.flaws == ()
    assert "as before the change" in found.notes[0]
    for text in ("type T = int[\n", "match x:\n    case 1, = 2: pass\n"):
        assert [flaw.kind for flaw in check({X: ""}, {X: text}).flaws] == ["does-not-compile"]


def test_a_newer_grammar_is_told_from_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template string is newer than every Python this is tested with but the newest, which takes it."""
    found = check({X: ""}, {X: 'a = 1\nx = t"{a}"\n'})
    assert found.flaws == ()
    assert check({X: ""}, {X: 'a = 1\nx = t"{a}"" \n'}).flaws


@pytest.mark.parametrize("text", ["a = " + "(" * 3000 + "1" + ")" * 3000, "a = " + "-" * 50_000 + "1\n"])
def test_a_file_nested_too_deeply_ends_nothing(text: str) -> None:
    check({X: ""}, {X: text})


def test_warnings_of_patched_files_are_nobodys_business(recwarn: pytest.WarningsRecorder) -> None:
    assert added('x = "\\d" is 1\n') == []
    assert not recwarn.list


def test_what_was_found_to_be_sound_is_not_looked_at_again(tmp_path: Path) -> None:
    class Tree(MappingTree):
        def grep(self, text: bytes, prefix: str = "") -> list[str]:
            raise AssertionError("asked again")

    tree = MappingTree({path: text.encode() for path, text in TREE.items()})
    before, after = versions({X: "b = 1\n"}), versions({X: "c = 1\n"})
    first = Checker(tmp_path)
    assert first.check(before, after, tree) == Soundness()
    first.save()
    again = Tree({path: text.encode() for path, text in TREE.items()})
    assert Checker(tmp_path).check(before, after, again) == Soundness()
    with pytest.raises(AssertionError):
        Checker(None).check(before, after, again)


# --- attributes of modules ----------------------------------------------------------------------------------

GONE = "missing-attribute"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from sglang import a\na.gone()\n", [f"{GONE} 2 sglang.a.gone"]),
        ("import sglang.a as m\nm.gone()\nm.gone\n", [f"{GONE} 2 sglang.a.gone"]),
        ("import sglang.a\ndef f():\n    return sglang.a.gone.more\n", [f"{GONE} 3 sglang.a.gone"]),
        ("from . import a\nx = [a.b, a.gone]\n", [f"{GONE} 2 sglang.a.gone"]),
        ("def f():\n    from sglang import a\n    a.gone()\n", [f"{GONE} 3 sglang.a.gone"]),
        ("import sglang\nsglang.nowhere\n", [f"{GONE} 2 sglang.nowhere"]),
        ("from sglang import a\n@a.b\nclass C(a.lost): pass\n", [f"{GONE} 3 sglang.a.lost"]),
        ("from sglang import a\ndef f(x: a.gone): pass\n", [f"{GONE} 2 sglang.a.gone"]),
        ("from sglang.pk import sub\nsub.gone(sub.x)\n", [f"{GONE} 2 sglang.pk.sub.gone"]),
        (
            "if X():\n    from sglang import a as m\nelse:\n    import sglang.pk.named as m\nm.gone\n",
            [f"{GONE} 5 sglang.a.gone"],
        ),
        ("from sglang import some\nsome.one, some.two\n", [f"{GONE} 2 sglang.some.two"]),
        ("from sglang import a\ntry:\n    a.gone()\nexcept ValueError: pass\n", [f"{GONE} 3 sglang.a.gone"]),
        ("from sglang import a\na.gone.set = 1\n", []),
    ],
)  # fmt: skip
def test_an_attribute_that_a_module_of_the_tree_has_not_is_found(text: str, expected: list[str]) -> None:
    assert added("X = print\n" + text, before="X = print\n") == [
        f"{kind} {int(line) + 1} {name}" for kind, line, name in (one.split() for one in expected)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "from sglang import a\na.b(), a.__name__, a.__dict__\n",
        "from sglang import lazy, made\nlazy.anything, made.a\n",
        "from sglang import pk, some\npk.b, pk.sub.x, pk.named, pk.x, some.one, some._shown, some.three\n",
        "import sglang.pk.sub\nsglang.pk.sub.x, sglang.a.b, sglang.lazy.y\n",
        "from sglang.shadow import both\nboth.attribute\n",  # the function, not the module
        "import sglang.shadow\nsglang.shadow.both.attribute\n",
        "from sglang import a\nif hasattr(a, 'gone'):\n    a.gone()\n",
        "from sglang import a\nf = getattr(a, 'gone', None) or a.gone\n",
        "from sglang import a\nif 'gone' in dir(a):\n    a.gone()\n",
        "from sglang import a\ntry:\n    a.gone()\nexcept AttributeError:\n    pass\n",
        "from sglang import a\ntry:\n    a.gone()\nexcept Exception:\n    a.lost()\n",
        "import contextlib\nfrom sglang import a\nwith contextlib.suppress(AttributeError):\n    a.gone()\n",
        "try:\n    from sglang import a\nexcept ImportError:\n    a = None\na.gone()\n",
        "from typing import TYPE_CHECKING\nfrom sglang import a\nif TYPE_CHECKING:\n    x = a.gone\n",
        "import typing\nif typing.TYPE_CHECKING:\n    from sglang import a\ndef f():\n    x: a.gone = 1\n",
        "from __future__ import annotations\nfrom sglang import a\ndef f(x: a.gone) -> a.gone: pass\n",
        "from sglang import a\ndef f(x: 'a.gone') -> 'a.gone': pass\n",
        "from sglang import a\na.gone = 1\nprint(a.gone)\n",
        "from sglang import a\ndef f(): a.gone += 1\n",
        "from sglang.pk import named\nnamed.set_here\n",
        "from sglang.pk import sub\nsub.set_there\n",
        "from sglang import a\ndef f(a): return a.gone\n",
        "from sglang import a\na = object()\na.gone\n",
        "from sglang import a\n[a.gone for a in range(3)]\n",
        "if print:\n    from sglang import a\nelse:\n    import torch as a\na.gone\n",
        "import torch\nfrom vllm import a\ntorch.gone, a.gone\n",
        "if print:\n    from sglang import a as m\nelse:\n    import sglang.pk.sub as m\nm.x\n",
        "from sglang.a import b\nb.gone\n",
        "from torch import *\nfrom sglang import a\na.gone\n",
        "from sglang import a\nglobals()['a'] = 1\na.gone\n",
        "import sglang.version\nsglang.version.gone, sglang._version\n",
    ],
)  # fmt: skip
def test_an_attribute_that_may_be_there_is_no_finding(text: str) -> None:
    assert added(text) == []


def test_an_attribute_that_a_change_takes_away_is_found_where_it_is_used() -> None:
    a, user = f"{PACKAGE}a.py", f"{PACKAGE}user.py"
    under = {**TREE, user: "from sglang import a\n\na.b()\n"}
    found = check({a: TREE[a]}, {a: "def c(): pass\n"}, under).flaws
    assert [f"{flaw.kind} {flaw.path} {flaw.line} {flaw.name}" for flaw in found] == [
        f"{GONE} {user} 3 sglang.a.b"
    ]
    guarded = {**TREE, user: "from sglang import a\n\nif hasattr(a, 'b'):\n    a.b()\n"}
    assert check({a: TREE[a]}, {a: "def c(): pass\n"}, guarded).flaws == ()
    lazy = "def __getattr__(name): return 1\n"
    assert check({a: TREE[a]}, {a: lazy}, under).flaws == ()


def test_an_attribute_that_was_missing_before_is_upstreams_own() -> None:
    bad = "from sglang import a\na.gone()\n"
    assert added("\n" + bad, before=bad) == []
    y = f"{PACKAGE}y.py"
    assert check({X: bad, y: None}, {X: None, y: bad}).flaws == ()
    assert added(bad + "a.lost()\n", before=bad) == [f"{GONE} 3 sglang.a.lost"]


# --- in the commands ----------------------------------------------------------------------------------------

USE = "python/sglang/use.py"
CONF = "python/sglang/conf.py"
PIN = {
    "python/sglang/__init__.py": b"",
    CONF: b"def get_conf():\n    return 1\n",
    USE: b"from sglang.conf import get_conf\n\n\ndef f(call):\n    return call(\n        get_conf(),\n"
    b"        a=1,\n        b=2,\n        c=3,\n        d=4,\n    )\n\n\ndef g():\n    return 0\n",
}
KEYWORD = PIN[USE].replace(b"        d=4,\n", b"        d=4,\n        mode=1,\n")
CALLS = PIN[USE].replace(b"return 0", b"return get_conf()")


@pytest.fixture
def lab(tmp_path: Path) -> HistoryProject:
    return HistoryProject(tmp_path)


def unsound(lab: HistoryProject, root: Path, *trailers: str) -> tuple[str, Path]:
    """A patch that calls ``get_conf``, and a release that dropped the import of it."""
    pin = lab.commit(dict(PIN), tag="v1.0.0")
    patch = lab.patch("p0", pin, {USE: CALLS}, "Overlay-Probe: none [test]", *trailers)
    new = PIN[USE].replace(b"from sglang.conf import get_conf\n", b"").replace(b"        get_conf(),\n", b"")
    lab.commit({USE: new}, tag="v1.1.0")
    return pin, write_root(lab, root, pin, [patch])


def test_diff_says_rework_with_name_and_line(lab: HistoryProject, tmp_path: Path) -> None:
    _, root = unsound(lab, tmp_path / "root")
    url = ("--upstream-url", str(lab.repository))
    done = overlay(lab, root, "diff", "demo", "--upstream", "v1.1.0", *url, "--json")
    (evaluation,) = json.loads(done.stdout)["reports"][0]["judgements"]
    assert evaluation["verdict"] == "rework"
    assert "get_conf is not defined" in evaluation["why"]
    assert f"{USE}, line 13" in evaluation["why"]
    assert evaluation["evidence"]["flaws"][0]["name"] == "get_conf"


def test_diff_and_rebase_see_a_keyword_that_upstream_added_elsewhere_in_the_call(
    lab: HistoryProject, tmp_path: Path
) -> None:
    pin = lab.commit(dict(PIN), tag="v1.0.0")
    patch = lab.patch("p0", pin, {USE: KEYWORD}, "Overlay-Probe: none [test]")
    lab.commit(
        {USE: PIN[USE].replace(b"        get_conf(),\n", b"        get_conf(),\n        mode=0,\n")},
        tag="v1.1.0",
    )
    root = write_root(lab, tmp_path / "root", pin, [patch])
    found = lab.judge(pin, [patch], "v1.1.0").of("p0", "v1.1.0")
    assert found.evidence.text.state == "carries"
    assert found.verdict.word == "rework"
    assert "keyword argument repeated: mode" in found.verdict.why
    done = overlay(
        lab, root, "rebase", "demo", "--upstream-url", str(lab.repository), "--onto", "v1.1.0", "--json"
    )
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert "keyword argument repeated: mode" in error["found"]
    assert Path(error["worktree"], USE).is_file()  # it is left open


def test_diff_says_what_it_could_not_look_at(lab: HistoryProject, tmp_path: Path) -> None:
    """Also when it is asked again, and what it knows is remembered."""
    bad = "python/sglang/bad.py"
    pin = lab.commit(PIN | {bad: b"def f(:\n    return 0\n"}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {bad: b"def f(:\n    return 1\n"}, "Overlay-Probe: none [test]")
    root = write_root(lab, tmp_path / "root", pin, [patch])
    lab.commit({USE: b"\n" + PIN[USE]}, tag="v1.1.0")
    diff = ("diff", "demo", "--upstream-url", str(lab.repository), "--upstream", "v1.1.0")
    for _ in range(2):
        assert f"  p0: {bad}, line 1: does not compile:" in overlay(lab, root, *diff).stdout
    (evaluation,) = json.loads(overlay(lab, root, *diff, "--json").stdout)["reports"][0]["judgements"]
    (note,) = evaluation["evidence"]["notes"]
    assert note.endswith("as before the change")


def test_diff_says_partial_where_a_hunk_is_there_already(lab: HistoryProject, tmp_path: Path) -> None:
    two = PIN | {USE: PIN[USE] + b"\n\n# filler\n" * 8 + b"\n\ndef h():\n    return 0\n"}
    pin = lab.commit(dict(two), tag="v1.0.0")
    patched = two[USE].replace(b"return 0\n\n\n# filler", b"return get_conf()\n\n\n# filler", 1)
    patched = patched.replace(b"def h():\n    return 0", b"def h():\n    return 1")
    patch = lab.patch("p0", pin, {USE: patched}, "Overlay-Probe: none [test]")
    new = two[USE].replace(b"from sglang.conf import get_conf\n", b"").replace(b"        get_conf(),\n", b"")
    lab.commit({USE: new.replace(b"def h():\n    return 0", b"def h():\n    return 1")}, tag="v1.1.0")
    found = lab.judge(pin, [patch], "v1.1.0").of("p0", "v1.1.0")
    assert found.verdict.word == "partial"
    assert "get_conf is not defined" in found.verdict.why


def test_a_name_that_another_module_has_no_more_is_seen(lab: HistoryProject, tmp_path: Path) -> None:
    pin = lab.commit(dict(PIN) | {USE: b"x = 1\n"}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {USE: b"from sglang.conf import get_conf\n\nx = get_conf()\n"})
    lab.commit({CONF: b"def get_settings():\n    return 1\n"}, tag="v1.1.0")
    verdict = lab.judge(pin, [patch], "v1.1.0").of("p0", "v1.1.0").verdict
    assert verdict.word == "rework"
    assert "sglang.conf has no get_conf" in verdict.why


def test_rebase_stops_until_it_is_repaired_or_allowed_with_a_reason(
    lab: HistoryProject, tmp_path: Path
) -> None:
    _, root = unsound(lab, tmp_path / "root")
    rebase = ("rebase", "demo", "--upstream-url", str(lab.repository))
    done = overlay(lab, root, *rebase, "--onto", "v1.1.0", "--json")
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert error["findings"][0]["patch"] == "p0"
    assert overlay(lab, root, *rebase, "--continue").returncode == 3
    tree = Path(error["worktree"])
    (tree / USE).write_bytes(b"from sglang.conf import get_conf\n" + (tree / USE).read_bytes())
    lab.git("-C", str(tree), "commit", "--quiet", "--all", "--amend", "--no-edit")
    first = overlay(lab, root, *rebase, "--continue")  # shows what no probe vouches for
    done = overlay(lab, root, *rebase, "--continue")
    assert done.returncode == 0, first.stderr + done.stderr


def test_allowed_with_a_reason_is_carried(lab: HistoryProject, tmp_path: Path) -> None:
    _, root = unsound(lab, tmp_path / "root", "Overlay-Allow: undefined-name get_conf [a test]")
    rebase = ("rebase", "demo", "--upstream-url", str(lab.repository))
    done = overlay(lab, root, *rebase, "--onto", "v1.1.0")
    assert done.returncode == 0, done.stderr
    done = overlay(lab, root, "diff", "demo", "--upstream", "v1.1.0", "--upstream-url", str(lab.repository))
    assert "would not run" not in done.stdout


def test_rebase_says_what_was_broken_before(lab: HistoryProject, tmp_path: Path) -> None:
    bad = "python/sglang/bad.py"
    pin = lab.commit(PIN | {bad: b"def f(:\n    return 0\n"}, tag="v1.0.0")
    patch = lab.patch("p0", pin, {bad: b"def f(:\n    return 1\n"}, "Overlay-Probe: none [test]")
    root = write_root(lab, tmp_path / "root", pin, [patch])
    lab.commit({USE: b"\n" + PIN[USE]}, tag="v1.1.0")
    rebase = ("rebase", "demo", "--upstream-url", str(lab.repository))
    done = overlay(lab, root, *rebase, "--onto", "v1.1.0", "--json")
    assert done.returncode == 0, done.stderr
    (note,) = json.loads(done.stdout)["notes"]
    assert note.startswith(f"{bad}, line 1: does not compile:")
    assert note.endswith("as before the change")


def test_lint_says_what_it_did_not_look_at(workshop: SeriesProject, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.add("one", ("python/sglang/demo.py", "b = 2", "b = 3"))
    monkeypatch.setattr("builder.soundness.check.LARGEST", 8)
    (note,) = json.loads(workshop("patch", "lint", "--json").out)["notes"]
    assert "bytes are too many to be looked at" in note


def test_lint_finds_what_each_patch_breaks_and_what_needs_no_allowance(workshop: SeriesProject) -> None:
    workshop.add("one", ("python/sglang/demo.py", "b = 2", "b = get_b()"))
    workshop.add(
        "two", ("python/sglang/other.py", "import os\n", "import os\nfrom sglang.demo import nope\n")
    )
    found = json.loads(workshop("patch", "lint", "--json").out)["findings"]
    assert rules(found) == ["undefined-name", "unresolved-import"]
    assert [finding["file"] for finding in found] == ["patches/demo/one.patch", "patches/demo/two.patch"]
    assert "python/sglang/demo.py, line 4" in found[0]["what"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("undefined-name get_b [it is put there by the loader]", []),
        ("undefined-name get_b", ["trailer", "undefined-name"]),
        ("undefined-names get_b [why]", ["trailer", "undefined-name", "allowance"]),
        ("undefined-name other [why]", ["undefined-name", "allowance"]),
    ],
)
def test_an_allowance_has_a_kind_a_name_and_a_reason(
    workshop: SeriesProject, value: str, found: list[str]
) -> None:
    trailers = f"Upstream-Status: Pending\nOverlay-Allow: {value}"
    workshop.add("one", ("python/sglang/demo.py", "b = 2", "b = get_b()"), trailers=trailers)
    assert rules(json.loads(workshop("patch", "lint", "--json").out)["findings"]) == found


def brought(workshop: SeriesProject, line: str) -> Ran:
    """``patch import`` of a diff that changes a line of ``demo.py``, and what it ended in."""
    diff = workshop.directory / "fix.diff"
    diff.write_text(
        "--- a/python/sglang/demo.py\n+++ b/python/sglang/demo.py\n@@ -3,3 +3,3 @@\n \n"
        f"-    b = 2\n+    {line}\n     return a + b\n"
    )
    return workshop("patch", "import", "demo", diff)


def test_import_refuses_what_would_not_run_and_writes_nothing(workshop: SeriesProject) -> None:
    before = workshop.bytes()
    ran = brought(workshop, "b = get_b()")
    assert ran.code == 3
    assert ran.error
    assert "fix, python/sglang/demo.py, line 4" in ran.error.where
    assert "get_b is not defined" in ran.error.found
    assert workshop.bytes() == before
    assert brought(workshop, "b = f(x=1, x=2)").code == 3
    assert brought(workshop, "b = f(x=1, y=2)").code == 0


def test_import_names_what_another_patch_breaks_and_goes_on(workshop: SeriesProject) -> None:
    workshop.add("one", ("python/sglang/other.py", "X = 1", "X = get_x()"))
    ran = brought(workshop, "b = 3")
    assert ran.code == 0
    assert "warning: one: undefined-name: python/sglang/other.py, line 3: get_x is not defined" in ran.out
    assert workshop.names() == ["one", "fix"]


def test_what_a_later_patch_of_an_import_puts_right_is_no_finding(
    workshop: SeriesProject, tmp_path: Path
) -> None:
    quilt = tmp_path / "quilt"
    workshop.add("one", ("python/sglang/demo.py", "b = 2", "b = get_b()"))
    workshop.add("two", ("python/sglang/demo.py", "def f", "def get_b(): return 1\n\n\ndef f"))
    workshop.series.rename(quilt)
    workshop.series.mkdir()
    (workshop.series / "series").write_text("")
    assert workshop("patch", "import", "demo", quilt).code == 0


def test_refresh_refuses_what_its_patch_breaks(workshop: SeriesProject) -> None:
    path = workshop.add("one", ("python/sglang/demo.py", "b = 2", "b = 3"))
    good = path.read_bytes()
    path.write_bytes(good.replace(b"+    b = 3", b"+    b = get_b()"))
    before = workshop.bytes()
    for options in ([], ["--dry-run"]):
        ran = workshop("patch", "refresh", "demo", "one", *options)
        assert ran.code == 3
        assert ran.error
        assert "one, python/sglang/demo.py, line 4" in ran.error.where
        assert f"repair {path}" in ran.error.hint
    assert workshop.bytes() == before
    allowed = b"Upstream-Status: Pending\nOverlay-Allow: undefined-name get_b [a loader makes it]"
    path.write_bytes(path.read_bytes().replace(b"Upstream-Status: Pending", allowed))
    ran = workshop("patch", "refresh", "demo", "one")
    assert ran.code == 0
    assert "warning: one: may break get_b: Overlay-Allow: undefined-name" in ran.out


def test_refresh_from_the_work_tree_refuses_what_its_patch_breaks(workshop: SeriesProject) -> None:
    workshop.add("one", ("python/sglang/demo.py", "b = 2", "b = 3"))
    tree = Path(workshop("patch", "edit", "demo").out.split()[1])
    demo = tree / "python/sglang/demo.py"
    demo.write_text(demo.read_text().replace("b = 3", "b = get_b()"))
    before = workshop.bytes()
    assert workshop("patch", "refresh", "demo", "one").code == 3
    assert workshop.bytes() == before
    demo.write_text(demo.read_text().replace("b = get_b()", "b = 4"))
    assert workshop("patch", "refresh", "demo", "one").code == 0
    assert b"+    b = 4" in workshop.path("one").read_bytes()
