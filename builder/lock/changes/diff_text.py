"""A difference between two locks for people: lines for a terminal, Markdown for a pull request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from builder.lock.changes.diff import KINDS, Area, Change, Difference, Kind
from builder.progress import format_size, printable

_LISTS = {Area.SYSTEM: "distribution packages", Area.PACKAGE: "packages"}
_OPEN_ROWS = 10  # what is longer is to be unfolded
_SIGNS: dict[Kind, str] = {"changed": "~", "added": "+", "removed": "-"}
_AWKWARD = re.compile(r"[|\\`]")  # what ends a cell or a code span, whatever it stands in
_PLAIN = re.compile(r"[A-Za-z0-9 .,:;()/→+-]*")


def headline(difference: Difference) -> str:
    """The weightiest change in one line, fit for the title of a pull request."""
    if difference.identical:
        return "the locks are identical"
    if not difference.changes:
        return "nothing that goes into the image differs"
    first = difference.changes[0]
    if first.area in _LISTS:
        return "; ".join(_tallies(difference))
    return str(first)


def lines(difference: Difference) -> tuple[str, ...]:
    """The whole difference in plain lines, the weightiest change first."""
    if not difference.changes:
        return (headline(difference),)
    told = [str(change) for change in difference.changes if change.area not in _LISTS]
    for area, title in _LISTS.items():
        changes = _changes(difference, area)
        if changes:
            told.append(f"{title}: {_tally(changes)}")
            told += [f"  {_line(change)}" for change in changes]
    return (*told, f"size: {_total(difference)}")


def markdown(difference: Difference) -> str:
    """The whole difference in GitHub's Markdown: headline, table, lists, the long ones folded.

    Names and versions stand in code, where nothing in them is markup, a mention or a link
    (https://github.github.com/gfm/#code-spans).
    """
    parts = [f"**{_words(headline(difference))}**"]
    names = " → ".join(dict.fromkeys(map(_code, (difference.old, difference.new))))
    parts.append(f"{names}: {_total(difference)}")
    weighty = [change for change in difference.changes if change.area not in _LISTS]
    if weighty:
        parts.append(_table(("", "old", "new", ""), map(_weighty_row, weighty)))
    for area, title in _LISTS.items():
        changes = _changes(difference, area)
        if changes:
            parts += _group(f"{title}: {_tally(changes)}", changes, headline(difference))
    return "\n\n".join(parts) + "\n"


def _group(title: str, changes: Sequence[Change], above: str) -> Iterator[str]:
    """A list under its title, which is not told again where the line `above` is just that."""
    table = _table(("", "old", "new", "size", ""), map(_package_row, changes))
    if len(changes) > _OPEN_ROWS:
        yield f"<details>\n<summary>{title}</summary>\n\n{table}\n\n</details>"
        return
    if title != above:
        yield title
    yield table


def _changes(difference: Difference, area: Area) -> list[Change]:
    return [change for change in difference.changes if change.area is area]


def _tallies(difference: Difference) -> Iterator[str]:
    for area, title in _LISTS.items():
        if changes := _changes(difference, area):
            yield f"{title}: {_tally(changes)}"


def _tally(changes: Sequence[Change]) -> str:
    counts = Counter(change.kind for change in changes)
    return ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])


def _line(change: Change) -> str:
    versions = " → ".join(dict.fromkeys(filter(None, (change.old, change.new))))
    detail = f" ({', '.join(change.detail)})" if change.detail else ""
    size = _sizes(change)
    return f"{_SIGNS[change.kind]} {change.subject} {versions}{detail}{f', {size}' * bool(size)}"


def _sizes(change: Change) -> str:
    sizes = [size for size in (change.old_bytes, change.new_bytes) if size is not None]
    return " → ".join(dict.fromkeys(map(format_size, sizes)))


def _total(difference: Difference) -> str:
    old, new = difference.old_bytes, difference.new_bytes
    if old == new:
        return f"{format_size(new)}, as before"
    sign = "+" if new > old else "-"
    sizes = " → ".join(dict.fromkeys(map(format_size, (old, new))))
    return f"{sizes} ({sign}{format_size(abs(new - old))})"


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    ruled = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled)


def _weighty_row(change: Change) -> tuple[str, ...]:
    detail = "<br>".join(map(_words, change.detail))
    return _code(change.subject), _cell(change.old), _cell(change.new), detail


def _package_row(change: Change) -> tuple[str, ...]:
    name = f"{_SIGNS[change.kind]} {change.subject}"
    detail = _words(", ".join(change.detail))
    return _code(name), _cell(change.old), _cell(change.new), _sizes(change), detail


def _cell(text: str | None) -> str:
    return "" if text is None else _code(text)


def _words(text: str) -> str:
    """Our words as they are; whatever could be markup in them, or a mention, as code."""
    return text if _PLAIN.fullmatch(text) else _code(text)


def _code(text: str) -> str:
    """`text` as code in one line; by character references where a code span would not hold it."""
    flat = " ".join(printable(text).split())
    if not _AWKWARD.search(flat):
        return f"`{flat}`"
    safe = (char if char.isalnum() or char == " " else f"&#{ord(char)};" for char in flat)
    return f"<code>{''.join(safe)}</code>"
