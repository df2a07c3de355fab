"""requirements.txt as pip reads it; what would change its meaning unseen is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import RecipeError
from builder.recipe.requirements_file import parse_requirements

SOURCE = "requirements/cuda.txt"


def parse(
    text: str,
    files: Mapping[str, str] | None = None,
    options: Literal["refuse", "ignore"] = "refuse",
) -> tuple[str, ...]:
    def include(path: str) -> str:
        if files is None or path not in files:
            raise FileNotFoundError(2, "no such file")
        return files[path]

    return parse_requirements(text, source=SOURCE, include=include, options=options)


def problems(text: str, options: Literal["refuse", "ignore"] = "refuse") -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse(text, options=options)
    return [str(problem).removeprefix(f"{SOURCE}:") for problem in caught.value.problems]


def test_names_versions_extras_and_markers_come_in_one_spelling() -> None:
    text = "Foo_Bar >= 1 , <3\nray[CGraph]==2.48.0 ; python_version<'3.13'\nfoo-bar<3,>=1\n"
    assert parse(text) == ("foo-bar<3,>=1", 'ray[cgraph]==2.48.0; python_version < "3.13"')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("# a\n\n   # b\n", ()),
        ("\ufeffa\r\nb\r\n", ("a", "b")),
        ("a # why\nb #why\n", ("a", "b")),
        ("a>=1,\\\n  <2\n", ("a<2,>=1",)),
        ("a\\\n# the comment ends the line\nb", ("a", "b")),
        ("# a comment is not continued \\\nb", ("b",)),
        ("a\\", ("a",)),
        ("--only-binary :all:\n--prefer-binary\na", ("a",)),
    ],
)
def test_lines_are_those_of_pip(text: str, found: tuple[str, ...]) -> None:
    assert parse(text) == found


def test_included_files_are_found_from_the_file_that_names_them_and_read_once() -> None:
    files = {
        "requirements/common.txt": "common\n--requirement=../top.txt\n",
        "top.txt": "top\n-r requirements/cuda.txt\n-rrequirements/common.txt\n",
    }
    assert parse("-r common.txt\nown\n-r common.txt", files) == ("own", "common", "top")


def test_a_file_that_cannot_be_included_is_told_with_its_line() -> None:
    assert problems("a\n\n-r none.txt\n") == ["3: requirements/none.txt: no such file"]
    assert problems("-r https://user:secret@host.example/x") == [
        "1: includes a URL; only files can be included"
    ]
    assert problems("-r ${FOLDER}/x") == ["1: includes a variable; only files can be included"]
    assert problems("-r", "ignore") == ["1: `-r` names no file"]


def test_text_in_another_encoding_is_told() -> None:
    def include(path: str) -> str:
        return b"\xff".decode()

    with pytest.raises(RecipeError, match=r"a\.txt:1: b\.txt: is not UTF-8"):
        parse_requirements("-r b.txt", source="a.txt", include=include)


@pytest.mark.parametrize(
    "line",
    [
        "-i https://index.example/simple",
        "-ihttps://index.example/simple",
        "--extra-index-url=https://index.example/simple",
        "-c constraints.txt",
        "--pre",
        "a --hash=sha256:00",
        "a \\\n  --hash=sha256:00 \\\n  --hash=sha256:11",
        "a --config-settings=x=y",
    ],
)
def test_options_that_choose_other_files_are_refused_or_ignored(line: str) -> None:
    (problem,) = problems(line)
    assert "is not followed here" in problem
    assert parse(f"b\n{line}", options="ignore")[0] == "b"


@pytest.mark.parametrize("options", ["refuse", "ignore"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-e .", "names a file or a URL"),
        ("-e.", "names a file or a URL"),
        ("--editable=git+https://user:secret@host.example/x", "names a file or a URL"),
        ("./wheels/a.whl", "names a file or a URL"),
        ("https://user:secret@host.example/a.whl", "names a file or a URL"),
        ("a @ https://user:secret@host.example/a.whl", "`a` comes from a URL"),
        ("a b", "`a b` is not a requirement"),
        ("a=1", "`a=1` is not a requirement"),
    ],
)
def test_what_no_lock_could_hold_is_always_refused(
    line: str, message: str, options: Literal["refuse", "ignore"]
) -> None:
    assert problems(f"\n{line}", options) == [f"2: {message}"]


def test_every_problem_is_told_at_once() -> None:
    assert len(problems("a b\n--pre\n-r none\n-e .")) == 4


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
DECORATIONS = st.sampled_from(["{}", "  {}  ", "{} # why", "# why\n{}", "{}\\\n", "\n{}\n"])


@given(st.lists(st.tuples(NAMES, DECORATIONS), max_size=8))
def test_comments_blanks_and_continuations_change_nothing(lines: list[tuple[str, str]]) -> None:
    text = "".join(f"{decoration.format(name)}\n\n" for name, decoration in lines)
    assert parse(text) == tuple(dict.fromkeys(name for name, _ in lines))


@given(st.text(alphabet=st.sampled_from("ab-r.=#\\ \n;@:/[]>1'\"${}"), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except RecipeError:
        return
    assert parse("\n".join(found)) == found
