"""The kinds of text that a recipe holds, each with its check and the words for people.

Everything here ends up in a Containerfile, a `.def` file, an image's config or a command line, so
each kind is as narrow as its use allows; what may hold anything (`Line`) still holds no line break.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as PackagingRequirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import (
    AfterValidator,
    BeforeValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from builder.document import Flaw, Refused

_OWN_FOLDERS = ("/opt/venv", "/opt/spark-build")
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PAT|CREDENTIALS?)$|PASSWORD|PASSWD|PASSPHRASE"
    r"|API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY|AUTH_?TOKEN"
)
_POINTS_TO_SECRET = re.compile(r"_(?:FILE|PATH|DIR|ID)$")
_URL_WITH_USER = re.compile(r"\bhttps?://[^/\s@]*@|://[^/\s@:]*:[^/\s@]+@", re.IGNORECASE)
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d))?")


@dataclass(frozen=True, slots=True)
class Pattern:
    """Text that matches `regex` as a whole; `words` says to people what that is."""

    regex: str
    words: str

    def check(self, text: str) -> str:
        """`text` itself, or Refused."""
        if re.fullmatch(self.regex, text, re.ASCII) is None:
            raise Refused(Flaw(message=f"must be {self.words}"))
        return text

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^(?:{self.regex})$"}


def find_secret(name: str, text: str) -> list[Flaw]:
    """A flaw where the variable's `name` says that `text` is a secret."""
    upper = name.upper()
    if not text or not _SECRET_NAME.search(upper) or _POINTS_TO_SECRET.search(upper):
        return []
    return [
        Flaw(
            message="looks like a secret, and everything here stays readable in the image's layers "
            "and history",
            hint=f"pass {name} when the container runs, from a file or the environment",
            at=(name,),
        )
    ]


def find_repeats(texts: Sequence[str], same: str = "stands here twice") -> list[Flaw]:
    """A flaw for every text that came before."""
    return [
        Flaw(message=f"`{text}` {same}", hint="keep one of the two", at=(index,))
        for index, text in enumerate(texts)
        if text in texts[:index]
    ]


def requirement_name(text: str) -> str:
    """The normalised name (PEP 503) in a valid requirement."""
    return canonicalize_name(PackagingRequirement(text).name)


def pinned_version(requirement: PackagingRequirement) -> str | None:
    """The version of a requirement that only one satisfies (`==0.13.0`), as it is written."""
    versions = (
        specifier.version
        for specifier in requirement.specifier
        if specifier.operator == "==" and not specifier.version.endswith(".*")
    )
    return next(versions, None)


def canonical_requirement(text: str) -> str:
    """A valid requirement in one spelling: normalised name, sorted extras and specifiers."""
    requirement = PackagingRequirement(text)
    requirement.name = canonicalize_name(requirement.name)
    requirement.extras = {canonicalize_name(extra) for extra in requirement.extras}
    return str(requirement)


def _check_line(text: str) -> str:
    bad = next((char for char in text if unicodedata.category(char) in _BREAKING), None)
    if bad is not None:
        what = "a line break" if bad in "\n\u2028\u2029" else f"the character U+{ord(bad):04X}"
        raise Refused(
            Flaw(
                message=f"holds {what}; it is written into one line of a Containerfile",
                hint="put text of several lines into a file and name it under `files`",
            )
        )
    if _URL_WITH_USER.search(text):
        raise Refused(
            Flaw(
                message="holds a URL with a user or password in it, which would stay readable",
                hint="credentials come from ~/.netrc on the host that builds",
            )
        )
    return text


_BREAKING = frozenset({"Cc", "Cs", "Zl", "Zp"})


def _join_lines(value: Any) -> Any:
    return " ".join(value.split()) if isinstance(value, str) else value


def _check_image_path(text: str) -> str:
    if not text.startswith("/"):
        raise Refused(Flaw(message="must be an absolute path in the image"))
    if re.fullmatch(r"[A-Za-z0-9._+@=,/-]+", text, re.ASCII) is None:
        raise Refused(Flaw(message="may hold letters, digits and . _ + @ = , - / only"))
    if text.startswith("//") or posixpath.normpath(text) != text:
        clean = "/" + posixpath.normpath(text).lstrip("/")
        raise Refused(Flaw(message="must be a plain path", hint=f"write `{clean}`"))
    if any(part.startswith(".wh.") for part in text.split("/")):
        raise Refused(Flaw(message="may hold no part that begins with .wh., which marks deletion"))
    for folder in (*_OWN_FOLDERS, *_KERNEL_FOLDERS):
        if text == folder or text.startswith(f"{folder}/"):
            owner = "the kernel" if folder in _KERNEL_FOLDERS else "spark-build"
            raise Refused(Flaw(message=f"lies in {folder}, which belongs to {owner}"))
    return text


def _check_image_file(text: str) -> str:
    if text == "/":
        raise Refused(Flaw(message="must be the path of a file"))
    return text


def _check_local_file(text: str, info: ValidationInfo) -> str:
    """A file in the recipe's folder, looked for where the folder is known."""
    clean = posixpath.normpath(text) if text else ""
    if not clean or clean == "." or clean.startswith(("/", "~", "../")) or clean == "..":
        raise Refused(Flaw(message="must be a path relative to the recipe's folder and inside it"))
    folder: Path | None = (info.context or {}).get("folder")
    if folder is not None:
        _look_for(folder, clean)
    return clean


def _check_listed_file(text: str) -> str:
    """A file that lists packages may lie anywhere: no part of it gets into an image."""
    if not text or text.startswith(("/", "~")):
        raise Refused(Flaw(message="must be a path relative to the recipe"))
    return posixpath.normpath(text)


def _look_for(folder: Path, name: str) -> None:
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop of links
        inside = False
    if not inside:
        raise Refused(Flaw(message=f"`{name}` leads out of the recipe's folder"))
    if path.is_dir():
        raise Refused(Flaw(message=f"`{name}` is a folder; name each file"))
    if not path.is_file():
        raise Refused(Flaw(message=f"there is no file {path}"))


def _check_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or re.search(r"\s", text):
        raise Refused(Flaw(message="must be a URL that begins with https:// or http://"))
    if "@" in text or "?" in text:
        raise Refused(
            Flaw(
                message="may hold a secret, and would be in the lock for all to read",
                hint="leave user, password and `?…` out; ~/.netrc and uv's variables are read",
            )
        )
    return text


def _check_wheel_url(text: str) -> str:
    if not urlsplit(text).path.endswith(".whl"):
        raise Refused(Flaw(message="must be the URL of a .whl file"))
    return text


def _check_requirement(text: str) -> str:
    try:
        requirement = PackagingRequirement(text)
    except InvalidRequirement:
        raise Refused(
            Flaw(
                message="is not a requirement",
                hint="a requirement is a name with what it must satisfy: `numpy`, `numpy>=2,<3`, "
                "`fastapi[standard]`; a file or a URL goes under `sources`",
            )
        ) from None
    if requirement.url is not None:
        name = requirement.name
        raise Refused(
            Flaw(
                message="names a URL",
                hint=f"write `{name}` here, and the URL under `sources: {{{name}: …}}`",
            )
        )
    return text


def _check_version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        raise Refused(Flaw(message="must be one version, such as 2.13.0")) from None


def _read_time(text: str) -> str:
    """A moment in UTC; a bare date is its first moment, on every host the same."""
    moment = _parse_time(text) if _TIME.fullmatch(text) else None
    if moment is None:
        raise Refused(Flaw(message="must be a date (2026-11-01) or a time (2026-11-01T12:00:00Z)"))
    moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # such as the 31st of February
        return None


def _read_mode(value: Any) -> Any:
    """Octal permission bits; set-uid, set-gid and sticky are refused."""
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"(?:0o?)?[0-7]{3}", value) is None:
        raise Refused(Flaw(message="must be three octal digits, such as 0644 or 0755"))
    return int(value.removeprefix("0o"), 8)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_TEXT_LIKE: Mapping[str, Any] = {"type": ["string", "number", "boolean"]}

Line = Annotated[str, AfterValidator(_check_line)]
Text = Annotated[str, BeforeValidator(_join_lines), AfterValidator(_check_line)]
Value = Annotated[Line, WithJsonSchema(dict(_TEXT_LIKE))]
Url = Annotated[Line, AfterValidator(_check_url)]
WheelUrl = Annotated[Url, AfterValidator(_check_wheel_url)]
GitUrl = Annotated[
    Line,
    Pattern(
        r"(?:https|git)://[^\s@?#]+|ssh://(?:[A-Za-z0-9._-]+@)?[^\s@?#]+|git@[^\s/]+:[^\s?#]+",
        "a git URL (https://…, ssh://…) without a password or a query",
    ),
]
ImagePath = Annotated[str, AfterValidator(_check_image_path)]
ImageFile = Annotated[ImagePath, AfterValidator(_check_image_file)]
LocalFile = Annotated[Line, AfterValidator(_check_local_file)]
ListedFile = Annotated[Line, AfterValidator(_check_listed_file)]
Mode = Annotated[int, BeforeValidator(_read_mode), WithJsonSchema({"type": ["string", "integer"]})]
Requirement = Annotated[Line, AfterValidator(_check_requirement)]
OneVersion = Annotated[str, AfterValidator(_check_version)]
Time = Annotated[str, AfterValidator(_read_time)]
OneOrMore = BeforeValidator(_as_list)

ImageName = Annotated[
    str,
    Pattern(
        r"[a-z0-9](?:[a-z0-9]|[-_](?=[a-z0-9])){0,62}",
        "at most 63 lower-case letters and digits, with single - or _ between them; it becomes "
        "part of image and file names",
    ),
]
ImageReference = Annotated[
    str,
    Pattern(
        r"[a-z0-9][a-z0-9._:-]*(?:/[a-z0-9][a-z0-9._-]*)*"
        r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
        "an image reference, such as registry.example/cuda:13.0.2-base-ubuntu24.04",
    ),
]
PythonVersion = Annotated[str, Pattern(r"3\.\d{1,2}", "a Python version such as 3.12")]
Suite = Annotated[str, Pattern(r"[a-z][a-z0-9-]*", "a suite's name, such as trixie")]
SystemPackage = Annotated[
    str, Pattern(r"[a-z0-9][a-z0-9+.-]+", "a distribution package's name, without a version")
]
PackageName = Annotated[
    str,
    Pattern(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", "a package's name, without a version"),
]
IndexName = Annotated[str, Pattern(r"[a-z0-9]+(?:[-_][a-z0-9]+)*", "a lower-case name")]
EnvName = Annotated[
    str, Pattern(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and _, not beginning with a digit")
]
LabelName = Annotated[
    str, Pattern(r"[A-Za-z0-9]+(?:[._/-][A-Za-z0-9]+)*", "letters and digits with . _ - / between")
]
GitRef = Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9._/+-]*", "a tag, a branch or a commit")]
RepositoryPath = Annotated[
    str,
    Pattern(r"(?!/)(?!(?:.*/)?\.{1,2}(?:/|$))[A-Za-z0-9._/+-]+", "a path inside the repository"),
]
User = Annotated[
    str,
    Pattern(r"(?:[a-z_][a-z0-9_-]*|\d+)(?::(?:[a-z_][a-z0-9_-]*|\d+))?", "USER or USER:GROUP"),
]
Check = Annotated[
    str,
    Pattern(
        r"matmul|libcudart|import:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*",
        "`matmul`, `libcudart` or `import:NAME`",
    ),
]
