"""YAML in: values with lines, or every problem, and nothing else whatever the bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from builder.document import (
    Document,
    Flaw,
    Refused,
    dotted,
    nearest,
    parse_document,
    read_document,
    validate,
)
from builder.errors import Problem, RecipeError

FILE = Path("recipe.yaml")


def parse(text: str | bytes) -> Document:
    return parse_document(text if isinstance(text, bytes) else text.encode(), FILE)


def problems_of(text: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(RecipeError) as caught:
        parse(text)
    return caught.value.problems


def test_scalars_stay_the_text_that_stands_there() -> None:
    text = "a: 3.10\nb: no\nc: 0755\nd: 2026-11-01\ne: 'null'\nf: \"~\"\ng: 1_000\nh: <<\n"
    assert parse(text).value == {
        "a": "3.10",
        "b": "no",
        "c": "0755",
        "d": "2026-11-01",
        "e": "null",
        "f": "~",
        "g": "1_000",
        "h": "<<",
    }


@pytest.mark.parametrize("value", ["", "~", "null", "Null", "NULL"])
def test_a_plain_null_is_no_value(value: str) -> None:
    assert parse(f"a: {value}\n").value == {"a": None}


def test_every_place_has_its_line() -> None:
    text = "name: x\nfiles:\n  - from: a\n    to: /a\n  -\n    from: b\nlist:\n  - |\n    two\n"
    document = parse(text)
    assert document.lines == {
        (): 1,
        ("name",): 1,
        ("files",): 2,
        ("files", 0): 3,
        ("files", 0, "from"): 3,
        ("files", 0, "to"): 4,
        ("files", 1): 6,
        ("files", 1, "from"): 6,
        ("list",): 7,
        ("list", 0): 8,
    }
    assert document.line(("files", 0, "absent", "deeper")) == 3


def test_an_alias_is_copied_and_has_the_line_where_it_stands() -> None:
    document = parse("a: &x [1, 2]\nb: *x\nc:\n  - *x\n")
    assert document.value == {"a": ["1", "2"], "b": ["1", "2"], "c": [["1", "2"]]}
    assert document.lines[("b",)] == 2
    assert document.lines[("c", 0)] == 4
    assert document.value["a"] is not document.value["b"]


def test_a_byte_order_mark_of_utf8_is_left_out() -> None:
    assert parse(b"\xef\xbb\xbfname: x\n").value == {"name": "x"}


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(f'*{old}' for _ in range(10))}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

BROKEN = [
    ("", None, None, "is empty"),
    ("# only a comment\n", None, None, "is empty"),
    ("---\n", None, None, "is empty"),
    ("a: 1\n---\nb: 2\n", 2, None, "a second document begins here"),
    ("a: 1\nb: 2\na: 3\n", 3, "a", "is given twice, in lines 1 and 3"),
    ("a: {b: 1, b: 2}\n", 1, "a.b", "is given twice, in lines 1 and 1"),
    ("a:\n- !!python/object:os.system x\n", 2, "a[0]", "python/object:os.system` is not supported"),
    ("a: !secret x\n", 1, "a", "the tag `!secret` is not supported"),
    ("a: ! x\n", 1, "a", "the tag `!` is not supported"),
    ("!!map {a: 1}\n", 1, None, "the tag `tag:yaml.org,2002:map` is not supported"),
    ("a: &x [*x]\n", 1, "a[0]", "`*x` stands inside what it names"),
    ("a: *nowhere\n", 1, "a", "`*nowhere` names no anchor"),
    ("? [a, b]\n: c\n", 1, None, "a key must be plain text"),
    ("&k a: 1\n", 1, "a", "a key can have no tag and no anchor"),
    (LAUGHS, 4, None, "aliases expand to more than 10000 values"),
    ("- x\n" * 10_001, 10_000, None, "holds more than 10000 values"),
    ("[" * 60 + "]" * 60, 1, None, "is nested more than 32 levels deep"),
    ("[" * 500_000, 1, None, "is nested more than 32 levels deep"),
    (b"#" * ((1 << 20) + 1), None, None, "is larger than 1 MiB"),
    (b"name: caf\xe9\n", 1, None, "is not UTF-8"),
    (b"\xff\xfen\0a\0", None, None, "is not UTF-8 but UTF-16"),
    (b"a: 1\n\x7fELF\0\0", 2, None, "holds a NUL byte"),
    (b"a: 1\nb: \x01\n", 2, None, "holds the control character U+0001"),
    ('a: 1\nb: ["\\u0007"]\n', 2, "b[0]", "holds the control character U+0007"),
    ('a: 1\n"\\u0007": b\n', 2, "?", "holds the control character U+0007"),
    ('a: "\\uD800"\n', 1, "a", "holds the control character U+D800"),
    ('a: "\\UFFFFFFFF"\n', None, None, "holds a number or an escape that cannot be read"),
    ("a:\n\t- b\n", 2, None, "is not valid YAML"),
    ("a: [1, 2\n", 2, None, "is not valid YAML"),
    ("a: b: c\n", 1, None, "is not valid YAML: mapping values are not allowed here"),
    ("a: @b\n", 1, None, "is not valid YAML: found character '@'"),
    ("a: 1\n  b: 2\n", 2, None, "is not valid YAML"),
]


@pytest.mark.parametrize(("text", "line", "field", "message"), BROKEN)
def test_what_is_broken_is_named_with_its_place(
    text: str | bytes, line: int | None, field: str | None, message: str
) -> None:
    (problem,) = problems_of(text)
    assert (problem.file, problem.line, problem.field) == ("recipe.yaml", line, field)
    assert message in problem.message


def test_problems_that_can_be_gathered_come_together() -> None:
    found = problems_of("a: !x 1\na: 2\nb: [!y 1]\nb: 3\n")
    assert [(problem.line, problem.field) for problem in found] == [
        (1, "a"),
        (2, "a"),
        (3, "b[0]"),
        (4, "b"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [("a:\n\t- b\n", "spaces, not with tabs"), ("a: b: c\n", "quotes"), ("a: [1\n", "brackets")],
)
def test_a_syntax_error_comes_with_what_to_look_at(text: str, words: str) -> None:
    (problem,) = problems_of(text)
    assert words in (problem.hint or "")


def read_problem(path: Path) -> Problem:
    with pytest.raises(RecipeError) as caught:
        read_document(path)
    (problem,) = caught.value.problems
    assert problem.file == str(path)
    return problem


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\n")
    assert read_document(path) == Document(path=path, value={"a": "1"}, lines={(): 1, ("a",): 1})


def test_an_absent_file_is_answered_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").touch()
    problem = read_problem(tmp_path / "quickstrat.yaml")
    assert problem.message == "no such file"
    assert problem.hint == f"did you mean {tmp_path / 'quickstart.yaml'}?"
    without_suffix = read_problem(tmp_path / "quickstart")
    assert without_suffix.hint == f"did you mean {tmp_path / 'quickstart.yaml'}?"
    assert read_problem(tmp_path / "zzz").hint is None
    assert "no folder" in (read_problem(tmp_path / "no" / "a.yaml").hint or "")


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    assert read_problem(tmp_path).message == "is a folder"
    os.mkfifo(tmp_path / "pipe")
    assert read_problem(tmp_path / "pipe").message == "is not a regular file"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot be read" in read_problem(tmp_path / "loop").message
    assert "cannot be read" in read_problem(tmp_path / ("x" * 300)).message
    assert "cannot be the name" in read_problem(tmp_path / "nul\0").message


def test_a_file_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.yaml"
    path.touch()

    def deny(*arguments: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    assert read_problem(path).message == "cannot be read: Permission denied"


@given(st.text())
def test_any_text_gives_a_document_or_a_recipe_error(text: str) -> None:
    give(text.encode("utf-8", "surrogatepass"))


@given(st.binary())
def test_any_bytes_give_a_document_or_a_recipe_error(data: bytes) -> None:
    give(data)


YAML_PIECES = st.sampled_from(
    [
        *"[]{}:,-?&*!|>'\"%@`#~ \t\n\r\\",
        *("a", ": ", "- ", "\n  ", "&a", "*a", "<<: ", "---\n", "...", "%YAML 9.9\n", "!!"),
        *("\\x", "\\U0011FFFF", "\\u2028", "\u0085", "\ufeff", "0o7"),
    ]
)


@given(st.lists(YAML_PIECES, max_size=40).map("".join))
def test_any_mixture_of_signs_gives_a_document_or_a_recipe_error(text: str) -> None:
    give(text.encode())


def give(data: bytes) -> None:
    outcome: Document | RecipeError
    try:
        outcome = parse_document(data, FILE)
    except RecipeError as error:
        outcome = error
    if isinstance(outcome, RecipeError):
        assert outcome.problems
        assert str(outcome).encode()  # no halves of surrogates: it can be printed
    else:
        assert set(outcome.lines) == set(places(outcome.value, ()))


def places(value: Any, at: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
    children: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    return [at, *(place for key, item in children for place in places(item, (*at, key)))]


WORDS = st.text(st.characters(exclude_categories=("C", "Zl", "Zp"), include_characters="\t\n"))
VALUES = st.recursive(
    WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([True, False]))
def test_what_yaml_writes_is_read_back(value: Any, flow: object) -> None:
    text = yaml.safe_dump(
        value, default_flow_style=bool(flow), allow_unicode=True, default_style='"'
    )
    assert parse(text).value == value


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def refuse_odd(numbers: tuple[int, ...]) -> tuple[int, ...]:
    flaws = [
        Flaw(message=f"{number} is odd", hint="take an even one", at=(index,))
        for index, number in enumerate(numbers)
        if number % 2
    ]
    if flaws:
        raise Refused(*flaws)
    return numbers


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Wheel(Strict):
    wheel: str


class Git(Strict):
    repository: str
    ref: str


class Example(Strict):
    name: str
    count: int = 1
    flag: bool = False
    kind: Literal["small", "large"] = "small"
    source: Wheel | Git | None = None
    choices: dict[str, tuple[Wheel | Git, ...]] = {}
    even: Annotated[tuple[int, ...], AfterValidator(refuse_odd)] = ()
    some: Annotated[tuple[str, ...], Field(min_length=1)] = ("x",)
    alias: Annotated[str, Field(alias="from")] = ""


def test_a_sound_document_becomes_the_model() -> None:
    text = "name: 3.10\ncount: 7\nflag: yes\nfrom: here\nsource: {repository: r, ref: 1.0}\n"
    example = validate(Example, parse(text))
    assert (example.name, example.count, example.flag, example.alias) == ("3.10", 7, True, "here")
    assert example.source == Git(repository="r", ref="1.0")


INVALID = [
    ("count: 2\n", 1, "name", "is missing", None),
    ("name: x\ncuont: 2\n", 2, "cuont", "unknown key", "did you mean `count` instead of `cuont`?"),
    ("name: x\nform: 2\n", 2, "form", "unknown key", "did you mean `from` instead of `form`?"),
    ("name: x\nzzz: 2\n", 2, "zzz", "unknown key", "the keys are name, count, flag, kind, source"),
    ("name: x\ncount: many\n", 2, "count", "expected a whole number, found 'many'", None),
    ("name: x\nflag: perhaps\n", 2, "flag", "expected true or false, found 'perhaps'", None),
    ("name: x\nkind: tiny\n", 2, "kind", "expected 'small' or 'large', found 'tiny'", None),
    ("name: [x]\n", 1, "name", "expected text, found a list", None),
    ("name: {x: y}\n", 1, "name", "expected text, found a mapping", None),
    ("name: x\nsome: y\n", 2, "some", "expected a list, found text", "a list is written `[a, b]`"),
    ("name: x\nsome: []\n", 2, "some", "must hold at least one item", None),
    ("name: x\nchoices: y\n", 2, "choices", "expected a mapping (`key: value`), found text", None),
    ("name: x\neven:\n- 2\n- 3\n", 4, "even[1]", "3 is odd", "take an even one"),
    ("name:\n", 1, "name", "has no value", "write a value, or delete the line"),
    ("name: x\nsome: [a, ~]\n", 2, "some[1]", "has no value", None),
    ("- name: x\n", 1, None, "expected a mapping (`key: value`), found a list", None),
    ("name\n", 1, None, "expected a mapping (`key: value`), found text", None),
]


@pytest.mark.parametrize(("text", "line", "field", "message", "hint"), INVALID)
def test_what_the_model_refuses_is_named_in_plain_words(
    text: str, line: int, field: str | None, message: str, hint: str | None
) -> None:
    with pytest.raises(RecipeError) as caught:
        validate(Example, parse(text))
    (problem,) = caught.value.problems
    assert (problem.line, problem.field, problem.message) == (line, field, message)
    assert (problem.hint or "").startswith(hint or "")


def test_keys_of_unions_and_of_nested_places_are_known() -> None:
    text = "name: x\nchoices:\n  a:\n    - wheel: w\n    - repository: r\n      reff: 1\n"
    with pytest.raises(RecipeError) as caught:
        validate(Example, parse(text))
    unknown = [p for p in caught.value.problems if p.message == "unknown key"]
    assert [(p.line, p.field, p.hint) for p in unknown if p.field == "choices.a[1].reff"] == [
        (6, "choices.a[1].reff", "did you mean `ref` instead of `reff`?")
    ]


def test_a_long_or_secret_text_is_not_repeated() -> None:
    with pytest.raises(RecipeError) as caught:
        validate(Example, parse(f"name: x\nchoices: hush\ncount: {'9x' * 40}\n"))
    assert "hush" not in str(caught.value)
    assert "9x9x" not in str(caught.value)


def test_all_problems_come_at_once_in_line_order() -> None:
    text = "zzz: 1\ncount: many\neven: [1, 2, 3]\nflag:\nsome: []\n"
    with pytest.raises(RecipeError) as caught:
        validate(Example, parse(text))
    assert [(problem.line, problem.field) for problem in caught.value.problems] == [
        (1, "name"),
        (1, "zzz"),
        (2, "count"),
        (3, "even[0]"),
        (3, "even[2]"),
        (4, "flag"),
        (5, "some"),
    ]


def test_places_and_near_words() -> None:
    assert dotted(("files", 0, "to")) == "files[0].to"
    assert dotted(()) == ""
    assert nearest("pakages", ["packages", "python"]) == "packages"
    assert nearest("zzz", ["packages", "python"]) is None
