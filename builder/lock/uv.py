"""uv as it is run here: what it may see, what it is asked, and its failures as ours.

uv sees a project file of ours and a configuration file of ours (`--config-file` replaces every
other one), and an environment in which only what reaches the network passes: proxies,
certificates, credentials, an index mirror. So the caller's other settings cannot change the answer.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
import uv
from packaging.pylock import Pylock, PylockValidationError

from builder import process
from builder.context import PROXY_VARIABLES, Context
from builder.errors import (
    BuilderError,
    ExternalError,
    LockError,
    MissingError,
    OfflineError,
    ToolError,
)
from builder.lock.platforms import MACHINES, uv_platform
from builder.process import Runner

_PASSES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL"),
        *("XDG_CACHE_HOME", "XDG_DATA_HOME", "NETRC"),
        *PROXY_VARIABLES,
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT"),
        *("UV_CACHE_DIR", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_KEYRING_PROVIDER"),
        *("UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_INSECURE_HOST", "UV_CREDENTIALS_DIR"),
        *("UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_CONCURRENT_DOWNLOADS"),
    }
)
_NO_SOLUTION = "No solution found"
_ERROR = "error: "
_HINT = "hint: "
_NO_BUILD = "`--no-build`"  # in a hint of uv's about its own options
_WHEELLESS = re.compile(
    r"(?:Wheels are (?:required|available) for|only found wheels for) `(?P<name>[^`]+)`"
)
_OUTPUT = "pylock.toml"  # uv takes an output in this format for a pylock by its name only


class UnsatisfiableError(LockError):
    """No set of wheels meets all that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One `uv pip compile`: `dependencies` for CPython `python` (X.Y) on `platform`.

    `tool` is the project file's `[tool.uv]`, `settings` the configuration file; `preferences` are
    name and version, with wheels where known, of packages whose version is to stay if it can.
    """

    dependencies: tuple[str, ...]
    platform: str
    python: str
    glibc: str
    tool: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    preferences: tuple[Mapping[str, Any], ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The lock that uv wrote, and what it said beside it, as text."""

    pylock: Pylock
    said: str


def compile_lock(
    question: Question, folder: Path, *, context: Context, run: Runner = process.run
) -> Answer:
    """What uv answers; `folder` is ours, and relative paths in the question are in it.

    Raises UnsatisfiableError where nothing satisfies the dependencies, OfflineError, ExternalError.
    """
    (folder / "pyproject.toml").write_text(_project(question), encoding="utf-8")
    (folder / "uv.toml").write_text(tomli_w.dumps(question.settings), encoding="utf-8")
    output = folder / _OUTPUT
    if question.preferences:
        output.write_text(_preferences(question), encoding="utf-8")
    argv = [find_uv(), *_arguments(question), *(["--offline"] if context.offline else [])]
    try:
        done = run(argv, env=uv_environment(context.environ), cwd=folder)
    except ToolError as error:
        raise _explained(error, question, context) from None
    return Answer(_parse(output.read_text(encoding="utf-8")), done.stderr)


def uv_version() -> str:
    """The version of the uv that resolves, such as `0.13.8`."""
    done = process.run([find_uv(), "--version"], env={})
    return done.stdout.split()[1]


def find_uv() -> str:
    """The path of uv's program; MissingError where it is not installed."""
    try:
        return uv.find_uv_bin()
    except FileNotFoundError as error:
        raise MissingError(
            f"uv is not installed: {error}", hint="install it: `pip install uv`"
        ) from None


def uv_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the caller's environment that uv may see."""
    passed = {key: value for key, value in environ.items() if key in _PASSES or _credential(key)}
    mirror = None if {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & passed.keys() else _mirror(environ)
    if mirror is not None:
        passed["UV_DEFAULT_INDEX"] = mirror
    return passed | {"UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}


def _credential(key: str) -> bool:
    return key.startswith("UV_INDEX_") and key.endswith(("_USERNAME", "_PASSWORD"))


def _mirror(environ: Mapping[str, str]) -> str | None:
    """The default index of the user's own uv configuration, else of pip's variable, if any."""
    home = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME', '')}/.config"
    try:
        settings = tomllib.loads((Path(home) / "uv" / "uv.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = {}
    indexes = settings.get("index")
    for index in indexes if isinstance(indexes, list) else ():
        if isinstance(index, dict) and index.get("default") and "url" in index:
            return str(index["url"])
    pip = settings.get("pip")
    named = settings.get("index-url") or (pip.get("index-url") if isinstance(pip, dict) else None)
    return str(named or environ.get("PIP_INDEX_URL") or "") or None


def _project(question: Question) -> str:
    document: dict[str, Any] = {
        "project": {
            "name": "spark-build-recipe",
            "version": "0",
            "requires-python": f"=={question.python}.*",
            "dependencies": list(question.dependencies),
        }
    }
    if question.tool:
        document["tool"] = {"uv": question.tool}
    return tomli_w.dumps(document)


def _preferences(question: Question) -> str:
    """An earlier resolution in the form that uv reads versions to keep from."""
    packages = list(question.preferences)
    return tomli_w.dumps({"lock-version": "1.0", "created-by": "uv", "packages": packages})


def _arguments(question: Question) -> Sequence[str]:
    """Naming this Python, which builds nothing, spares uv the search for one of that version."""
    platform = uv_platform(question.platform, question.glibc)
    return [
        *("pip", "compile", "pyproject.toml", "--config-file", "uv.toml"),
        *("--format", "pylock.toml", "--no-header"),
        *("--python-platform", platform, "--python-version", question.python),
        *("--python", sys.executable),
        *("--only-binary", ":all:", *question.flags, "--output-file", _OUTPUT),
    ]


def _explained(error: ToolError, question: Question, context: Context) -> BuilderError:
    """What uv printed as a failure of ours: unsatisfiable, offline, or the tool itself."""
    said = [line for line in error.stderr.strip().splitlines() if not line.startswith("warning:")]
    whole = "\n".join(said).removeprefix(_ERROR)
    text = _without_options(whole)
    if context.offline and ("network" in text or "cache" in text):
        return OfflineError(
            f"the lock has to be resolved, and the run is offline:\n{text}",
            hint="run `spark-build lock RECIPE` once without --offline",
        )
    if _NO_SOLUTION in text:
        return UnsatisfiableError(
            f"no set of wheels satisfies the recipe:\n{text}", hint=_advice(whole, question)
        )
    return ExternalError(f"uv could not resolve the recipe:\n{text}", hint=error.hint)


def _without_options(text: str) -> str:
    """What uv says, its hints as sentences below it, without those about its own options."""
    paragraphs = [part for part in text.split("\n\n") if part.strip()]
    kept = [part for part in paragraphs if not (part.startswith(_HINT) and _NO_BUILD in part)]
    return "\n".join(
        f"  {part.removeprefix(_HINT)}" if part.startswith(_HINT) else part for part in kept
    )


def _advice(text: str, question: Question) -> str:
    """What to do about it: for each package that uv names a hint for, where a wheel could be."""
    names = list(dict.fromkeys(match["name"] for match in _WHEELLESS.finditer(text)))
    if not names:
        return "loosen or correct the requirements that uv names; only wheels can be locked"
    machine = MACHINES[question.platform]
    place = f"CPython {question.python} on {machine} with glibc {question.glibc}"
    return "\n".join(
        f"{_asked(name, text)} has no wheel for {place}: take another version, name a wheel under "
        "`sources` (`wheel: URL`, or an `index`), take a base with another Python, or `exclude` it"
        for name in names
    )


def _asked(name: str, text: str) -> str:
    """The package with the one version that uv says it of, if it is one."""
    exact = re.search(rf"(?<![\w.-]){re.escape(name)}==\S+(?= has no (?:usable )?wheels)", text)
    return exact[0] if exact else name


def _parse(output: str) -> Pylock:
    try:
        return Pylock.from_dict(tomllib.loads(output))
    except (tomllib.TOMLDecodeError, PylockValidationError) as error:
        raise ExternalError(
            f"uv wrote a lock that cannot be read: {error}",
            hint="upgrade uv and spark-build to versions that go together",
        ) from None
