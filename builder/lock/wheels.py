"""Requirements in, wheels out: uv resolves for the target's platform and Python, on any host.

uv sees a project file of ours and a configuration file of ours (`--config-file` replaces every
other one), and an environment in which only what reaches the network passes: proxies,
certificates, credentials, an index mirror. So the caller's other settings cannot change the answer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
import uv
from packaging.pylock import PackageWheel, Pylock, PylockSelectError, PylockValidationError

from builder import process
from builder.context import Context
from builder.errors import ExternalError, LockError, MissingError, OfflineError, ToolError
from builder.http import Http, without_credentials
from builder.lock.model import LockedWheel
from builder.lock.platforms import markers, uv_platform, wheel_tags
from builder.pool import threads
from builder.process import Runner
from builder.scratch import scratch_folder

_PASSES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL"),
        *("XDG_CACHE_HOME", "XDG_DATA_HOME", "NETRC"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT"),
        *("UV_CACHE_DIR", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_KEYRING_PROVIDER"),
        *("UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_INSECURE_HOST", "UV_CREDENTIALS_DIR"),
        *("UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_CONCURRENT_DOWNLOADS"),
    }
)
_NO_SOLUTION = "No solution found"
_SIZE_JOBS = 8
_PIN = "pin a version that has a wheel for it; packages are not compiled here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be resolved: PEP 508 `requirements` for CPython `python` (X.Y) on `platform`.

    `exclude` names packages that are dropped wherever they are required; `indexes` maps a name to
    a URL; `pinned` maps a package to the index (by name) that it alone comes from; `settings` are
    uv's own (`exclude-newer`, `prerelease`, `constraint-dependencies`, `override-dependencies`).
    """

    requirements: tuple[str, ...]
    platform: str
    python: str
    glibc: str
    exclude: tuple[str, ...] = ()
    indexes: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """Which of the earlier versions may move: `every` package, or only those in `packages`."""

    every: bool = False
    packages: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is to move at all."""
        return self.every or bool(self.packages)


KEEP = Upgrade()
"""Nothing moves that does not have to."""


def resolve(
    request: Request,
    *,
    context: Context,
    http: Http,
    earlier: Sequence[LockedWheel] = (),
    upgrade: Upgrade = KEEP,
    run: Runner = process.run,
) -> tuple[LockedWheel, ...]:
    """One wheel for each package, in name order, with its hash and its size in bytes.

    Versions in `earlier` stay where they still satisfy the requirements, `upgrade` apart. Raises
    LockError where the requirements cannot be satisfied by wheels for the platform.
    """
    if not request.requirements:
        return ()
    with scratch_folder(context.cache) as folder:
        output = _compile(request, folder, context, earlier, upgrade=upgrade, run=run)
    chosen = _choose(request, _parse(output))
    known = {wheel.sha256: wheel.size for wheel in earlier}
    with threads(_SIZE_JOBS) as pool:
        return tuple(pool.map(lambda item: _locked(item, known, http), chosen))


def uv_version() -> str:
    """The version of the uv that resolves, such as `0.13.8`."""
    done = process.run([_uv(), "--version"], env={})
    return done.stdout.split()[1]


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


def _uv() -> str:
    try:
        return uv.find_uv_bin()
    except FileNotFoundError as error:
        raise MissingError(
            f"uv is not installed: {error}", hint="install it: `pip install uv`"
        ) from None


def _compile(
    request: Request,
    folder: Path,
    context: Context,
    earlier: Sequence[LockedWheel],
    *,
    upgrade: Upgrade,
    run: Runner,
) -> str:
    """The pylock that uv writes for `request`; `folder` is ours and empty."""
    (folder / "pyproject.toml").write_text(_project(request), encoding="utf-8")
    (folder / "uv.toml").write_text(_settings(request), encoding="utf-8")
    output = folder / "pylock.toml"
    if earlier:
        output.write_text(_preferences(earlier), encoding="utf-8")
    argv = [_uv(), *_arguments(request, upgrade), "--output-file", output.name]
    argv += ["--offline"] if context.offline else []
    try:
        run(argv, env=uv_environment(context.environ), cwd=folder)
    except ToolError as error:
        raise _explained(error, context) from None
    return output.read_text(encoding="utf-8")


def _parse(output: str) -> Pylock:
    try:
        return Pylock.from_dict(tomllib.loads(output))
    except (tomllib.TOMLDecodeError, PylockValidationError) as error:
        raise ExternalError(
            f"uv wrote a lock that cannot be read: {error}",
            hint="upgrade uv and spark-build to versions that go together",
        ) from None


def _arguments(request: Request, upgrade: Upgrade) -> list[str]:
    platform = uv_platform(request.platform, request.glibc)
    return [
        *("pip", "compile", "pyproject.toml", "--config-file", "uv.toml"),
        *("--format", "pylock.toml", "--no-header", "--quiet"),
        *("--python-platform", platform, "--python-version", request.python),
        *("--only-binary", ":all:"),
        *(["--upgrade"] if upgrade.every else []),
        *(part for name in upgrade.packages for part in ("--upgrade-package", name)),
    ]


def _explained(error: ToolError, context: Context) -> Exception:
    """What uv printed as a failure of ours: unsatisfiable, offline, or the tool itself."""
    said = [line for line in error.stderr.strip().splitlines() if not line.startswith("warning:")]
    text = "\n".join(said)
    if context.offline and ("network" in text or "cache" in text):
        return OfflineError(
            f"the lock has to be resolved, and the run is offline:\n{text}",
            hint="run `spark-build lock RECIPE` once without --offline",
        )
    if _NO_SOLUTION in text:
        hint = "loosen or correct the requirements that uv names; only wheels can be locked"
        return LockError(f"no set of wheels satisfies the recipe:\n{text}", hint=hint)
    return ExternalError(f"uv could not resolve the recipe:\n{text}", hint=error.hint)


def _project(request: Request) -> str:
    document: dict[str, Any] = {
        "project": {
            "name": "spark-build-recipe",
            "version": "0",
            "requires-python": f"=={request.python}.*",
            "dependencies": list(request.requirements),
        }
    }
    if request.indexes:
        document["tool"] = {
            "uv": {
                "index": [
                    {"name": name, "url": url, "explicit": True}
                    for name, url in sorted(request.indexes.items())
                ],
                "sources": {name: {"index": index} for name, index in request.pinned.items()},
            }
        }
    return tomli_w.dumps(document)


def _settings(request: Request) -> str:
    return tomli_w.dumps({"exclude-dependencies": list(request.exclude), **request.settings})


def _preferences(earlier: Sequence[LockedWheel]) -> str:
    """An earlier resolution in the form that uv reads versions to keep from."""
    packages = [
        {
            "name": wheel.name,
            "version": wheel.version,
            "wheels": [{"url": wheel.url, "hashes": {"sha256": wheel.sha256}}],
        }
        for wheel in earlier
    ]
    return tomli_w.dumps({"lock-version": "1.0", "created-by": "uv", "packages": packages})


def _choose(request: Request, pylock: Pylock) -> list[tuple[str, str, PackageWheel]]:
    """Name, version and the best wheel of every package (PEP 751, "Installation")."""
    environment = markers(request.platform, request.python)
    tags = wheel_tags(request.platform, request.python, request.glibc)
    try:
        selected = list(pylock.select(environment=environment, tags=tags))
    except PylockSelectError as error:
        raise LockError(
            f"{error}: nothing runs on {request.platform} with glibc {request.glibc}", hint=_PIN
        ) from None
    chosen = []
    for package, source in selected:
        if not isinstance(source, PackageWheel) or package.version is None:
            raise LockError(
                f"{package.name}: has no wheel for {request.platform} and Python {request.python}",
                hint=_PIN,
            )
        chosen.append((str(package.name), str(package.version), source))
    return sorted(chosen, key=lambda item: item[0])


def _locked(
    item: tuple[str, str, PackageWheel], known: Mapping[str, int], http: Http
) -> LockedWheel:
    name, version, wheel = item
    sha256 = wheel.hashes.get("sha256")
    if wheel.url is None or sha256 is None:
        raise LockError(f"{name} {version}: the index gives no URL or no sha256 for its wheel")
    size = wheel.size if wheel.size is not None else known.get(sha256)
    return LockedWheel(
        name=name,
        version=version,
        url=without_credentials(wheel.url),
        sha256=sha256,
        size=http.size(wheel.url) if size is None else size,
    )
