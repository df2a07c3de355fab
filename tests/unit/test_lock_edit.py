"""Editing a recipe's text: exactly the named values change, whatever the text looks like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.document import Where, parse_document
from builder.errors import UsageError
from builder.lock.changes.edit import Change, apply, unified

RECIPE = """\
# the base and its tag
base: {image: "nvcr.io/nvidia/cuda:13.0.2-base-ubuntu24.04"}   # 13.0.2 is what we tested
torch:
    version: '2.9.0'  # 2.9.0, not 2.9.1
    from: wheel

packages: [
  vllm==0.13.0,   # as in production
  "transformers[torch] == 4.57.1 ; python_version >= '3.10'",
]
"""


def change(at: Where, old: str, new: str) -> Change:
    return Change(at=at, line=1, old=old, new=new, reason="the newest")


def test_only_the_values_change() -> None:
    changes = [
        change(("torch", "version"), "2.9.0", "2.13.0"),
        change(("packages", 0), "vllm==0.13.0", "vllm==0.32.0"),
        change(
            ("packages", 1),
            "transformers[torch] == 4.57.1 ; python_version >= '3.10'",
            "transformers[torch] == 5.0.0 ; python_version >= '3.10'",
        ),
        change(
            ("base", "image"),
            "nvcr.io/nvidia/cuda:13.0.2-base-ubuntu24.04",
            "nvcr.io/nvidia/cuda:13.3.1-base-ubuntu24.04",
        ),
    ]
    assert apply(RECIPE, changes) == (
        RECIPE.replace("cuda:13.0.2", "cuda:13.3.1")
        .replace("'2.9.0'", "'2.13.0'")
        .replace("0.13.0", "0.32.0")
        .replace("4.57.1", "5.0.0")
    )


def test_no_changes_leave_the_text() -> None:
    assert apply(RECIPE, []) == RECIPE


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ("a: '2.9'\r\nb: 1 # é\r\n", "a: '2.10'\r\nb: 1 # é\r\n"),
        ("\ufeffa: 2.9\n", "\ufeffa: 2.10\n"),
        ("a: 2.9", "a: 2.10"),
        ("a: >-\n  2.9\nb: 1\n", "a: >-\n  2.10\nb: 1\n"),
        ("b: &a 2.9\na: &b 2.9 # 2.9\n", "b: &a 2.9\na: &b 2.10 # 2.9\n"),
        ('a: "2\\u002e9"\n', 'a: "2.10"\n'),
        ('{"a":"2.9","b":2.9}', '{"a":"2.10","b":2.9}'),
        ("? a\n: 2.9\n", "? a\n: 2.10\n"),
    ],
    ids=["crlf", "mark", "no newline", "block", "anchors", "escape", "json", "explicit key"],
)
def test_odd_layouts(text: str, edited: str) -> None:
    assert apply(text, [change(("a",), "2.9", "2.10")]) == edited


def test_text_over_several_lines_becomes_one() -> None:
    text = 'a: ["vllm\n    ==0.13.0"] # folded\n'
    edited = apply(text, [change(("a", 0), "vllm ==0.13.0", "vllm ==0.32.0")])
    assert edited == 'a: ["vllm ==0.32.0"] # folded\n'


@pytest.mark.parametrize("text", ["b: &v 2.9\na: *v\n", "a: &v 2.9\nb: *v\n"])
def test_what_others_refer_to_is_left_to_people(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be changed alone") as caught:
        apply(text, [change(("a",), "2.9", "2.10")])
    assert caught.value.hint == "change them by hand:\nline 1: a: 2.10"


def test_a_text_that_moved_on_is_refused() -> None:
    for at in (("torch", "version"), ("torch", "index"), ("packages", 9), ("packages", "x")):
        with pytest.raises(UsageError, match=r"is not `9\.9` any more"):
            apply(RECIPE, [change(at, "9.9", "10")])


def plain(text: str) -> str:
    return text


def single(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def double(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


_STYLES = st.sampled_from([plain, single, double])
_VERSION = st.from_regex(r"[0-9]{1,2}\.[0-9]{1,2}(\.[0-9]{1,2})?", fullmatch=True)
_COMMENT = st.text(st.sampled_from("ab =:.,'\"#[]{}019é"), max_size=12).map(
    lambda text: f" # {text}"
)


@st.composite
def recipes(draw: st.DrawFn) -> tuple[str, list[tuple[Where, str]]]:
    """A text with comments and odd layout, and its scalars in order."""
    flow, indent = draw(st.booleans()), " " * draw(st.integers(0, 4))
    style: Callable[[str], str]
    items: list[str] = []
    scalars: list[tuple[Where, str]] = []
    for index in range(draw(st.integers(1, 4))):
        value = f"pkg{index}=={draw(_VERSION)}"
        style, comment = draw(_STYLES), draw(_COMMENT)
        scalars.append((("packages", index), value))
        items.append(
            f"{indent} {style(value)},{comment}\n"
            if flow
            else f"{indent}- {style(value)}{comment}\n"
        )
    version, style, comment = draw(_VERSION), draw(_STYLES), draw(_COMMENT)
    scalars.append((("torch", "version"), version))
    body = f"[\n{''.join(items)}{indent} ]" if flow else f"{draw(_COMMENT)}\n{''.join(items)}"
    text = f"{comment}\npackages: {body}\ntorch:{comment}\n  version:   {style(version)}{comment}\n"
    return text, scalars


@given(recipes(), st.data())
def test_exactly_the_chosen_values_change(
    recipe: tuple[str, list[tuple[Where, str]]], data: st.DataObject
) -> None:
    text, scalars = recipe
    chosen = data.draw(st.lists(st.sampled_from(scalars), unique=True))
    changes = [change(at, old, old + ".7777") for at, old in chosen]
    edited = apply(text, changes)
    value = parse_document(edited.encode(), Path("edited")).value
    for at, old in scalars:
        now = value[at[0]][at[1]]
        assert now == (f"{old}.7777" if (at, old) in chosen else old)
    assert edited.replace(".7777", "") == text
    assert edited.count(".7777") == len(chosen)


def test_a_unified_diff() -> None:
    old = "a: 1\nb: 2.9\r\nc: 3"
    diff = unified(Path("recipes/vllm.yaml"), old, old.replace("2.9", "2.10"))
    assert diff == (
        "--- a/vllm.yaml\n+++ b/vllm.yaml\n@@ -1,3 +1,3 @@\n"
        " a: 1\n-b: 2.9\r\n+b: 2.10\r\n c: 3\n\\ No newline at end of file\n"
    )
    assert unified(Path("a.yaml"), old, old) == ""
    assert unified(Path("a b.yaml"), old, "").startswith("--- a/a b.yaml\t\n+++ b/a b.yaml\t\n")


def test_a_change_names_its_field() -> None:
    assert change(("packages", 0), "a==1", "a==2").field == "packages[0]"
    assert change(("torch", "version"), "1", "2").field == "torch.version"
