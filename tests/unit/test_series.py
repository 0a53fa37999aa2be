"""The series file decides the order; everything it names must be there and come in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import InvalidInput
from builder.patch.series import read_series, read_series_file
from tests.unit.test_patch import mail


def write(directory: Path, series: str, **patches: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "series").write_text(series)
    for name, depends in patches.items():
        trailers = "Upstream-Status: Pending" + (f"\nOverlay-Depends: {depends}" if depends else "")
        (directory / f"{name}.patch").write_bytes(mail(trailers))
    return directory


def refusal(directory: Path, **options: tuple[str, ...]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        read_series(directory, **options)
    return caught.value


def test_series_decides_the_order_not_the_file_names(tmp_path: Path) -> None:
    directory = write(tmp_path / "s", "# first\nzz\naa.patch # last\n\n", aa="", zz="")
    assert read_series(directory).names == ("zz", "aa")


def test_quilt_s_strip_level_of_one_is_what_we_do_anyway(tmp_path: Path) -> None:
    assert read_series_file(write(tmp_path / "s", "aa.patch -p1\n")) == ["aa"]


def test_another_strip_level_is_refused(tmp_path: Path) -> None:
    error = refusal(write(tmp_path / "s", "aa.patch -p0\n", aa=""))
    assert "line 1" in str(error.where)
    assert error.found == "-p0"


def test_the_order_of_only_does_not_count(tmp_path: Path) -> None:
    directory = write(tmp_path / "s", "zz\nmm\naa\n", aa="", zz="", mm="")
    assert read_series(directory, only=("aa", "zz")).names == ("zz", "aa")
    assert read_series(directory, leave_out=("mm",)).names == ("zz", "aa")


def test_needed_patch_that_comes_later_is_named(tmp_path: Path) -> None:
    error = refusal(write(tmp_path / "s", "one\ntwo\n", one="two", two=""))
    assert "comes after" in error.what
    assert "two before one" in str(error.expected)


def test_needed_patch_that_is_left_out_is_named(tmp_path: Path) -> None:
    directory = write(tmp_path / "s", "one\ntwo\n", one="", two="one")
    error = refusal(directory, leave_out=("one",))
    assert "not in the series" in error.what
    assert "one" in str(error.hint)


def test_same_name_twice_is_refused(tmp_path: Path) -> None:
    error = refusal(write(tmp_path / "s", "one\none\n", one=""))
    assert (error.found, "line 2" in str(error.where)) == ("one", True)


def test_patch_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "two.patch" in str(refusal(write(tmp_path / "s", "one\ntwo\n", one="")).expected)


def test_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    directory = write(tmp_path / "s", "shared-memory\n")
    (directory / "shared-memory.patch").write_bytes(mail("Upstream-Status: Pending"))
    assert "shared-memory" in str(refusal(directory, only=("shard-memory",)).hint)


def test_patch_may_not_be_a_link_out_of_its_series(tmp_path: Path) -> None:
    (tmp_path / "out.patch").write_bytes(mail("Upstream-Status: Pending"))
    directory = write(tmp_path / "s", "one\n")
    (directory / "one.patch").symlink_to(tmp_path / "out.patch")
    assert "outside" in refusal(directory).what


def test_series_that_is_no_text_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "s", "")
    (directory / "series").write_bytes(b"\xff\xfe")
    assert str(directory / "series") in str(refusal(directory).where)


def test_digest_changes_with_order_names_and_bytes(tmp_path: Path) -> None:
    one = read_series(write(tmp_path / "1", "aa\nbb\n", aa="", bb="")).digest
    two = read_series(write(tmp_path / "2", "bb\naa\n", aa="", bb="")).digest
    three = read_series(write(tmp_path / "3", "aa\nbb\n", aa="", bb="aa")).digest
    assert len({one, two, three}) == 3
    assert one == read_series(write(tmp_path / "4", "# x\naa\nbb\n", aa="", bb="")).digest
