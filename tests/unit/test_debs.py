"""What apt is asked and how its answers are read; the real apt is asked in tests/real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builder.context import Context
from builder.errors import (
    ExternalError,
    LockError,
    MissingError,
    OfflineError,
    UsageError,
)
from builder.lock.debs import (
    MINIMAL,
    Source,
    find_sources,
    glibc_version,
    python_version,
    resolve,
)
from builder.lock.model import LockedDeb
from builder.process import Completed

_MIRROR = "https://mirror.example/debian"
_SHA = "ab" * 32


def _uri(name: str, version: str, architecture: str = "arm64") -> str:
    quoted = version.replace(":", "%3a")
    file = f"{name}_{quoted}_{architecture}.deb"
    return f"'{_MIRROR}/pool/{name}.deb' {file} 1234 SHA256:{_SHA}\n"


@dataclass
class Apt:
    """Stands in for apt: answers by verb, and keeps what it was given to read."""

    answers: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    config: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **settings: Any
    ) -> Completed:
        self.calls.append(tuple(argv))
        assert env is not None
        if "APT_CONFIG" in env:
            self.env = env
            config = Path(env["APT_CONFIG"])
            self.config = config.read_text(encoding="utf-8")
            self.sources.append((config.parent / "etc/apt/sources.list").read_text("utf-8"))
        left = self.answers.get(argv[1], [])
        code, out, err = left.pop(0) if left else (0, "", "")
        return Completed(tuple(argv), code, out, err)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host's root with Debian's keys in it."""
    keyring = tmp_path / "host/usr/share/keyrings/debian-archive-keyring.gpg"
    keyring.parent.mkdir(parents=True)
    keyring.touch()
    return tmp_path / "host"


def _resolve(
    apt: Apt,
    host: Path,
    *packages: str,
    suite: str = "trixie",
    mirror: str | None = _MIRROR,
    environ: Mapping[str, str] | None = None,
    offline: bool = False,
) -> tuple[LockedDeb, ...]:
    context = Context(environ=environ or {}, cache=host / "cache", offline=offline)
    return resolve(suite, packages, "arm64", mirror=mirror, context=context, run=apt, host=host)


def test_a_closure_is_locked_in_name_order(host: Path) -> None:
    out = "Reading lists...\n" + _uri("zlib1g", "1:1.3.1-1") + _uri("tzdata", "2026a-1", "all")
    apt = Apt({"install": [(0, out, "")]})
    assert _resolve(apt, host, "python3") == (
        LockedDeb(
            name="tzdata",
            version="2026a-1",
            architecture="all",
            url=f"{_MIRROR}/pool/tzdata.deb",
            sha256=_SHA,
            size=1234,
        ),
        LockedDeb(
            name="zlib1g",
            version="1:1.3.1-1",
            architecture="arm64",
            url=f"{_MIRROR}/pool/zlib1g.deb",
            sha256=_SHA,
            size=1234,
        ),
    )
    install = apt.calls[-1]
    assert set(install) >= {"--print-uris", "python3", *MINIMAL}
    assert not any((host / "cache/scratch").iterdir())


def test_apt_sees_its_own_configuration_and_little_else(host: Path) -> None:
    dump = (
        'APT::Install-Recommends "1";\n'
        'Acquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::http::Proxy::mirror.example "DIRECT";\n'
        'Acquire::https::Verify-Peer "false";\n'
        'Dir::Etc::sourcelist "/etc/apt/sources.list";\n'
    )
    apt = Apt({"dump": [(0, dump, "")], "install": [(0, _uri("dash", "1"), "")]})
    environ = {
        "PATH": "/bin",
        "HOME": "/home/user",
        "https_proxy": "http://other.example",
        "SSL_CERT_FILE": "/etc/own.pem",
        "DPKG_ROOT": "/elsewhere",
        "APT_CONFIG": "/etc/host.conf",
        "LANG": "de_DE.UTF-8",
    }
    _resolve(apt, host, environ=environ)
    assert set(apt.env) == {"PATH", "HOME", "https_proxy", "LC_ALL", "APT_CONFIG"}
    assert 'Acquire::http::Proxy "http://proxy.example:3128";' in apt.config
    assert 'Acquire::http::Proxy::mirror.example "DIRECT";' in apt.config
    assert "Verify-Peer" not in apt.config
    assert "sourcelist" not in apt.config
    assert 'APT::Install-Recommends "false";' in apt.config
    assert 'APT::Architectures "arm64";' in apt.config
    assert 'Acquire::https::CaInfo "/etc/own.pem";' in apt.config
    assert 'Dir::Etc::netrc "/home/user/.netrc";' in apt.config


def test_sources_are_signed_and_absent_ones_are_passed_over(host: Path) -> None:
    def missing(suite: str, url: str = _MIRROR) -> str:
        return f"E: The repository '{url} {suite} Release' does not have a Release file.\n"

    apt = Apt(
        {
            "update": [
                (100, "", missing("trixie-updates")),
                (100, "", missing("trixie-security", f"{_MIRROR}-security")),
                (0, "", ""),
            ],
            "install": [(0, _uri("dash", "1"), "")],
        }
    )
    _resolve(apt, host)
    keyring = host / "usr/share/keyrings/debian-archive-keyring.gpg"
    assert apt.sources[0].splitlines() == [
        f"deb [signed-by={keyring}] {_MIRROR} trixie main",
        f"deb [signed-by={keyring}] {_MIRROR} trixie-updates main",
        f"deb [signed-by={keyring}] {_MIRROR}-security trixie-security main",
    ]
    assert apt.sources[-1].splitlines() == [f"deb [signed-by={keyring}] {_MIRROR} trixie main"]


@pytest.mark.parametrize(
    ("stderr", "error", "words"),
    [
        (
            f"E: The repository '{_MIRROR} trixie Release' does not have a Release file.",
            LockError,
            "no such suite",
        ),
        ("E: Failed to fetch … Connection refused", ExternalError, "Connection refused"),
        ("W: GPG error: NO_PUBKEY 0E98\nE: … is not signed.", MissingError, "a key that this host"),
    ],
)
def test_what_can_be_wrong_with_a_mirror(
    host: Path, stderr: str, error: type[Exception], words: str
) -> None:
    apt = Apt({"update": [(100, "", stderr)]})
    with pytest.raises(error, match=words):
        _resolve(apt, host)


@pytest.mark.parametrize(
    ("code", "out", "err", "words"),
    [
        (100, "", "E: Unable to locate package nosuch", "Unable to locate package nosuch"),
        (
            100,
            "The following packages have unmet dependencies:\n a : Depends: b but it is not\n",
            "E: Unable to correct problems",
            "a : Depends: b but it is not",
        ),
        (0, "Note, selecting 'libx' for regex 'x.1'\n" + _uri("libx", "1"), "", "no package x.1"),
    ],
)
def test_packages_that_cannot_be_had(host: Path, code: int, out: str, err: str, words: str) -> None:
    with pytest.raises(LockError, match=words):
        _resolve(Apt({"install": [(code, out, err)]}), host, "nosuch")


def test_the_host_must_have_keys_and_apt(host: Path) -> None:
    def absent(*args: object, **kwargs: object) -> Completed:
        raise MissingError("apt-config: No such file or directory")

    def resolve_on(root: Path) -> None:
        context = Context(environ={}, cache=host / "cache")
        resolve("trixie", [], "arm64", mirror=_MIRROR, context=context, run=absent, host=root)

    with pytest.raises(MissingError, match="apt is not installed"):
        resolve_on(host)
    with pytest.raises(MissingError, match="no keys") as caught:
        resolve_on(host / "nowhere")
    assert "debian-archive-keyring" in (caught.value.hint or "")


def test_loose_keys_do(host: Path) -> None:
    (host / "usr/share/keyrings/debian-archive-keyring.gpg").unlink()
    trusted = host / "etc/apt/trusted.gpg.d"
    trusted.mkdir(parents=True)
    for name in ("debian-archive-b.asc", "debian-archive-a.gpg", "debian-archive.txt", "x.gpg"):
        (trusted / name).touch()
    apt = Apt({"install": [(0, _uri("dash", "1"), "")]})
    _resolve(apt, host)
    keys = f"{trusted}/debian-archive-a.gpg,{trusted}/debian-archive-b.asc"
    assert f"[signed-by={keys}]" in apt.sources[0]


def test_offline_is_refused_before_anything_runs(host: Path) -> None:
    apt = Apt()
    with pytest.raises(OfflineError):
        _resolve(apt, host, offline=True)
    assert apt.calls == []


@pytest.mark.parametrize("name", ["G++", "-o", "thing-", "thing/sid", "lib.*", "a b", "x", "é"])
def test_names_that_apt_would_take_for_something_else(host: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not the name of a Debian package"):
        _resolve(Apt(), host, name)


@pytest.mark.parametrize("suite", ["", "Trixie", "trixie main", "../trixie"])
def test_suites_that_are_none(host: Path, suite: str) -> None:
    with pytest.raises(UsageError, match="Debian suite"):
        _resolve(Apt(), host, suite=suite)


@pytest.mark.parametrize(
    ("mirror", "words"),
    [
        ("ftp://mirror.example/debian", "not an http or https URL"),
        ("mirror.example/debian", "not an http or https URL"),
        ("https://user:hunter2@mirror.example/debian", "carries credentials"),
        ("https://mirror.example/debian?token=hunter2", "carries credentials"),
    ],
)
def test_mirrors_that_a_lock_cannot_name(host: Path, mirror: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        _resolve(Apt(), host, mirror=mirror)
    assert "hunter2" not in f"{caught.value.message}{caught.value.hint}"


def _sources(host: Path, apt: Apt, *, mirror: str | None = None, **environ: str) -> list[str]:
    found = find_sources("trixie", mirror=mirror, environ=environ, run=apt, host=host)
    return [f"{source.url} {source.suite}" for source in found]


def test_the_recipe_goes_before_the_variable_before_the_host(host: Path) -> None:
    def listing() -> Apt:
        targets = (
            "http://own.example/debian/ bookworm Debian\n"
            "http://sec.example/debian-security/ bookworm-security Debian\n"
            "http://other.example/thing/ stable Other\n"
        )
        return Apt({"indextargets": [(0, targets, ""), (0, "", "")]})

    given = {"SPARK_BUILD_DEBIAN_MIRROR": "https://variable.example/debian"}
    assert _sources(host, listing(), mirror=_MIRROR, **given)[0] == f"{_MIRROR} trixie"
    assert _sources(host, listing(), **given)[0] == "https://variable.example/debian trixie"
    assert _sources(host, listing()) == [
        "http://own.example/debian trixie",
        "http://own.example/debian trixie-updates",
        "http://sec.example/debian-security trixie-security",
    ]


def test_a_host_without_lists_is_read_by_paths(host: Path) -> None:
    unread = "http://u.example/ubuntu/ noble $(ORIGIN)\nhttp://d.example/debian/ trixie $(ORIGIN)\n"
    apt = Apt({"indextargets": [(0, "", ""), (0, unread, "")]})
    assert _sources(host, apt)[0] == "http://d.example/debian trixie"


def test_a_list_of_mirrors_gives_its_first(host: Path) -> None:
    mirrors = host / "etc/apt/mirrors/debian.list"
    mirrors.parent.mkdir(parents=True)
    mirrors.write_text("# nearest\nhttps://near.example/debian\tpriority:1\nhttps://far.example/\n")
    targets = (
        "cdrom:[Disc]/ trixie Debian\n"
        "mirror+file:/etc/apt/mirrors/gone.list/ trixie Debian\n"
        "mirror+file:/etc/apt/mirrors/debian.list/ trixie Debian\n"
    )
    apt = Apt({"indextargets": [(0, targets, "")]})
    assert _sources(host, apt)[0] == "https://near.example/debian trixie"


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("usr/share/debootstrap/scripts/trixie", "default_mirror http://d.example/debian\n"),
        ("usr/sbin/debootstrap", 'DEF_MIRROR="http://d.example/debian"\n'),
        ("usr/bin/mmdebstrap", "    my $mirror    = 'http://d.example/debian';\n"),
    ],
)
def test_another_tools_default_is_the_last_resort(host: Path, place: str, line: str) -> None:
    apt = Apt({"indextargets": [(0, "http://u.example/ubuntu/ noble Ubuntu\n", "")]})
    with pytest.raises(MissingError, match="no Debian mirror"):
        _sources(host, apt)
    (host / place).parent.mkdir(parents=True, exist_ok=True)
    (host / place).write_text(line)
    assert _sources(host, Apt())[0] == "http://d.example/debian trixie"


@pytest.mark.parametrize(
    ("mirror", "security"),
    [
        ("https://m.example/debian", "https://m.example/debian-security"),
        (
            "https://m.example/archive/debian/20260101T000000Z",
            "https://m.example/archive/debian-security/20260101T000000Z",
        ),
        ("https://m.example/mirror", None),
    ],
)
def test_the_security_archive_is_the_sibling(host: Path, mirror: str, security: str | None) -> None:
    found = find_sources("trixie", mirror=mirror, environ={}, run=Apt(), host=host)
    expected = [Source(url=mirror, suite="trixie")]
    expected.append(Source(url=mirror, suite="trixie-updates", extra=True))
    if security:
        expected.append(Source(url=security, suite="trixie-security", extra=True))
    assert list(found) == expected


def test_rolling_suites_have_no_others(host: Path) -> None:
    found = find_sources("sid", mirror=f"{_MIRROR}/", environ={}, run=Apt(), host=host)
    assert found == (Source(url=_MIRROR, suite="sid"),)


def _deb(name: str, version: str) -> LockedDeb:
    return LockedDeb(
        name=name,
        version=version,
        architecture="arm64",
        url="https://x.example/",
        sha256="",
        size=0,
    )


def test_versions_of_the_base() -> None:
    debs = [_deb("libc6", "2.41-12+deb13u4"), _deb("python3", "3.13.5-1")]
    assert (python_version(debs), glibc_version(debs)) == ("3.13", "2.41")
    assert python_version(debs[:1]) is None
    assert glibc_version([_deb("libc6", "1:2.9-1")]) == "2.9"
    with pytest.raises(LockError, match="no libc6"):
        glibc_version([])
