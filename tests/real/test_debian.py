"""The Debian base against the real thing: apt's closure, an emulated arm64, a configured system."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from builder import process
from builder.context import Context
from builder.engines.debian.rootfs import write_rootfs
from builder.http import Http
from builder.lock.debs import find_sources, glibc_version, python_version, resolve
from builder.lock.model import LockedDeb
from builder.lock.store import Store
from builder.oci.layer import LayerWriter
from builder.progress import Progress

_SUITE = "trixie"
_SMALL = ("python3", "libgomp1", "libstdc++6")

# What the law has to cover, and two that dpkg itself wants before it configures anything.
_WIDE = (
    *("python3", "python3-venv", "libpython3-dev", "gcc", "libgomp1", "git", "curl"),
    *("numactl", "libnuma1", "openssh-client", "libibverbs1", "procps", "tzdata", "vim-tiny"),
    *("less", "xz-utils", "automake", "fontconfig", "sudo", "iproute2", "libglib2.0-0t64"),
    *("diffutils", "perl-base"),
)

ALLOWED = {
    r"dev/.*": "device nodes and links that every container engine mounts",
    r"etc/(\.pwd\.lock|(passwd|group|shadow|gshadow)-)": "locks and backups of the account tools",
    r"etc/(hostname|resolv\.conf|fstab)": "mmdebstrap's copies from its host",
    r"(etc|var/cache|var/lib|var/log)/apt(/.*)?": "mmdebstrap's own apt; the package is not there",
    r"var/lib/dpkg/arch": "mmdebstrap's note of the foreign architectures",
    r"etc/rc.\.d/.*": "links that start services at boot",
    r"etc/systemd/(system|user)/.*": "units that start at boot",
    r"var/lib/systemd/deb-systemd-.*": "records of those units",
    r"etc/gprofng\.rc\.dpkg-old": "binutils moves its own new file away, a slip in its script",
    r"var/cache/debconf/.*": "answers and templates of questions that nobody was asked",
    r"var/lib/dpkg/diversions(-old)?": "guards of upgrades from an unmerged /usr",
    r"var/lib/dpkg/status-old": "a backup",
    r"var/lib/python(/.*)?": "a mark for byte-compilation",
    r"var/cache/fontconfig/.*|var/log/fontconfig\.log": "a cache that fills on first use",
    r".*/__pycache__(/.*)?": "byte-compiled Python",
    r"var/log/(alternatives|dpkg|bootstrap)\.log": "a diary",
    r"var/cache/ldconfig/.*": "inodes and times of libraries, which a layer does not have",
}
"""What a configured system has and ours has not, or has otherwise; why that is no loss."""

DAYS = re.compile(rb"(?m)^([^:]*:[^:]*):\d+:")
"""In /etc/shadow: when a password was last changed."""


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return Context(environ=os.environ, cache=tmp_path_factory.mktemp("cache"))


def _resolve(context: Context, architecture: str, packages: Sequence[str]) -> tuple[LockedDeb, ...]:
    return resolve(_SUITE, packages, architecture, mirror=None, context=context)


def _layer(context: Context, debs: Sequence[LockedDeb], path: Path) -> str:
    """Fetch and lay out; returns the layer's digest."""
    store = Store(context.cache)
    with Http(context.environ) as http:
        store.fetch(debs, http, Progress(), "debs")
    with path.open("wb") as out:
        writer = LayerWriter(out)
        write_rootfs(writer, [(deb, store.get(deb)) for deb in debs], path.parent)
        return writer.close().digest


@pytest.mark.real("apt")
@pytest.mark.parametrize("architecture", ["arm64", "amd64"])
def test_a_closure_is_whole_and_stable(context: Context, tmp_path: Path, architecture: str) -> None:
    debs = _resolve(context, architecture, _SMALL)
    assert debs == _resolve(context, architecture, _SMALL)
    names = [deb.name for deb in debs]
    assert names == sorted(set(names))
    assert {"base-files", "ca-certificates", "dash", "libc6", *_SMALL} <= set(names)
    assert not {"apt", "perl-base", "systemd"} & set(names)
    assert {deb.architecture for deb in debs} == {architecture, "all"}
    assert all("@" not in deb.url for deb in debs)
    assert (python_version(debs), glibc_version(debs)) == ("3.13", "2.41")
    first = _layer(context, debs, tmp_path / "first")
    assert _layer(context, debs[::-1], tmp_path / "second") == first


@pytest.fixture(scope="module")
def arm64_root(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's base, unpacked."""
    folder = tmp_path_factory.mktemp("arm64")
    _layer(context, _resolve(context, "arm64", _SMALL), folder / "layer")
    root = folder / "root"
    root.mkdir()
    process.run(["tar", "-xpzf", str(folder / "layer"), "-C", str(root)])
    return root


def _inside(root: Path, *argv: str) -> str:
    """What a program in the image prints; it gets no environment but a PATH."""
    return process.run(
        ["chroot", str(root), *argv], env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    ).stdout


@pytest.mark.real("apt", "emulation")
def test_the_real_ldconfig_would_write_the_same_cache(arm64_root: Path) -> None:
    cache = arm64_root / "etc/ld.so.cache"
    ours = cache.read_bytes()
    listed = _inside(arm64_root, "ldconfig", "-p")
    assert "libc.so.6 (libc6,AArch64) => /lib/aarch64-linux-gnu/libc.so.6" in listed
    cache.unlink()
    _inside(arm64_root, "ldconfig")
    assert cache.read_bytes() == ours


@pytest.mark.real("apt", "emulation")
def test_python_starts_and_trusts_the_usual_authorities(arm64_root: Path) -> None:
    program = "import ssl, platform; print(platform.machine(), ssl.create_default_context()"
    program += ".cert_store_stats()['x509_ca'])"
    machine, authorities = _inside(arm64_root, "python3", "-c", program).split()
    assert machine == "aarch64"
    assert int(authorities) > 100


@pytest.mark.real("apt", "emulation")
def test_openssl_finds_every_authority_by_its_hash(arm64_root: Path) -> None:
    certs = arm64_root / "etc/ssl/certs"
    before = {path.name: path.readlink() for path in certs.iterdir() if path.is_symlink()}
    _inside(arm64_root, "openssl", "rehash", "/etc/ssl/certs")
    after = {path.name: path.readlink() for path in certs.iterdir() if path.is_symlink()}
    assert after == before


@pytest.mark.real("apt", "emulation")
def test_dpkg_finds_nothing_wrong(arm64_root: Path) -> None:
    assert _inside(arm64_root, "dpkg", "--audit") == ""
    assert _inside(arm64_root, "dpkg", "-V") == ""
    listed = [line for line in _inside(arm64_root, "dpkg", "-l").splitlines() if line[:2] == "ii"]
    assert len(listed) > 50
    assert _inside(arm64_root, "dpkg", "-S", "/usr/bin/python3").startswith("python3-minimal:")


@pytest.mark.real("apt", "emulation")
def test_accounts_and_shell_work(arm64_root: Path) -> None:
    root = _inside(arm64_root, "getent", "passwd", "root")
    assert root == "root:*:0:0:root:/root:/bin/bash\n"
    assert _inside(arm64_root, "sh", "-c", "awk 'BEGIN { print 6 * 7 }'") == "42\n"


@pytest.mark.real("apt", "mmdebstrap")
def test_a_configured_system_differs_in_what_is_allowed_only(
    context: Context, tmp_path: Path
) -> None:
    """The same packages, installed by dpkg with their scripts run: nothing else may differ.

    For this machine's own architecture, so that the scripts run without emulation.
    """
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    debs = _resolve(context, architecture, _WIDE)
    _layer(context, debs, tmp_path / "layer")
    configured = tmp_path / "configured.tar"
    sources = find_sources(_SUITE, mirror=None, environ=os.environ)
    process.run(
        [
            *("mmdebstrap", f"--architectures={architecture}", "--variant=custom"),
            f"--include={','.join(deb.name for deb in debs)}",
            *(_SUITE, str(configured)),
            *(f"deb {source.url} {source.suite} main" for source in sources),
        ]
    )
    theirs, ours = _tree(configured), _tree(tmp_path / "layer")
    allowed = re.compile("|".join(f"(?:{pattern})" for pattern in ALLOWED))
    different = {
        path: (theirs.get(path), ours.get(path))
        for path in sorted(theirs.keys() | ours.keys())
        if theirs.get(path) != ours.get(path) and not allowed.fullmatch(path)
    }
    assert different == {}


def _tree(path: Path) -> dict[str, tuple[object, ...]]:
    """Type, mode, owner and content of everything in an archive, by path."""
    found: dict[str, tuple[object, ...]] = {}
    with tarfile.open(path) as archive:
        for info in archive:
            name = info.name.removeprefix("./").rstrip("/")
            if name in {"", "."}:
                continue
            if info.islnk():
                found[name] = found[info.linkname.removeprefix("./")]
            elif info.isreg():
                file = archive.extractfile(info)
                assert file is not None
                content = _without_time(name, file.read())
                digest = hashlib.sha256(content).hexdigest()
                found[name] = ("file", oct(info.mode), info.uid, info.gid, digest)
            elif info.issym():
                found[name] = ("link", info.linkname)
            else:
                found[name] = (info.type, oct(info.mode), info.uid, info.gid)
    return found


def _without_time(name: str, content: bytes) -> bytes:
    """A file's content without what depends on the day or the order of installation."""
    if name == "etc/shadow":
        return DAYS.sub(rb"\1:0:", content)
    if name == "var/lib/dpkg/triggers/File":
        return b"".join(sorted(content.splitlines(keepends=True)))
    return content
