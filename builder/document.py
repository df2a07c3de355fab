"""A YAML file that a person wrote: plain values with the line of each, checked by a model.

Less than YAML on purpose (https://yaml.org/spec/1.2.2/): one document, no tags, no merge keys, and
every scalar stays the text that stands there, so that `python: 3.10` is not 3.1 and `no` is not
false; the model's field types convert. A key or item without a value (`name:`, `~`, `null`) is an
error everywhere, since it is nearly always a value that was forgotten: delete the key to get its
default, and write `"null"` where that word is meant.
"""

from __future__ import annotations

import codecs
import stat
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from builder.errors import Problem, RecipeError

_SIZE_MAX_BYTES = 1 << 20
_NODES_MAX = 10_000
_DEPTH_MAX = 32
_SHOWN_MAX = 60
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

Where = tuple[str | int, ...]
"""A place in a document: keys and list indexes from its root, such as `("files", 0, "to")`."""

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The values of one file: mappings, lists and text; `lines` (1-based) has every place."""

    path: Path
    value: Any
    lines: Mapping[Where, int]

    def line(self, at: Where) -> int:
        """The line of the place, or of the nearest one around it."""
        while at not in self.lines:
            at = at[:-1]
        return self.lines[at]

    def problem(self, at: Where, message: str, *, hint: str | None = None) -> Problem:
        """What is wrong at a place of this document."""
        return Problem(
            file=str(self.path),
            line=self.line(at),
            field=dotted(at) or None,
            message=message,
            hint=hint,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """One thing that a model's validator finds wrong.

    `at` is a place below the value that it was given, or in the whole document if `absolute`.
    """

    message: str
    hint: str | None = None
    at: Where = ()
    absolute: bool = False


class Refused(ValueError):  # noqa: N818  (a verdict on a value, which pydantic gathers)
    """Raised by a model's validator with everything it finds wrong."""

    def __init__(self, *flaws: Flaw) -> None:
        super().__init__("; ".join(flaw.message for flaw in flaws))
        self.flaws = flaws


def dotted(at: Where) -> str:
    """A place as people write it: `files[0].to`."""
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `word` was most likely meant to be."""
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def read_document(path: Path) -> Document:
    """The document in the file at `path`; RecipeError where there is none that can be used."""
    return parse_document(_read(path), path)


def parse_document(data: bytes, path: Path) -> Document:
    """The document that `data` holds; `path` is where it comes from, for messages.

    Raises RecipeError: not UTF-8, not YAML, more than the subset above, or larger than any file
    for us needs to be (1 MiB, 10,000 values with aliases expanded, 32 levels).
    """
    composer = _Composer(path, _decode(data, path))
    root = composer.compose()
    expansion = _Expansion(path)
    value = expansion.expand(root, ())
    problems = [*composer.problems, *expansion.problems]
    if problems:
        raise RecipeError(sorted(problems, key=lambda problem: problem.line or 0))
    return Document(path=path, value=value, lines=expansion.lines)


def validate(model: type[_Model], document: Document) -> _Model:
    """The document as `model`; RecipeError with everything that is wrong, in line order.

    Validators find the document's folder in their context as `folder`.
    """
    empty = list(_empty_places(document.value, ()))
    problems = [
        document.problem(at, "has no value", hint="write a value, or delete the line")
        for at in empty
    ]
    try:
        result = model.model_validate(document.value, context={"folder": document.path.parent})
    except ValidationError as error:
        for details in error.errors(include_url=False):
            at = _place(document.value, details)
            if not any(at[: len(place)] == place for place in empty) and not _echo(details):
                problems += _explain(model, document, at, details)
    if problems:
        raise RecipeError(sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0))
    return result


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise _refusal(path, "is a folder", hint=f"name a file in it: {path}/NAME.yaml")
        # A pipe would keep us waiting for its other end.
        if not stat.S_ISREG(mode):
            raise _refusal(path, "is not a regular file")
        with path.open("rb") as handle:
            data = handle.read(_SIZE_MAX_BYTES + 1)
    except FileNotFoundError:
        raise _refusal(path, "no such file", hint=_similar_file(path)) from None
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL byte in the name
        raise _refusal(path, "cannot be the name of a file") from None
    return data


def _similar_file(path: Path) -> str | None:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"there is no folder {path.parent}"
    name = nearest(path.name, names) or nearest(f"{path.name}.yaml", names)
    return f"did you mean {path.with_name(name)}?" if name else None


def _decode(data: bytes, path: Path) -> str:
    if len(data) > _SIZE_MAX_BYTES:
        raise _refusal(path, f"is larger than {_SIZE_MAX_BYTES >> 20} MiB")
    if data.startswith(_UTF16_MARKS):
        raise _refusal(path, "is not UTF-8 but UTF-16", hint="save the file as UTF-8")
    data = data.removeprefix(codecs.BOM_UTF8)
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise _refusal(path, "holds a NUL byte: this is no text file", line=line)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _refusal(path, "is not UTF-8", line=line, hint="save the file as UTF-8") from None


def _refusal(
    path: Path, message: str, *, line: int | None = None, hint: str | None = None
) -> RecipeError:
    return RecipeError([Problem(file=str(path), line=line, message=message, hint=hint)])


@dataclass(frozen=True, slots=True)
class _Scalar:
    line: int
    text: str | None


@dataclass(frozen=True, slots=True)
class _List:
    line: int
    items: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Map:
    line: int
    entries: tuple[tuple[str, int, _Node], ...]


_Node = _Scalar | _List | _Map


class _Composer:
    """Nodes out of the parser's events; what can be gathered goes to `problems`, the rest raises.

    PyYAML's own composer is not used: it recurses without bound and keeps duplicate keys.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=yaml.BaseLoader))
        self._anchors: dict[str, _Node] = {}
        self._open: set[str] = set()
        self._count = 0
        self.problems: list[Problem] = []

    def compose(self) -> _Node:
        """The root of the only document."""
        self._next()  # the start of the stream
        if isinstance(self._next(), yaml.StreamEndEvent):
            raise _refusal(self._path, "is empty")
        root = self._node(self._next(), ())
        if root == _Scalar(root.line, None):
            raise _refusal(self._path, "is empty")
        self._next()  # the end of the document
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            self._fail("a second document begins here", event, (), "keep one document a file")
        return root

    def _next(self) -> Any:
        try:
            return next(self._events)
        except yaml.YAMLError as error:
            raise RecipeError([_syntax_problem(self._path, self._text, error)]) from None
        except (ValueError, OverflowError):  # such as the escape "\UFFFFFFFF"
            raise _refusal(self._path, "holds a number or an escape that cannot be read") from None

    def _node(self, event: Any, at: Where) -> _Node:
        self._count += 1
        if self._count > _NODES_MAX:
            self._fail(f"holds more than {_NODES_MAX} values", event, ())
        if len(at) > _DEPTH_MAX:
            self._fail(f"is nested more than {_DEPTH_MAX} levels deep", event, ())
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, at)
        if event.tag is not None:
            self._note(f"the tag `{event.tag}` is not supported", event, at, "delete the tag")
        if event.anchor is not None:
            self._open.add(event.anchor)
        node = self._value(event, at)
        if event.anchor is not None:
            self._open.discard(event.anchor)
            self._anchors[event.anchor] = node
        return node

    def _value(self, event: Any, at: Where) -> _Node:
        if isinstance(event, yaml.SequenceStartEvent):
            return _List(_line(event), tuple(self._items(at)))
        if isinstance(event, yaml.MappingStartEvent):
            return _Map(_line(event), tuple(self._entries(at)))
        plain = event.style is None
        return _Scalar(_line(event), None if plain and event.value in _NULLS else event.value)

    def _items(self, at: Where) -> Iterator[_Node]:
        index = 0
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            yield self._node(event, (*at, index))
            index += 1

    def _entries(self, at: Where) -> Iterator[tuple[str, int, _Node]]:
        seen: dict[str, int] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._fail("a key must be plain text", event, at)
            key, line = event.value, _line(event)
            if event.tag is not None or event.anchor is not None:
                self._note("a key can have no tag and no anchor", event, (*at, key), None)
            if key in seen:
                text = f"is given twice, in lines {seen[key]} and {line}"
                self._note(text, event, (*at, key), "keep one of the two")
            seen.setdefault(key, line)
            yield key, line, self._node(self._next(), (*at, key))

    def _alias(self, event: Any, at: Where) -> _Node:
        if event.anchor in self._open:
            self._fail(f"`*{event.anchor}` stands inside what it names", event, at)
        if event.anchor not in self._anchors:
            self._fail(f"`*{event.anchor}` names no anchor", event, at)
        return replace(self._anchors[event.anchor], line=_line(event))

    def _note(self, message: str, event: Any, at: Where, hint: str | None) -> None:
        file, field = str(self._path), dotted(at) or None
        self.problems.append(
            Problem(file=file, line=_line(event), field=field, message=message, hint=hint)
        )

    def _fail(self, message: str, event: Any, at: Where, hint: str | None = None) -> NoReturn:
        self._note(message, event, at, hint)
        raise RecipeError(self.problems)


class _Expansion:
    """Plain values out of nodes, aliases copied; the total is bounded (the "billion laughs")."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0
        self.lines: dict[Where, int] = {}
        self.problems: list[Problem] = []

    def expand(self, node: _Node, at: Where, line: int | None = None) -> Any:
        """The node's value; `line` is its key's where it has one."""
        self._count += 1
        if self._count > _NODES_MAX or len(at) > _DEPTH_MAX:
            text = f"aliases expand to more than {_NODES_MAX} values or {_DEPTH_MAX} levels"
            raise _refusal(self._path, text, line=self.lines.get(at[:1]))
        self.lines[at] = node.line if line is None else line
        if isinstance(node, _List):
            return [self.expand(item, (*at, index)) for index, item in enumerate(node.items)]
        if isinstance(node, _Map):
            return {key: self._entry(key, line, item, at) for key, line, item in node.entries}
        self._check_text(node.text or "", at)
        return node.text

    def _entry(self, key: str, line: int, node: _Node, at: Where) -> Any:
        value = self.expand(node, (*at, key), line)
        self._check_text(key, (*at, key))
        return value

    def _check_text(self, text: str, at: Where) -> None:
        bad = next((char for char in text if _is_control(char)), None)
        if bad is not None:
            message = f"holds the control character U+{ord(bad):04X}"
            field = "".join("?" if _is_control(char) else char for char in dotted(at))
            self.problems.append(
                Problem(file=str(self._path), line=self.lines[at], field=field, message=message)
            )


def _is_control(char: str) -> bool:
    """C0 but tab and newline, DEL and C1, and halves of surrogate pairs: text never needs them."""
    code = ord(char)
    return (code < 0x20 and char not in "\t\n") or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def _syntax_problem(path: Path, text: str, error: yaml.YAMLError) -> Problem:
    line, message, hint = None, "is not valid YAML", None
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        message = f"holds the control character U+{ord(text[error.position]):04X}"
    elif isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        message = f"{message}: {error.problem or error.context}"
        hint = _syntax_hint(error.problem or "")
    return Problem(file=str(path), line=line, message=message, hint=hint)


def _syntax_hint(problem: str) -> str:
    if "'\\t'" in problem:
        return "YAML is indented with spaces, not with tabs"
    if "cannot start any token" in problem or "mapping values are not allowed" in problem:
        return "put quotes around a value that begins with a special sign or holds `: `"
    return "compare this line's indentation, quotes and brackets with those before it"


_WORDS = frozenset({"int_type", "int_parsing", "bool_type", "bool_parsing"})
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping (`key: value`)",
    "mapping_type": "a mapping (`key: value`)",
    "model_type": "a mapping (`key: value`)",
    "model_attributes_type": "a mapping (`key: value`)",
}


def _empty_places(value: Any, at: Where) -> Iterator[Where]:
    if value is None:
        yield at
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _empty_places(item, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _empty_places(item, (*at, index))


def _place(value: Any, details: ErrorDetails) -> Where:
    """The error's place in the document; pydantic's also names members of unions and `[key]`."""
    place: Where = ()
    for part in details["loc"]:
        holds = part in value if isinstance(value, dict) else isinstance(part, int)
        if holds and isinstance(value, dict | list):
            place, value = (*place, part), value[cast("Any", part)]
    return (*place, details["loc"][-1]) if details["type"] == "missing" else place


def _echo(details: ErrorDetails) -> bool:
    """Whether a list is called too short only because items of it are wrong themselves."""
    return details["type"] == "too_short" and len(details["input"]) > 0


def _explain(
    model: type[BaseModel], document: Document, at: Where, details: ErrorDetails
) -> Iterator[Problem]:
    """Pydantic's words as ours: what was expected, what is there, what to do."""
    refused = details.get("ctx", {}).get("error")
    if isinstance(refused, Refused):
        for flaw in refused.flaws:
            place = flaw.at if flaw.absolute else (*at, *flaw.at)
            if place not in document.lines and isinstance(place[-1], int):
                place = place[:-1]  # one value where a list may stand
            yield document.problem(place, flaw.message, hint=flaw.hint)
    elif details["type"] == "extra_forbidden":
        yield document.problem(at, "unknown key", hint=_key_hint(model, at))
    else:
        hint = None
        if details["type"] in ("list_type", "tuple_type"):
            hint = "a list is written `[a, b]`, or as lines that each begin with `- `"
        yield document.problem(at, _message(details), hint=hint)


def _message(details: ErrorDetails) -> str:
    kind, found = details["type"], details["input"]
    if kind == "missing":
        return "is missing"
    if kind == "literal_error":
        return f"expected {details['ctx']['expected']}, found {_describe(found, shown=True)}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, found {_describe(found, shown=kind in _WORDS)}"
    if kind == "too_short":
        return "must hold at least one item"
    return details["msg"].replace("Input should be", "must be")


def _describe(value: Any, *, shown: bool) -> str:
    """What stands there; only where a single word was expected is it safe to repeat it."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return repr(value) if shown and len(value) <= _SHOWN_MAX else "text"


def _key_hint(model: type[BaseModel], at: Where) -> str:
    key = str(at[-1])
    known = [
        name
        for kind in _models_at(model, at[:-1])
        for name in (field.alias or own for own, field in kind.model_fields.items())
    ]
    if meant := nearest(key, known):
        return f"did you mean `{meant}` instead of `{key}`?"
    place = f" in `{dotted(at[:-1])}`" if len(at) > 1 else ""
    return f"the keys{place} are {', '.join(known)}"


def _models_at(annotation: Any, at: Where) -> Iterator[type[BaseModel]]:
    """The models that may stand at a place below `annotation`, members of unions included."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _models_at(arguments[0], at)
    elif origin in (Union, types.UnionType):
        for member in arguments:
            yield from _models_at(member, at)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not at:
            yield annotation
            return
        for name, field in annotation.model_fields.items():
            if (field.alias or name) == at[0]:
                yield from _models_at(field.annotation, at[1:])
    elif at and arguments:
        # list[X], tuple[X, ...] hold X first; dict[str, X] and Mapping[str, X] hold it last.
        yield from _models_at(arguments[0 if isinstance(at[0], int) else -1], at[1:])
