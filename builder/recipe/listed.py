"""Requirements that people have in a file already: a requirements.txt or a pyproject.toml.

Of a pyproject.toml its `[project]` table (PEP 621) and its dependency groups (PEP 735) are read;
what it asks of one installer, such as `[tool.uv]`, is not followed, but `Listing.placed` tells
which packages it takes from places of its own.
"""

from __future__ import annotations

import codecs
import errno
import stat
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from packaging.dependency_groups import DependencyGroupInclude, DependencyGroupResolver
from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, ValidationError

from builder.document import nearest
from builder.errors import Problem, RecipeError
from builder.recipe.fields import canonical_requirement
from builder.recipe.requirements_file import parse_requirements

_SIZE_MAX_BYTES = 1 << 20
_EXTRAS_MAX = 64  # an extra under a marker counts of its own
_URL_HINT = "write its name alone there, and where it comes from under `sources` in the recipe"
_DYNAMIC_HINT = "name the file that they are read from: `packages: [{requirements: …}]`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What one file lists, in one spelling, each once.

    `source` is its path relative to the recipe; `requires_python` and `placed` are a
    pyproject.toml's: the Pythons that it is for, and the packages (normalised names) that its
    `[tool.uv.sources]` takes from elsewhere than an index.
    """

    source: str
    requirements: tuple[str, ...]
    requires_python: str | None = None
    placed: frozenset[str] = frozenset()


def list_requirements(folder: Path, source: str) -> Listing:
    """The requirements.txt at `source`, relative to `folder`, and the files that it includes.

    Raises RecipeError with every problem, its file and line.
    """
    text = _read(folder, source)
    found = parse_requirements(text, source=source, include=lambda path: _text(folder, path))
    return Listing(source=source, requirements=found)


def list_pyproject(
    folder: Path, source: str, *, extras: Sequence[str] = (), groups: Sequence[str] = ()
) -> Listing:
    """The dependencies in the pyproject.toml at `source`, with these extras and groups.

    Raises RecipeError with every problem, its file and, where it can be told, its line.
    """
    text = _read(folder, source)
    file = _parse(text, source)
    reader = _Reader(file, source, text)
    found = tuple(dict.fromkeys(reader.read(extras, groups)))
    if reader.problems:
        raise RecipeError(reader.problems)
    return Listing(
        source=source,
        requirements=found,
        requires_python=file.project.requires_python if file.project else None,
        placed=frozenset(map(canonicalize_name, file.tool.uv.sources)),
    )


def combine(texts: Iterable[str]) -> tuple[str, ...]:
    """The requirements, with those of one package under the same marker joined into one.

    Where several files ask for a package, all that they ask has to hold.
    """
    joined: dict[tuple[str, str], Requirement | str] = {}
    for text in texts:
        requirement = Requirement(text)
        key = (canonicalize_name(requirement.name), str(requirement.marker or ""))
        first = joined.setdefault(key, text)
        if first is text:
            continue
        whole = Requirement(first) if isinstance(first, str) else first
        whole.extras |= requirement.extras
        whole.specifier &= requirement.specifier
        joined[key] = whole
    return tuple(
        part if isinstance(part, str) else canonical_requirement(str(part))
        for part in joined.values()
    )


def _read(folder: Path, source: str) -> str:
    try:
        return _text(folder, source)
    except UnicodeDecodeError:
        message = "is not UTF-8"
    except OSError as error:
        message = error.strerror or "cannot be read"
    except ValueError:  # a NUL byte in the name
        message = "cannot be the name of a file"
    raise RecipeError([Problem(file=source, message=message)])


def _text(folder: Path, source: str) -> str:
    """The file's text; OSError also where it is no file of the size that such files have."""
    if source.startswith("/"):
        raise OSError(errno.EINVAL, "must be a path relative to the recipe")
    path = folder / source
    # A pipe would keep us waiting for its other end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")
    with path.open("rb") as handle:
        data = handle.read(_SIZE_MAX_BYTES + 1)
    if len(data) > _SIZE_MAX_BYTES:
        raise OSError(errno.EFBIG, f"is larger than {_SIZE_MAX_BYTES >> 20} MiB")
    return data.removeprefix(codecs.BOM_UTF8).decode()


def _hyphened(name: str) -> str:
    return name.replace("_", "-")


class _Table(BaseModel):
    model_config = ConfigDict(alias_generator=_hyphened, strict=True)


class _Project(_Table):
    name: str = ""
    dependencies: list[str] = []
    optional_dependencies: dict[str, list[str]] = {}
    dynamic: list[str] = []
    requires_python: str | None = None


class _Uv(_Table):
    sources: dict[str, Any] = {}


class _Tool(_Table):
    uv: _Uv = _Uv()


class _File(_Table):
    project: _Project | None = None
    dependency_groups: dict[str, list[str | dict[str, str]]] = {}
    tool: _Tool = _Tool()


def _parse(text: str, source: str) -> _File:
    try:
        return _File.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        problems = [Problem(file=source, message=f"is not valid TOML: {error}")]
    except RecursionError:
        problems = [Problem(file=source, message="is not valid TOML: nested too deep")]
    except ValidationError as error:
        problems = [
            Problem(file=source, field=".".join(map(str, details["loc"])), message=details["msg"])
            for details in error.errors(include_url=False, include_input=False)
        ]
    raise RecipeError(problems)


class _Reader:
    """Gathers what a project asks for, and what is wrong with it."""

    def __init__(self, file: _File, source: str, text: str) -> None:
        self._project = file.project or _Project()
        self._has_project = file.project is not None
        self._groups = file.dependency_groups
        self._source = source
        self._lines = text.splitlines()
        self._extras = {
            canonicalize_name(name): (f"project.optional-dependencies.{name}", texts)
            for name, texts in self._project.optional_dependencies.items()
        }
        self._seen: set[tuple[str, str]] = set()
        self.problems: list[Problem] = []

    def read(self, extras: Sequence[str], groups: Sequence[str]) -> Iterator[str]:
        """The project's own dependencies, those of the extras, those of the groups."""
        self._check_tables(extras, groups)
        yield from self._requirements(self._project.dependencies, "project.dependencies", "")
        for name in extras:
            yield from self._extra(name, "")
        for name in groups:
            texts = self._group(name)
            yield from self._requirements(texts, f"dependency-groups.{name}", "")

    def _check_tables(self, extras: Sequence[str], groups: Sequence[str]) -> None:
        if not self._has_project and (extras or not groups):
            self._note("has no table [project]")
        unread = {"dependencies", *(["optional-dependencies"] if extras else [])}
        for key in sorted(unread & set(self._project.dynamic)):
            self._note(f"{key} are dynamic: its build makes them", hint=_DYNAMIC_HINT)

    def _extra(self, name: str, marker: str) -> Iterator[str]:
        key = canonicalize_name(name)
        if key not in self._extras:
            if "optional-dependencies" not in self._project.dynamic:
                self._unknown("extra", name, self._extras)
        elif len(self._seen) == _EXTRAS_MAX:
            self._note(f"its extras name each other in more than {_EXTRAS_MAX} ways")
            self._seen.add(("", ""))  # said once
        elif len(self._seen) < _EXTRAS_MAX and (key, marker) not in self._seen:  # or in a circle
            self._seen.add((key, marker))
            field, texts = self._extras[key]
            yield from self._requirements(texts, field, marker)

    def _group(self, name: str) -> list[str]:
        known = {canonicalize_name(group) for group in self._groups}
        if canonicalize_name(name) not in known:
            self._unknown("dependency group", name, known)
            return []
        try:
            return list(self._included(name))
        except ExceptionGroup as errors:
            for error in errors.exceptions:
                self._note(str(error), field=f"dependency-groups.{name}")
        except CycleError as error:
            circle = " includes ".join(reversed(error.args[1]))
            self._note(f"a circle of groups: {circle}", field=f"dependency-groups.{name}")
        return []

    def _included(self, name: str) -> Iterator[str]:
        """What a group and those that it includes list, each group once (PEP 735).

        The specification repeats a group that is included twice, which can double at every step.
        """
        resolver = DependencyGroupResolver(self._groups)
        graph: dict[str, list[str]] = {}
        pending: list[Requirement | DependencyGroupInclude] = [DependencyGroupInclude(name)]
        while pending:
            item = pending.pop(0)
            if isinstance(item, Requirement):
                yield str(item)
            elif (group := canonicalize_name(item.include_group)) not in graph:
                items = resolver.lookup(group)
                includes = (part for part in items if isinstance(part, DependencyGroupInclude))
                graph[group] = [canonicalize_name(part.include_group) for part in includes]
                pending = [*items, *pending]
        TopologicalSorter(graph).prepare()

    def _requirements(self, texts: Sequence[str], field: str, marker: str) -> Iterator[str]:
        """Each requirement, under `marker` too; the project's own extras in its name's place."""
        for text in texts:
            requirement = self._requirement(text, field)
            if requirement is None:
                continue
            both = _both(marker, str(requirement.marker or ""))
            if canonicalize_name(requirement.name) == canonicalize_name(self._project.name):
                for extra in sorted(requirement.extras):
                    yield from self._extra(extra, both)
            else:
                requirement.marker = Marker(both) if both else None
                yield canonical_requirement(str(requirement))

    def _requirement(self, text: str, field: str) -> Requirement | None:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            self._note("is not a requirement", field=field, text=text)
            return None
        if requirement.url is not None:
            message = f"`{requirement.name}` comes from a URL"
            self._note(message, field=field, text=text, hint=_URL_HINT)
            return None
        return requirement

    def _unknown(self, what: str, name: str, known: Iterable[str]) -> None:
        meant = nearest(name, known)
        hint = f"did you mean `{meant}`?" if meant else f"it has {', '.join(known) or 'none'}"
        self._note(f"has no {what} `{name}`", hint=hint)

    def _note(
        self, message: str, *, field: str | None = None, text: str = "\n", hint: str | None = None
    ) -> None:
        # TOML's parser keeps no lines; a requirement is found by its text.
        numbers = (number for number, line in enumerate(self._lines, 1) if text in line)
        self.problems.append(
            Problem(
                file=self._source,
                line=next(numbers, None),
                field=field,
                message=message,
                hint=hint,
            )
        )


def _both(one: str, other: str) -> str:
    return f"({one}) and ({other})" if one and other else one or other
