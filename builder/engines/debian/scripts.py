"""Maintainer scripts, read and never run: which of their lines could matter to an image.

A script is taken apart into logical lines. What debhelper added between its own marks is judged by
the tool that added it, what merely frames the rest says nothing, and alternatives are understood;
the first line that is left is what a refusal quotes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^# Automatically added by (?P<tool>[\w-]+)(?:/\S*)?\n(?P<body>.*?)"
    r"^# End automatically added section$",
    re.MULTILINE | re.DOTALL,
)
_WORDS = r"(?:configure|install|upgrade|triggered|failed-upgrade|abort-[a-z]+)"
_ACTION = r"""["']?\$\{?1\}?["']?"""
_TEST = rf"""\[\ {_ACTION}\ ==?\ ["']?{_WORDS}["']?\ \]"""
_FRAME = re.compile(
    rf"""
      set\ [+-][a-z]+ | exit\ [01] | : | true | fi | esac | ;; | umask\ 0?22
    | (?:LC_ALL|LANG)=C | export\ (?:LC_ALL|LANG)=C
    | if\ {_TEST}(?:\ \|\|\ {_TEST})* \s*;\ then
    | case\ {_ACTION}\ in
    | \(?\s*{_WORDS}(?:\s*\|\s*{_WORDS})*\s*\)\s*(?:;;)?
    | \(?\*\)
    | echo\ .*called\ with\ (?:unknown|an\ unknown).*
    | \.\ /usr/share/debconf/confmodule | db_version\ 2\.0 | db_stop(?:\ \|\|\ true)?
    | ldconfig
    | update-alternatives\ (?:--quiet\ )?--remove\ .*
    """,
    re.VERBOSE,
)
_ALTERNATIVE = re.compile(r"update-alternatives\s+(?:--quiet\s+)?--install\s+(?P<words>.*)")
_LITERAL = re.compile(r"[A-Za-z0-9_./+~:@%,-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slave:
    """A link that follows its master's choice: `link` → /etc/alternatives/`name` → `path`."""

    link: str
    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One candidate for a name that several packages provide, as update-alternatives(1) has it."""

    link: str
    name: str
    path: str
    priority: int
    slaves: tuple[Slave, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a script says: alternatives, and the first line that nothing here understands."""

    alternatives: tuple[Alternative, ...]
    telling: str | None


def read_script(text: str, harmless_tools: Collection[str]) -> Reading:
    """Read a preinst or postinst; blocks of debhelper's `harmless_tools` count for nothing."""
    alternatives: list[Alternative] = []
    telling: str | None = None
    for line in _logical_lines(_without_blocks(text, harmless_tools)):
        alternative = read_alternative(line)
        if alternative is not None:
            alternatives.append(alternative)
        elif telling is None and not _FRAME.fullmatch(line):
            telling = line
    return Reading(alternatives=tuple(alternatives), telling=telling)


def read_alternative(line: str) -> Alternative | None:
    """`update-alternatives --install …` with nothing in it that a shell would expand."""
    match = _ALTERNATIVE.fullmatch(line.removesuffix("|| true").rstrip())
    if match is None:
        return None
    words = match["words"].split()
    if len(words) < 4 or not all(_LITERAL.fullmatch(word) for word in words):
        return None
    link, name, path, priority, *rest = words
    groups = [rest[start : start + 4] for start in range(0, len(rest), 4)]
    if any(len(group) != 4 or group[0] != "--slave" for group in groups):
        return None
    if not re.fullmatch(r"-?\d+", priority):
        return None
    slaves = tuple(Slave(link=g[1], name=g[2], path=g[3]) for g in groups)
    return Alternative(link=link, name=name, path=path, priority=int(priority), slaves=slaves)


def _without_blocks(text: str, harmless_tools: Collection[str]) -> str:
    """`text` with debhelper's harmless blocks reduced to the alternatives that they install."""

    def reduce(match: re.Match[str]) -> str:
        if match["tool"] not in harmless_tools:
            return match["body"]
        lines = _logical_lines(match["body"])
        return "\n".join(line for line in lines if read_alternative(line) is not None)

    return _BLOCK.sub(reduce, text)


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blanks, continued ones joined, white space made single.

    A comment ends a continued line, and the backslash at its own end continues nothing (POSIX
    shell, 2.3 Token Recognition).
    """
    parts: list[str] = []
    for line in text.splitlines():
        comment = line.lstrip().startswith("#")
        if not comment:
            parts.append(line.rstrip("\\"))
        if comment or not line.endswith("\\"):
            joined = " ".join(" ".join(parts).split())
            parts = []
            if joined:
                yield joined
