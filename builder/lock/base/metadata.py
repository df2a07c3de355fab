"""What installed packages say about themselves, from the texts beside them.

Formats: the core metadata (PEP 566 and its successors), "Recording installed projects" and "Entry
points" of the PyPA specifications, and setuptools' older egg-info.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name, is_normalized_name

METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
"""Where a wheel keeps its metadata."""

_SECTION = re.compile(r"\[(?P<extra>[^:\]]*)(?::(?P<marker>.*))?\]")
_CONTINUED = re.compile(r"\\\n[ \t]*")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
# The letters that the specification recommends; nothing else makes a file name everywhere.
_SCRIPT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}", re.ASCII)
_PYTHON = re.compile(r"python[0-9.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """`name` is normalised (PEP 503), `version` as written; `requires` are Requires-Dist lines."""

    name: str
    version: str
    requires: tuple[str, ...] = ()


def parse_metadata(text: str) -> Metadata | None:
    """METADATA's or PKG-INFO's header; None where it names no package or no version."""
    raw, _ = parse_email(text)
    name = canonicalize_name(raw.get("name", ""))
    version = raw.get("version", "").strip()
    if not is_normalized_name(name) or not version:
        return None
    return Metadata(
        name=name,
        version=version,
        requires=tuple(" ".join(line.split()) for line in raw.get("requires_dist", ())),
    )


def parse_requires(metadata: bytes) -> tuple[str, ...]:
    """The Requires-Dist lines of a wheel's METADATA, as they are written."""
    return tuple(parse_email(metadata)[0].get("requires_dist", ()))


def parse_egg_requires(text: str) -> tuple[str, ...]:
    """An egg-info's requires.txt as Requires-Dist would say it (PEP 508).

    A section `[extra:marker]`, either part of which may be missing, holds for the lines after it.
    """
    return tuple(_egg_requires(text))


def _egg_requires(text: str) -> Iterator[str]:
    condition = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            continue
        section = _SECTION.fullmatch(line)
        if section is None:
            # A URL ends at a blank only (PEP 508, "Grammar").
            yield f"{line} ; {condition}" if condition else line
            continue
        marker, extra = section["marker"], section["extra"].strip()
        parts = [f"({marker.strip()})"] if marker else []
        if extra:
            parts.append(f'extra == "{extra}"')
        condition = " and ".join(parts)


class EntryPoints(configparser.RawConfigParser):
    """entry_points.txt, in which names keep their case."""

    def __init__(self) -> None:
        super().__init__(delimiters=("=",), strict=False)

    def optionxform(self, optionstr: str) -> str:
        """The name as it is written."""
        return optionstr


def parse_scripts(text: str) -> Mapping[str, str]:
    """The console scripts of entry_points.txt, from a name to `module:function`.

    What is not well formed is left out: no installer could make a script of it. So is what would
    stand in the place of an environment's own Python.
    """
    parser = EntryPoints()
    try:
        parser.read_string("\n".join(map(str.strip, text.splitlines())))  # old ones are indented
        written = parser.items("console_scripts")
    except configparser.Error:
        return {}
    found = {name: reference.partition("[")[0].strip() for name, reference in written if reference}
    return {
        name: reference
        for name, reference in found.items()
        if is_script_name(name) and _is_reference(reference)
    }


def is_script_name(name: str) -> bool:
    """Whether a script of an environment may be called so, beside its own `python`."""
    return bool(_SCRIPT_NAME.fullmatch(name)) and not _PYTHON.fullmatch(name)


def _is_reference(text: str) -> bool:
    module, colon, function = text.partition(":")
    return bool(colon) and all(
        part.isidentifier() for part in [*module.split("."), *function.split(".")]
    )


def parse_constraints(text: str) -> tuple[str, ...]:
    """The requirements of a constraints file as pip reads it: no comments, no blanks, no options.

    Source: pip, "Requirements File Format" (comments, line continuations).
    """
    lines = _CONTINUED.sub("", text.replace("\r\n", "\n")).split("\n")
    stripped = (_COMMENT.sub("", line).strip() for line in lines)
    return tuple(dict.fromkeys(line for line in stripped if line and not line.startswith("-")))
