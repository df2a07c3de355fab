"""requirements.txt: the requirements in a file that pip would read, and in those it includes.

The format is pip's (https://pip.pypa.io/en/stable/reference/requirements-file-format/): comments,
lines continued with a backslash, `-r FILE` relative to the file it stands in. What would make pip
choose other files than the requirements say (an index, constraints, hashes) is never passed over
unseen: it is refused, or ignored where the caller knows that it has no meaning.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement

from builder.errors import Problem, RecipeError
from builder.recipe.fields import canonical_requirement

_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_INCLUDE = re.compile(r"(?:-r|--requirement(?=[\s=]))[\s=]*(\S.*)")
_OPTIONS_BEGIN = re.compile(r"(?:^|\s+)(?=-)")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HARMLESS = ("--only-binary", "--prefer-binary")  # only wheels are locked
_INDEX_HINT = "name the index under `indexes` in the recipe, and what it is for under `sources`"
_OPTION_HINTS = {
    "-i": _INDEX_HINT,
    "--index-url": _INDEX_HINT,
    "--extra-index-url": _INDEX_HINT,
    "-f": _INDEX_HINT,
    "--find-links": _INDEX_HINT,
    "-c": "write the constraints under `resolve: {constraints: […]}` in the recipe",
    "--constraint": "write the constraints under `resolve: {constraints: […]}` in the recipe",
    "--pre": "write `resolve: {prerelease: allow}` in the recipe",
    "--hash": "the lock has its own hashes; name the file that this one was compiled from",
}
_URL_HINT = "write the name alone here, and the URL under `sources` in the recipe"

Include = Callable[[str], str]
"""Path of an included file → its text; raises OSError or UnicodeDecodeError, as reading does."""


def parse_requirements(
    text: str,
    *,
    source: str,
    include: Include,
    options: Literal["refuse", "ignore"] = "refuse",
) -> tuple[str, ...]:
    """The requirements (PEP 508) in `text`, in one spelling, each once; included ones come last.

    `source` is the file's path; an included path is joined to its folder and normalised, then
    handed to `include`. With `options="ignore"` pip's options, its constraints and hashes among
    them, are passed over: for files of a package, whose metadata can say no such thing either.
    Files and URLs in a requirement's place are refused always, as no lock could hold them.

    Raises RecipeError with every problem, its file and line.
    """
    reader = _Reader(include, ignore_options=options == "ignore")
    reader.read(text, source)
    if reader.problems:
        raise RecipeError(reader.problems)
    return tuple(dict.fromkeys(reader.found))


class _Reader:
    """Gathers what is found and what is wrong; every file is read once, so loops end."""

    def __init__(self, include: Include, *, ignore_options: bool) -> None:
        self._include = include
        self._ignore_options = ignore_options
        self._read: set[str] = set()
        self.found: list[str] = []
        self.problems: list[Problem] = []

    def read(self, text: str, source: str) -> None:
        pending = [(text, posixpath.normpath(source))]
        self._read.add(posixpath.normpath(source))
        while pending:
            text, source = pending.pop(0)
            for number, line in _logical_lines(text):
                included = _INCLUDE.fullmatch(line)
                if included is not None:
                    pending += self._included(included[1], source, number)
                else:
                    self._line(line, source, number)

    def _included(self, name: str, source: str, number: int) -> list[tuple[str, str]]:
        """Text and path of the file that a line names; none where it was read already."""
        if _SCHEME.match(name) or _VARIABLE.search(name):
            what = "a variable" if _VARIABLE.search(name) else "a URL"
            self._refuse(source, number, f"includes {what}; only files can be included")
            return []
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        if path in self._read:
            return []
        self._read.add(path)
        try:
            return [(self._include(path), path)]
        except OSError as error:
            self._refuse(source, number, f"{path}: {error.strerror or error}")
        except UnicodeDecodeError:
            self._refuse(source, number, f"{path}: is not UTF-8")
        return []

    def _line(self, line: str, source: str, number: int) -> None:
        parts = _OPTIONS_BEGIN.split(line, maxsplit=1)
        if len(parts) == 2:
            self._option(parts[1], source, number)
        if parts[0]:
            self._requirement(parts[0], source, number)

    def _option(self, text: str, source: str, number: int) -> None:
        name = re.split(r"[\s=]", text)[0] if text.startswith("--") else text[:2]
        if name in ("-e", "--editable"):
            self._refuse(source, number, "names a file or a URL", hint=_URL_HINT)
        elif name in ("-r", "--requirement"):
            self._refuse(source, number, f"`{name}` names no file")
        elif name not in _HARMLESS and not self._ignore_options:
            message = f"the option `{name}` is not followed here"
            self._refuse(source, number, message, hint=_OPTION_HINTS.get(name))

    def _requirement(self, text: str, source: str, number: int) -> None:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            place = text.startswith((".", "/", "~")) or _SCHEME.search(text) or "/" in text
            message = "names a file or a URL" if place else f"`{text}` is not a requirement"
            self._refuse(source, number, message, hint=_URL_HINT if place else None)
            return
        if requirement.url is not None:
            message = f"`{requirement.name}` comes from a URL"
            self._refuse(source, number, message, hint=_URL_HINT)
            return
        self.found.append(canonical_requirement(text))

    def _refuse(self, source: str, line: int, message: str, *, hint: str | None = None) -> None:
        self.problems.append(Problem(file=source, line=line, message=message, hint=hint))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Number of its first line, and each line without comment, after joining continued ones."""
    begun: list[str] = []
    first = 0
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        first = first if begun else number
        comment = _COMMENT.match(line) is not None
        if line.endswith("\\") and not comment:
            begun.append(line.rstrip("\\"))
            continue
        # As in pip, a comment line ends what was continued, and stays a comment there.
        whole = "".join([*begun, f" {line}" if comment else line])
        begun = []
        if bare := _COMMENT.sub("", whole).strip():
            yield first, bare
    if begun and (bare := _COMMENT.sub("", "".join(begun)).strip()):
        yield first, bare
