"""A Plan as text: a Containerfile for podman, buildah and docker, a definition file for Apptainer.

Pure. The templates in `containerfiles/` are layout only, and every value in them goes through a
filter of this module, so that no value can leave its place: it is quoted for where it stands, or
refused. Both texts expect the files of `context_files` beside them.

What the filters rely on:

- Dockerfile: https://docs.docker.com/reference/dockerfile/ ("Escape", "Environment replacement",
  the exec form), and BuildKit's shell lexer: inside double quotes a backslash escapes `"`, `$` and
  itself only. BuildKit, buildah and hadolint differ about a backslash before a quote, so
  backslashes stand outside the quotes here, where all of them agree.
- Apptainer: a line whose first word begins with % starts a section, and `{{ name }}` is replaced
  wherever it stands (pkg/build/types/parser/deffile.go, internal/pkg/build/args/reader.go).
"""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Literal, assert_never

import jinja2

from builder.errors import BuilderError
from builder.lock.model import DebianBase, RegistryBase
from builder.oci.reference import parse_reference
from builder.plan import DEFAULT_PATH, CopyFile, InstallWheels, Plan, Step, Symlink, WriteFile
from builder.resources import folder

BASE_ARCHIVE = "base.tar.gz"
BASE_LAYOUT = "base-layout"
UV = "uv"

_OWN_FOLDER = "/opt/spark-build"
_INSTALL_FLAGS = (
    "--no-config",
    "--no-cache",
    "--no-progress",
    "--no-python-downloads",
    "--no-build",
    "--require-hashes",
    "--allow-empty-requirements",
    "--link-mode=copy",
    "--preview-features=pylock",
)
# What a base's environment may set, and uv would follow in spite of the flags above.
_UV_VARIABLES = (
    "UV_BUILD_CONSTRAINT",
    "UV_COMPILE_BYTECODE",
    "UV_CONFIG_FILE",
    "UV_CONSTRAINT",
    "UV_EXCLUDE",
    "UV_FIND_LINKS",
    "UV_NO_VERIFY_HASHES",
    "UV_OFFLINE",
    "UV_OVERRIDE",
    "UV_PROJECT",
    "UV_WORKING_DIR",
)
_BREAKING = frozenset({"Cc", "Cs", "Zl", "Zp"})
_WORD = re.compile(r"[A-Za-z0-9._+@=,:/-]+")
_LABEL = re.compile(r"[A-Za-z0-9._/-]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ROOT = frozenset({"root", "0", "root:root", "0:0"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFile:
    """A file that must lie at `name` in the build context.

    `kind` says what it is: `base`, the Debian base as one archive; `uv`, the program for the
    plan's platform; `lock`; `text`, with the bytes of `text`; `file`, a copy of the user's
    `source`, which is relative to the recipe.
    """

    name: str
    kind: Literal["base", "uv", "lock", "text", "file"]
    text: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file out of the context, at `path` in the image."""

    kind = "copy"
    file: ContextFile
    path: str
    mode: int


@dataclass(frozen=True, slots=True)
class _Link:
    """A symbolic link at `folder`/`name`.

    In the runtime stage nothing is run, since a base may name a user who must not write there (and
    the image may be for another processor): the link is made in `staged` and copied from there.
    """

    folder: str
    name: str
    target: str
    staged: str


@dataclass(frozen=True, slots=True)
class _Links:
    """Symbolic links that are made together."""

    kind = "links"
    links: tuple[_Link, ...]


@dataclass(frozen=True, slots=True)
class _Install:
    """The lock, copied to `path`, and installed from there."""

    kind = "install"
    file: ContextFile
    path: str


_Item = _Copy | _Links | _Install


def containerfile(plan: Plan) -> str:
    """The Containerfile of `plan`; BuilderError where a value cannot stand in one."""
    return _render("Containerfile.j2", plan)


def apptainer(plan: Plan) -> str:
    """The definition file of `plan`, in two stages; BuilderError where a value cannot stand."""
    return _render("apptainer.def.j2", plan)


def context_files(plan: Plan) -> tuple[ContextFile, ...]:
    """Everything that both texts expect in the build context, in the order of its use.

    An image as the base is no file of the context: the Containerfile names it, or says how a
    layout is named to the engine.
    """
    files = [ContextFile(name=BASE_ARCHIVE, kind="base")] if _is_debian(plan) else []
    files.append(ContextFile(name=UV, kind="uv"))
    for items in _stages(plan):
        files += [item.file for item in items if not isinstance(item, _Links)]
    return tuple(files)


def _render(template: str, plan: Plan) -> str:
    builder, runtime = _stages(plan)
    return (
        _templates()
        .get_template(template)
        .render(
            plan=plan,
            builder=builder,
            runtime=runtime,
            debian=_is_debian(plan),
            registry=_registry_image(plan),
            user=_user(plan),
            base_archive=BASE_ARCHIVE,
            base_layout=BASE_LAYOUT,
            uv=UV,
            default_path=DEFAULT_PATH,
            install_flags=_INSTALL_FLAGS,
            uv_variables=_UV_VARIABLES,
        )
    )


def _is_debian(plan: Plan) -> bool:
    return isinstance(plan.base, DebianBase)


def _registry_image(plan: Plan) -> str | None:
    """The base in a registry, by its digest alone: older podman refuses a tag beside one."""
    if not isinstance(plan.base, RegistryBase):
        return None
    return str(replace(parse_reference(plan.base.image), tag=None, digest=plan.base.digest))


def _user(plan: Plan) -> str | None:
    """Whom the image runs as, None where the base says it: one of ours runs as root by itself."""
    user = plan.config.user
    return None if _is_debian(plan) and user in _ROOT else user


def _stages(plan: Plan) -> tuple[tuple[_Item, ...], tuple[_Item, ...]]:
    """What is laid out in the builder stage and in the runtime stage, in order."""
    builder = tuple(_items(plan.builder, 0))
    return builder, tuple(_items(plan.runtime, len(plan.builder)))


def _items(steps: Iterable[Step], first: int) -> Iterator[_Item]:
    """The steps, links that follow each other as one; `first` numbers them through the stages."""
    items = (_item(step, number) for number, step in enumerate(steps, first))
    for together, group in groupby(items, key=lambda item: isinstance(item, _Link)):
        if together:
            yield _Links(tuple(link for link in group if isinstance(link, _Link)))
        else:
            yield from (item for item in group if not isinstance(item, _Link))


def _item(step: Step, number: int) -> _Copy | _Link | _Install:
    match step:
        case WriteFile():
            text = ContextFile(name=f"texts/{number}", kind="text", text=step.text)
            return _Copy(text, step.path, step.mode)
        case CopyFile():
            copied = ContextFile(name=step.name, kind="file", source=step.source)
            return _Copy(copied, step.path, step.mode)
        case InstallWheels():
            lock = ContextFile(name=step.lock_filename, kind="lock")
            return _Install(lock, f"{_OWN_FOLDER}/{step.lock_filename}")
        case Symlink():
            parent, _, name = step.path.rpartition("/")
            return _Link(parent or "/", name, step.target, f"{_OWN_FOLDER}/links/{number}")
        case _:
            assert_never(step)


def line(text: str) -> str:
    """`text` as it is, where it stays on its line."""
    if any(unicodedata.category(char) in _BREAKING for char in text):
        raise BuilderError(f"{text!r} holds a line break or a control character")
    return text


def quote_value(text: str) -> str:
    """`text` as one word of ENV or LABEL, where quotes, `$` and backslashes have a meaning."""
    escaped = line(text).replace("\\", "\0").replace('"', '\\"').replace("$", "\\$")
    return '"' + escaped.replace("\0", '"\\\\"') + '"'


def json_array(words: Iterable[str]) -> str:
    """The exec form; backslashes by their number, since hadolint misreads one before a quote."""
    text = json.dumps([line(word) for word in words], ensure_ascii=False)
    return text.replace("\\\\", "\\u005c")


def quote_shell(text: str) -> str:
    """`text` as one word of a POSIX shell, with no `{{` in it for Apptainer to replace."""
    return re.sub(r"\{(?=\{)", "{''", shlex.quote(line(text)))


def word(text: str) -> str:
    """`text` as it is, where it holds nothing that any of the formats gives a meaning."""
    if _WORD.fullmatch(text) is None or text.startswith("-"):
        raise BuilderError(f"{text!r} cannot stand in a Containerfile as it is")
    return text


def variable(text: str) -> str:
    """`text` as it is, where it is the name of a variable."""
    if _NAME.fullmatch(text) is None:
        raise BuilderError(f"{text!r} is not the name of a variable")
    return text


def label(text: str) -> str:
    """`text` as it is, where it is the name of a label."""
    if _LABEL.fullmatch(text) is None:
        raise BuilderError(f"{text!r} cannot stand for the name of a label")
    return text


def mode(bits: int) -> str:
    """Permission bits as `chmod` takes them."""
    return f"{bits:04o}"


def plain_label(text: str) -> bool:
    """Whether Apptainer's %labels, where nothing can be quoted, keeps `text` as it is."""
    return "{{" not in text


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(  # noqa: S701  (no HTML: each value has the filter of its place)
        loader=jinja2.FileSystemLoader(folder("containerfiles")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "line": line,
        "quote_value": quote_value,
        "json_array": json_array,
        "quote_shell": quote_shell,
        "word": word,
        "variable": variable,
        "label": label,
        "mode": mode,
    }
    environment.tests["plain_label"] = plain_label
    return environment
