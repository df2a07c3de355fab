"""A whole root file system out of small packages: the same bytes always, and what scripts leave."""

from __future__ import annotations

import hashlib
import io
import os
import random
from pathlib import Path

import pytest

from builder.engines.debian.rootfs import layout_key, write_rootfs
from builder.errors import ExternalError, UsageError
from builder.oci.layer import LayerDigest, LayerWriter

from .debian_packages import Archive, Layer, deb_bytes, elf, member, written

_PASSWD = b"root:*:0:0:root:/root:/bin/bash\nnobody:*:65534:65534:nobody:/:/usr/sbin/nologin\n"
_GROUP = b"root:*:0:\nmail:*:8:\nshadow:*:42:\nutmp:*:43:\nusers:*:100:\n"
_CONFFILE = b"setting = 1\n"
_SCRIPT = "#!/bin/sh\nwork\n"


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Packages with the names of Debian's own, so that the shipped law applies to them."""
    folder = tmp_path / "debs"
    folder.mkdir()
    archive = Archive(folder)
    archive.add(
        "base-files",
        member("etc"),
        member("etc/dpkg/origins/debian", b"Vendor: Debian\n"),
        member("tmp", mode=0o1777),
        member("usr/share/base-files/profile", b"PATH=/bin\n"),
        member("var/lock", mode=0o1777),
        control={"postinst": _SCRIPT, "triggers": "interest-noawait /usr/lib32\n"},
    )
    archive.add(
        "base-passwd",
        member("usr/share/base-passwd/passwd.master", _PASSWD),
        member("usr/share/base-passwd/group.master", _GROUP),
        control={"postinst": _SCRIPT},
    )
    archive.add(
        "libc-bin",
        member("etc/ld.so.conf", b"/usr/local/lib\n"),
        version="2.41-12",
        architecture="arm64",
        control={"postinst": _SCRIPT, "triggers": "interest-await ldconfig\n"},
    )
    archive.add(
        "libone1",
        member("usr/lib/aarch64-linux-gnu/libone.so.1", elf("libone.so.1")),
        architecture="arm64",
        fields={"Multi-Arch": "same", "Section": "libs"},
        control={"triggers": "activate-noawait ldconfig\n"},
    )
    archive.add(
        "openssh-client",
        member("etc/ssh/ssh_config", _CONFFILE),
        member("usr/bin/ssh-agent", b"agent", mode=0o755),
        control={"postinst": _SCRIPT, "conffiles": "/etc/ssh/ssh_config\n"},
    )
    archive.add("libibverbs1", control={"postinst": _SCRIPT})
    archive.add(
        "debianutils",
        member("usr/share/debianutils/shells", b"# shells\n/bin/sh\n"),
        member("usr/share/debianutils/shells.d/bash", b"/bin/bash\n"),
        control={"postinst": _SCRIPT},
    )
    archive.add(
        "mawk",
        member("usr/bin/mawk", b"awk", mode=0o755),
        control={
            "postinst": "update-alternatives --install /usr/bin/awk awk /usr/bin/mawk 5"
            " --slave /usr/bin/nawk nawk /usr/bin/mawk --slave /usr/bin/no no /usr/bin/none\n"
        },
    )
    archive.add(
        "gawk",
        member("usr/bin/gawk", b"awk", mode=0o755),
        control={"postinst": "update-alternatives --install /usr/bin/awk awk /usr/bin/gawk 10\n"},
    )
    archive.add("python3.13-minimal", control={"postinst": _SCRIPT})
    return archive


def _write(archive: Archive, tmp_path: Path) -> bytes:
    return written(lambda writer: write_rootfs(writer, archive.debs, tmp_path))


def test_the_same_packages_give_the_same_bytes(archive: Archive, tmp_path: Path) -> None:
    first = _write(archive, tmp_path)
    umask = os.umask(0o077)
    try:
        random.Random(2).shuffle(archive.debs)
        assert _write(archive, tmp_path) == first
    finally:
        os.umask(umask)


def test_the_bytes_are_these(tmp_path: Path) -> None:
    """A golden digest: where it changes, layers change for everyone, and so must the version."""
    folder = tmp_path / "debs"
    folder.mkdir()
    small = Archive(folder)
    small.add("one", member("usr/bin/one", b"1", mode=0o755), member("bin/two", b"2"))
    out = io.BytesIO()
    writer = LayerWriter(out)
    write_rootfs(writer, small.debs, tmp_path)
    digest = writer.close()
    assert digest == LayerDigest(
        diff_id="sha256:f23d17aff1c8e71756c4a0411c6fbc192004c1f019f54a2f05f95a0c88b6e937",
        digest="sha256:ae2633344501737ff762039bffea39a297ebcc25741db2d429ddac6deb4b92a7",
        size=len(out.getvalue()),
    )


def test_accounts_and_groups_of_packages(archive: Archive, tmp_path: Path) -> None:
    layer = Layer(_write(archive, tmp_path))
    assert layer.read("etc/passwd") == _PASSWD
    assert layer.read("etc/group") == _GROUP + b"rdma:x:101:\n_ssh:x:102:\n"
    assert "etc/shadow" not in layer.names
    agent = layer["usr/bin/ssh-agent"]
    assert (agent.mode, agent.uid, agent.gid) == (0o2755, 0, 102)


def test_passwd_brings_shadow_files(archive: Archive, tmp_path: Path) -> None:
    archive.add("passwd", control={"postinst": _SCRIPT})
    layer = Layer(_write(archive, tmp_path))
    assert layer.read("etc/passwd").startswith(b"root:x:0:0:root:/root:/bin/bash\n")
    assert layer.read("etc/shadow").startswith(b"root:*:3652:0:99999:7:::\n")
    assert layer.read("etc/gshadow").endswith(b"users:*::\nrdma:!::\n_ssh:!::\n")
    assert (layer["etc/shadow"].mode, layer["etc/shadow"].gid) == (0o640, 42)


def test_what_base_files_leaves(archive: Archive, tmp_path: Path) -> None:
    layer = Layer(_write(archive, tmp_path))
    assert layer.read("etc/profile") == b"PATH=/bin\n"
    assert layer["var/lock"].linkname == "/run/lock"
    assert (layer["run/lock"].mode, layer["tmp"].mode) == (0o1777, 0o1777)
    assert (layer["var/mail"].mode, layer["var/mail"].gid) == (0o2775, 8)
    assert layer["opt"].isdir()
    assert layer["usr/local/lib/python3.13/dist-packages"].isdir()
    assert {name: layer[name].linkname for name in ("bin", "lib", "sbin")} == {
        "bin": "usr/bin",
        "lib": "usr/lib",
        "sbin": "usr/sbin",
    }
    assert layer.read("etc/shells") == b"# shells\n/bin/sh\n/usr/bin/sh\n/bin/bash\n/usr/bin/bash\n"


def test_the_best_alternative_is_linked_and_all_are_recorded(
    archive: Archive, tmp_path: Path
) -> None:
    layer = Layer(_write(archive, tmp_path))
    assert layer["usr/bin/awk"].linkname == "/etc/alternatives/awk"
    assert layer["etc/alternatives/awk"].linkname == "/usr/bin/gawk"
    assert "usr/bin/nawk" not in layer.names  # gawk has no such slave
    assert layer.read("var/lib/dpkg/alternatives/awk").decode() == (
        "auto\n/usr/bin/awk\nnawk\n/usr/bin/nawk\nno\n/usr/bin/no\n\n"
        "/usr/bin/gawk\n10\n\n\n"
        "/usr/bin/mawk\n5\n/usr/bin/mawk\n/usr/bin/none\n\n"
    )


def test_dpkgs_records(archive: Archive, tmp_path: Path) -> None:
    layer = Layer(_write(archive, tmp_path))
    status = layer.read("var/lib/dpkg/status").decode()
    stanzas = {stanza.split("\n")[0]: stanza for stanza in status.split("\n\n") if stanza}
    assert list(stanzas) == sorted(stanzas)
    assert stanzas["Package: libone1"] == (
        "Package: libone1\nStatus: install ok installed\nSection: libs\n"
        "Maintainer: Nobody <nobody@example.org>\nArchitecture: arm64\nMulti-Arch: same\n"
        "Version: 1.0-1\nDescription: the package libone1\n of a test"
    )
    md5 = hashlib.md5(_CONFFILE).hexdigest()
    assert f"\nConffiles:\n /etc/ssh/ssh_config {md5}\n" in stanzas["Package: openssh-client"]
    info = "var/lib/dpkg/info"
    assert layer.read(f"{info}/openssh-client.list") == (
        b"/.\n/etc/ssh/ssh_config\n/usr/bin/ssh-agent\n"
    )
    assert f"{info}/libone1:arm64.list" in layer.names
    assert layer[f"{info}/mawk.postinst"].mode == 0o755
    assert layer.read("var/lib/dpkg/triggers/File") == b"/usr/lib32 base-files/noawait\n"
    assert layer.read("var/lib/dpkg/triggers/ldconfig") == b"libc-bin\n"


def test_the_loaders_cache_is_there(archive: Archive, tmp_path: Path) -> None:
    cache = Layer(_write(archive, tmp_path)).read("etc/ld.so.cache")
    assert cache.startswith(b"glibc-ld.so.cache1.1\x01\0\0\0")
    assert b"/lib/aarch64-linux-gnu/libone.so.1\0" in cache
    assert cache.endswith(b"ldconfig (Debian GLIBC 2.41-12) stable release version 2.41")


def test_an_unread_script_is_refused_before_anything_is_written(
    archive: Archive, tmp_path: Path
) -> None:
    archive.add("strange", control={"postinst": "#!/bin/sh\nformat-disk /dev/sda\n"})
    out = io.BytesIO()
    with pytest.raises(UsageError, match="strange: its postinst script says: format-disk"):
        write_rootfs(LayerWriter(out), archive.debs, tmp_path)
    assert out.getvalue() == b""


def test_work_that_would_be_found_is_refused(archive: Archive, tmp_path: Path) -> None:
    archive.add(
        "libglib2.0-0t64",
        member("usr/share/glib-2.0/schemas"),
        architecture="arm64",
        control={"postinst": _SCRIPT},
    )
    assert _write(archive, tmp_path)
    archive.add("desktop", member("usr/share/glib-2.0/schemas/a.gschema.xml", b"<schemalist/>"))
    with pytest.raises(UsageError, match=r"libglib2\.0-0t64: has to work on"):
        _write(archive, tmp_path)


def test_a_file_that_holds_another_package_is_refused(archive: Archive, tmp_path: Path) -> None:
    archive.add_bytes("expected", deb_bytes("surprise"))
    with pytest.raises(ExternalError, match="and the lock says expected"):
        _write(archive, tmp_path)


def test_the_layouts_key_is_a_digest() -> None:
    assert len(layout_key()) == 64
    assert layout_key() == layout_key()
