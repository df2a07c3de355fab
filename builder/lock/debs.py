"""Distribution packages by hash: what a suite gives for some package names, on any host.

The host's apt resolves in a private root, as mmdebstrap has it do: its own configuration, sources,
lists and an empty dpkg status, so neither the packages nor the settings of the host count. Only
what is needed to get out passes: proxies, certificates, for a mirror that asks for them the
credentials in the caller's netrc, and whether the host takes a frozen mirror's old lists. Nothing
but the indices is downloaded, and nothing is installed.

Where the packages come from, the first that is there:

1. the recipe's `mirror`;
2. the variable SPARK_BUILD_DEBIAN_MIRROR;
3. the archive that the host's own sources name, where they are Debian's;
4. the default that an installed debootstrap or mmdebstrap carries.

Beside SUITE the suites SUITE-updates and SUITE-security are read where they exist; unstable and
testing have none worth reading. The security archive is the host's own, or the mirror's sibling:
its path with `debian` replaced by `debian-security`. One that is not there is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from builder import process
from builder.context import Context
from builder.errors import (
    BuilderError,
    ExternalError,
    LockError,
    MissingError,
    OfflineError,
    UsageError,
)
from builder.http import redact
from builder.lock.model import LockedDeb
from builder.process import Completed, Runner
from builder.scratch import scratch_folder

MIRROR_VARIABLE = "SPARK_BUILD_DEBIAN_MIRROR"

MINIMAL = (
    "base-files",  # the folders, /etc/os-release, and the links of the merged /usr
    "base-passwd",  # users and groups; brings dpkg's own tools with it
    "bash",
    "ca-certificates",  # TLS, for hub downloads as for pip
    "coreutils",
    "dash",  # /bin/sh
    "findutils",
    "grep",
    "gzip",
    "libc-bin",  # ldconfig and getent: Triton and bitsandbytes ask the first where libcuda is
    "sed",
    "usr-is-merged",  # says that /bin, /lib and /sbin are links, which new packages demand
)
"""Always there: a shell, TLS, users, and the tools that every launcher script takes for granted.

No apt, perl or login, and no package for its priority alone: 57 packages on trixie with python3.
"""

_ROLLING = frozenset({"sid", "unstable", "testing", "experimental", "rc-buggy"})
_SUITE = re.compile(r"[a-z][a-z0-9-]*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+:~-]+)?")  # Debian Policy 5.6.1, 5.6.12
_KEYRINGS = ("debian-archive-keyring.pgp", "debian-archive-keyring.gpg")
_SETTINGS = re.compile(
    r"Acquire::(https?::(Proxy(::.+)?|Proxy-?Auto-?Detect|CaInfo|CaPath|SslCert|SslKey)"
    r"|Check-Valid-Until|Check-Date) "
)
_PASSED = ("PATH", "HOME", "TMPDIR", "SSL_CERT_DIR")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_URI = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")
_NO_RELEASE = re.compile(r"The repository '(?P<repository>\S+ \S+) Release' does not have")
_DEFAULT_MIRROR = re.compile(
    r"""^\s*(?:DEF_MIRROR=|default_mirror\s+|my\s+\$mirror\s*=\s*)["']?(?P<url>https?://[^"'\s;]+)""",
    re.MULTILINE,
)
_DEBIAN_PATH = re.compile(r"/debian(-security)?/?$")
_CARRIERS = (
    "usr/share/debootstrap/scripts/{suite}",
    "usr/share/debootstrap/scripts/sid",
    "usr/sbin/debootstrap",
    "usr/bin/mmdebstrap",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One line of sources.list: `suite` of the archive at `url`; an `extra` one may be absent."""

    url: str
    suite: str
    extra: bool = False


def resolve(
    suite: str,
    packages: Sequence[str],
    architecture: str,
    *,
    mirror: str | None,
    context: Context,
    run: Runner = process.run,
    host: Path = Path("/"),
) -> tuple[LockedDeb, ...]:
    """Every .deb that `packages`, the minimal set and all they depend on come to, in name order.

    `packages` are names, or `name=version`; recommended packages are not taken. `architecture` is
    Debian's word (`arm64`, `amd64`). `host` is the root of the file system in which keyrings and
    other tools' defaults are looked for.

    Raises OfflineError where the run is offline, MissingError where the host has no apt, no
    archive keyring or no mirror to ask, LockError where the suite does not have a package or not
    all that it needs, ExternalError where the mirror cannot be read.
    """
    _check_names(suite, packages)
    if context.offline:
        raise OfflineError(
            f"the packages of {suite} have to be asked for, and the run is offline",
            hint="run once without --offline; the lock then names every package by hash",
        )
    keyring = _find_keyring(host)
    settings = _host_settings(context.environ, run)
    sources = find_sources(suite, mirror=mirror, environ=context.environ, run=run, host=host)
    with scratch_folder(context.cache.absolute()) as folder:
        apt = _PrivateApt(folder, keyring, context.environ, run)
        apt.configure(architecture, settings)
        apt.update(sources)
        return apt.closure(suite, sorted({*MINIMAL, *packages}))


def find_sources(
    suite: str,
    *,
    mirror: str | None,
    environ: Mapping[str, str],
    run: Runner = process.run,
    host: Path = Path("/"),
) -> tuple[Source, ...]:
    """Where to look for `suite`, the suite itself first; the order is this module's docstring."""
    named = mirror or environ.get(MIRROR_VARIABLE)
    own = [] if named else _host_archives(environ, run, host)
    main = next((url for url, name in own if not name.endswith("-security")), None)
    url = named or main or _carried_mirror(suite, host)
    if url is None:
        raise MissingError(
            "no Debian mirror is known on this host",
            hint=f"name one: `mirror:` beside `suite:` in the recipe, or {MIRROR_VARIABLE}",
        )
    url = _clean(url)
    sources = [Source(url=url, suite=suite)]
    if suite not in _ROLLING:
        sources.append(Source(url=url, suite=f"{suite}-updates", extra=True))
        own_security = next((url for url, name in own if name.endswith("-security")), None)
        security = _clean(own_security) if own_security else _security_sibling(url)
        if security is not None:
            sources.append(Source(url=security, suite=f"{suite}-security", extra=True))
    return tuple(sources)


def python_version(debs: Sequence[LockedDeb]) -> str | None:
    """X.Y of the base's `python3`, None where it has none."""
    return _release(debs, "python3")


def glibc_version(debs: Sequence[LockedDeb]) -> str:
    """2.N of the base's C library."""
    version = _release(debs, "libc6")
    if version is None:
        raise LockError("the base has no libc6, so nothing that is built for glibc can run in it")
    return version


def _release(debs: Sequence[LockedDeb], name: str) -> str | None:
    """The first two numbers of a package's upstream version (Debian Policy 5.6.12)."""
    found = next((deb.version for deb in debs if deb.name == name), None)
    match = re.match(r"(?:\d+:)?(\d+\.\d+)", found or "")
    return match[1] if match else None


def _check_names(suite: str, packages: Sequence[str]) -> None:
    if not _SUITE.fullmatch(suite):
        raise UsageError(f"{suite!r} is not the name of a Debian suite", hint="such as: trixie")
    for package in packages:
        # apt reads a trailing minus as "remove" and much else as a pattern or an option.
        if not _PACKAGE.fullmatch(package) or package.endswith("-"):
            raise UsageError(
                f"{package!r} is not the name of a Debian package",
                hint="lower case letters, digits, + - and . only; `name=version` pins a version",
            )


def _find_keyring(host: Path) -> str:
    """The keys that Debian signs with, as the value of apt's signed-by option."""
    for name in _KEYRINGS:
        path = host / "usr/share/keyrings" / name
        if path.is_file():
            return str(path)
    trusted = (host / "etc/apt/trusted.gpg.d").glob("debian-archive-*")
    paths = sorted(str(path) for path in trusted if path.suffix in {".asc", ".gpg", ".pgp"})
    if paths:
        return ",".join(paths)
    raise MissingError(
        "this host has no keys to check Debian's signatures with",
        hint="install the package debian-archive-keyring",
    )


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What of the caller's environment a private apt gets to see."""
    proxies = {name for lower in _PROXIES for name in (lower, lower.upper())}
    kept = {name: environ[name] for name in {*_PASSED, *proxies} if name in environ}
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **kept, "LC_ALL": "C.UTF-8"}


def _host_settings(environ: Mapping[str, str], run: Runner) -> list[str]:
    """The settings of the host's apt that say how to get out, as lines for our own."""
    try:
        dump = run(["apt-config", "dump"], env=_environment(environ))
    except MissingError:
        raise MissingError(
            "apt is not installed, and packages are resolved with it",
            hint="Debian, Ubuntu and Fedora have a package `apt`; or lock on another machine: "
            "a build from the lock needs no apt",
        ) from None
    return [line for line in dump.stdout.splitlines() if _SETTINGS.match(line)]


def _host_archives(environ: Mapping[str, str], run: Runner, host: Path) -> list[tuple[str, str]]:
    """URL and suite of every Debian archive among the host's own sources.

    The Origin in a Release file says whose an archive is, but a container image often has no
    lists; then the last part of its path has to do, and the signature decides later.
    """
    fields = "$(REPO_URI) $(RELEASE) $(ORIGIN)"
    command = ["apt-get", "indextargets", "--format", fields]
    chosen = "Created-By: Packages"
    found = run([*command, chosen], env=_environment(environ), check=False).stdout
    unread = run([*command, "--no-release-info", chosen], env=_environment(environ), check=False)
    archives = [line.split(maxsplit=2) for line in found.splitlines()]
    archives += [[*line.split(maxsplit=2)[:2], ""] for line in unread.stdout.splitlines()]
    found_archives = []
    for spelled, suite, origin in (archive for archive in archives if len(archive) == 3):
        url = _http_url(spelled, host)
        known = origin == "Debian" or (not origin and _DEBIAN_PATH.search(url or ""))
        if url and known:
            found_archives.append((url, suite))
    return found_archives


def _http_url(url: str, host: Path) -> str | None:
    """The URL itself, or the first in the file of mirrors that it names (apt-transport-mirror(1)).

    None for what a lock cannot name: CDs, folders, onion services.
    """
    scheme, _, rest = url.partition(":")
    if scheme in {"http", "https"}:
        return url
    if scheme != "mirror+file":
        return None
    try:
        text = (host / rest.strip("/")).read_text("utf-8", "replace")
    except OSError:
        return None
    return next((line.split()[0] for line in text.splitlines() if line.startswith("http")), None)


def _carried_mirror(suite: str, host: Path) -> str | None:
    """The mirror that another bootstrapping tool falls back to."""
    for place in _CARRIERS:
        try:
            text = (host / place.format(suite=suite)).read_text("utf-8", "replace")
        except OSError:
            continue
        match = _DEFAULT_MIRROR.search(text)
        if match:
            return match["url"]
    return None


def _clean(url: str) -> str:
    """A mirror's URL without a slash at its end; refused where a lock could not name it."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"the mirror {redact(url)!r} is not an http or https URL")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            f"the mirror {redact(url)} carries credentials or a query in its URL",
            hint="a lock must not hold secrets: put user and password into ~/.netrc",
        )
    return url.rstrip("/")


def _security_sibling(url: str) -> str | None:
    """The same server's security archive, where the path has exactly one part `debian`."""
    parts = urlsplit(url)
    path = parts.path.split("/")
    if path.count("debian") != 1:
        return None
    path[path.index("debian")] = "debian-security"
    return parts._replace(path="/".join(path)).geturl()


class _PrivateApt:
    """apt in a root of its own: `folder` holds all that it reads and writes."""

    def __init__(self, folder: Path, keyring: str, environ: Mapping[str, str], run: Runner) -> None:
        self._folder = folder
        self._keyring = keyring
        self._run = run
        self._netrc = environ.get("NETRC") or str(Path(environ.get("HOME", "/")) / ".netrc")
        self._ca = environ.get("SSL_CERT_FILE")
        self._env = {**_environment(environ), "APT_CONFIG": str(folder / "apt.conf")}

    def configure(self, architecture: str, settings: Sequence[str]) -> None:
        """Lay out the empty root and write its apt.conf."""
        for name in (
            "etc/apt/preferences.d",
            "etc/apt/sources.list.d",
            "state/lists/partial",
            "cache/archives/partial",
            "log",
        ):
            (self._folder / name).mkdir(parents=True)
        (self._folder / "status").touch()
        values = {
            "Dir": str(self._folder),
            "Dir::Etc": "etc/apt/",
            "Dir::Etc::main": "/dev/null",
            "Dir::Etc::parts": "/dev/null",
            "Dir::Etc::netrc": self._netrc,
            "Dir::State": "state/",
            "Dir::State::lists": "lists/",
            "Dir::State::status": str(self._folder / "status"),
            "Dir::Cache": "cache/",
            "Dir::Log": "log/",
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Install-Recommends": "false",
            "APT::Install-Suggests": "false",
            # The download user of a root's apt could not enter a cache that only root may read.
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::ForceHash": "SHA256",
            "Acquire::Retries": "3",
        }
        if self._ca:
            values["Acquire::https::CaInfo"] = self._ca
        lines = [f'{key} "{value}";' for key, value in values.items()]
        text = "\n".join([*settings, *lines, ""])
        (self._folder / "apt.conf").write_text(text, encoding="utf-8")

    def update(self, sources: Sequence[Source]) -> None:
        """Fetch the indices; a source that is `extra` and not there is left out."""
        wanted = list(sources)
        while True:
            self._write_sources(wanted)
            done = self._apt("update", "-q", "-o", "APT::Update::Error-Mode=any")
            if done.returncode == 0:
                return
            absent = {match["repository"] for match in _NO_RELEASE.finditer(done.stderr)}
            kept = [
                source
                for source in wanted
                if not (source.extra and f"{source.url} {source.suite}" in absent)
            ]
            if len(kept) == len(wanted):
                raise _unreadable(sources[0], absent, done)
            wanted = kept

    def closure(self, suite: str, packages: Sequence[str]) -> tuple[LockedDeb, ...]:
        """What apt would install, from its own list of URIs."""
        done = self._apt("install", "-q", "--yes", "--print-uris", *packages)
        # Where no package has a name, apt takes it for a pattern and says so only in a note.
        guessed = re.search(
            r"^Note, selecting .* for (?:regex|glob|task) '(.+)'", done.stdout, re.MULTILINE
        )
        if guessed:
            raise LockError(f"{suite} has no package {guessed[1]}")
        if done.returncode != 0:
            raise _unsatisfied(suite, done)
        debs = (_locked(match) for match in _URI.finditer(done.stdout))
        found = tuple(sorted(debs, key=lambda deb: deb.name))
        if not found:
            raise ExternalError("apt printed no packages where it should have", hint=_tail(done))
        return found

    def _write_sources(self, sources: Sequence[Source]) -> None:
        lines = [
            f"deb [signed-by={self._keyring}] {source.url} {source.suite} main\n"
            for source in sources
        ]
        path = self._folder / "etc/apt/sources.list"
        path.write_text("".join(lines), encoding="utf-8")

    def _apt(self, verb: str, *arguments: str) -> Completed:
        return self._run(["apt-get", verb, *arguments], env=self._env, check=False)


def _locked(match: re.Match[str]) -> LockedDeb:
    """One line of --print-uris; the file is `name_version_architecture.deb`, a colon as %3a."""
    name, version, rest = match["file"].split("_")
    return LockedDeb(
        name=unquote(name),
        version=unquote(version),
        architecture=rest.removesuffix(".deb"),
        url=match["uri"],
        sha256=match["sha256"],
        size=int(match["size"]),
    )


def _unreadable(main: Source, absent: set[str], done: Completed) -> BuilderError:
    place = f"{redact(main.url)} {main.suite}"
    if f"{main.url} {main.suite}" in absent:
        return LockError(
            f"{place}: the mirror has no such suite", hint="mind the spelling: trixie, bookworm"
        )
    if "NO_PUBKEY" in done.stderr or "is not signed" in done.stderr:
        return MissingError(
            f"{place}: signed with a key that this host does not have:\n{_tail(done)}",
            hint="install a newer debian-archive-keyring",
        )
    return ExternalError(
        f"{place}: the package lists cannot be read:\n{_tail(done)}",
        hint=f"try again, or name another mirror in {MIRROR_VARIABLE}",
    )


def _unsatisfied(suite: str, done: Completed) -> LockError:
    """Apt's own explanation: the indented lines on stdout, and its errors."""
    unmet = [line for line in done.stdout.splitlines() if line.startswith(" ") and ": " in line]
    return LockError(
        f"{suite} cannot give these packages:\n" + "\n".join([*unmet, _tail(done)]),
        hint="mind the spelling, and that packages differ between suites",
    )


def _tail(done: Completed) -> str:
    lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
    return "\n".join(f"  {line}" for line in lines[-8:])
