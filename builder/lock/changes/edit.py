"""Changing single values in the text of a recipe; every other character stays as it is."""

from __future__ import annotations

import difflib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from builder.document import Where, dotted, parse_document
from builder.errors import RecipeError, UsageError

_FLOW_STYLES = (None, "'", '"')
_SOURCE = Path("the recipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One text in a recipe that is to be another; `line` is 1-based, `reason` is for people."""

    at: Where
    line: int
    old: str
    new: str
    reason: str

    @property
    def field(self) -> str:
        """The place as people write it: `packages[0]`."""
        return dotted(self.at)


def apply(text: str, changes: Sequence[Change]) -> str:
    """The recipe's `text` with the changes made, and nothing else changed.

    Raises UsageError where the text is not the one that they were proposed for, or where a value
    is written so that it cannot be changed alone: with an anchor that others refer to, say.
    """
    before = parse_document(text.encode(), _SOURCE)
    places = dict(_places(yaml.compose(text, Loader=yaml.BaseLoader), ()))
    for change in changes:
        if _value(before.value, change.at) != change.old:
            raise UsageError(
                f"line {change.line}: {change.field}: is not `{change.old}` any more",
                hint="run `spark-build bump RECIPE` again",
            )
    edited, expected = text, before.value
    for change in sorted(changes, key=lambda item: places[item.at].start, reverse=True):
        place = places[change.at]
        written = place.rewritten(text[place.start : place.end], change)
        edited = edited[: place.start] + written + edited[place.end :]
        expected = _with(expected, change.at, change.new)
    if _parsed(edited) != expected:
        raise _by_hand(changes)
    return edited


def unified(path: Path, old: str, new: str) -> str:
    """The change of the file's text as a unified diff, empty for none.

    It names the file as seen from its folder: `patch -p1 -d FOLDER` takes it.
    """
    end = "\t" if " " in path.name else ""  # without it `patch` takes a part of the name
    before, after = f"a/{path.name}{end}", f"b/{path.name}{end}"
    lines = difflib.unified_diff(_lines(old), _lines(new), fromfile=before, tofile=after)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _lines(text: str) -> list[str]:
    return io.StringIO(text, newline="\n").readlines()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a scalar stands in a text, quotes and anchor included, and how it is written."""

    start: int
    end: int
    style: str | None

    def rewritten(self, written: str, change: Change) -> str:
        """The characters that stand there, with the new value in place of the old one."""
        if written.count(change.old) == 1:
            return written.replace(change.old, change.new)
        if self.style in _FLOW_STYLES:  # escapes, or several lines
            return json.dumps(change.new, ensure_ascii=False)
        return written


def _places(node: yaml.Node | None, at: Where) -> Iterator[tuple[Where, _Place]]:
    """Every scalar of a document that `parse_document` takes; an alias is where its anchor is."""
    if isinstance(node, yaml.ScalarNode):
        yield at, _Place(node.start_mark.index, node.end_mark.index, node.style)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _places(item, (*at, index))
    elif isinstance(node, yaml.MappingNode):
        for key, item in node.value:
            yield from _places(item, (*at, key.value))


def _value(value: Any, at: Where) -> Any:
    """What is at a place; None where there is no such place."""
    for part in at:
        fits = isinstance(value, dict) if isinstance(part, str) else isinstance(value, list)
        if not fits or (part not in value if isinstance(part, str) else part >= len(value)):
            return None
        value = value[part]
    return value


def _with(value: Any, at: Where, new: str) -> Any:
    """A copy of `value` that has `new` at a place."""
    if not at:
        return new
    copy = value.copy()
    copy[at[0]] = _with(value[at[0]], at[1:], new)
    return copy


def _parsed(text: str) -> Any:
    try:
        return parse_document(text.encode(), _SOURCE).value
    except RecipeError:
        return None


def _by_hand(changes: Sequence[Change]) -> UsageError:
    lines = [f"line {change.line}: {change.field}: {change.new}" for change in changes]
    return UsageError(
        "the recipe is written so that its values cannot be changed alone (anchors, folded text)",
        hint="change them by hand:\n" + "\n".join(lines),
    )
