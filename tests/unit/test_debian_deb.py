"""Packages are read as they are, and broken ones are refused by name."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from builder.engines.debian.deb import Kind, Span, open_spool, parse_control, read_deb
from builder.errors import ExternalError

from .debian_packages import ar, deb_bytes, member, tar

_CONTROL = tar([member("control", b"Package: a\nVersion: 1\nArchitecture: all\n")])
_DATA = tar([member("usr"), member("usr/a", b"text")])


def _path(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "a.deb"
    path.write_bytes(data)
    return path


def test_entries_keep_mode_owner_and_links(tmp_path: Path) -> None:
    data = deb_bytes(
        "a",
        [
            member("usr"),
            member("usr/bin", mode=0o2775, gid=50),
            member("usr/bin/tool", b"#!/bin/sh\n", mode=0o4755),
            member("usr/bin/other", hardlink="usr/bin/tool"),
            member("usr/bin/link", link="tool"),
            member("usr/bin/empty", b""),
        ],
        control={"postinst": "#!/bin/sh\n"},
    )
    with open_spool(tmp_path) as spool:
        deb = read_deb(_path(tmp_path, data), "a.deb", spool)
        files = dict(deb.files)
        tool = files["usr/bin/tool"]
        assert isinstance(tool.content, Span)
        assert spool.open(tool.content).read() == b"#!/bin/sh\n"
    assert (deb.name, deb.version, deb.architecture) == ("a", "1.0-1", "all")
    assert deb.control == {"postinst": b"#!/bin/sh\n"}
    assert (files["usr/bin"].mode, files["usr/bin"].owner) == (0o2775, (0, 50))
    assert tool.mode == 0o4755
    assert files["usr/bin/other"].content == tool.content
    assert files["usr/bin/empty"].content != tool.content
    assert (files["usr/bin/link"].kind, files["usr/bin/link"].target) == (Kind.SYMLINK, "tool")


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", zstandard.ZstdCompressor().compress),
    ],
)
def test_every_compression_is_read(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    data = ar(
        [
            ("debian-binary", b"2.0\n"),
            ("_ignored", b"odd"),
            (f"control.tar{suffix}", compress(_CONTROL)),
            (f"data.tar{suffix}", compress(_DATA)),
        ]
    )
    with open_spool(tmp_path) as spool:
        deb = read_deb(_path(tmp_path, data), "a.deb", spool)
        content = dict(deb.files)["usr/a"].content
        assert isinstance(content, Span)
        assert b"".join(spool.chunks(content)) == b"text"


def test_content_of_two_packages_stays_apart(tmp_path: Path) -> None:
    first = deb_bytes("a", [member("x", b"first")])
    second = deb_bytes("b", [member("x", b"second")])
    with open_spool(tmp_path) as spool:
        spans = [
            dict(read_deb(_path(tmp_path, data), "x.deb", spool).files)["x"].content
            for data in (first, second)
        ]
        texts = [spool.open(span).read() for span in spans if isinstance(span, Span)]
    assert texts == [b"first", b"second"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no ar archive"),
        (b"PK\x03\x04 not a package", "no ar archive"),
        (ar([("debian-binary", b"2.0\n")]), "the end where control.tar"),
        (ar([("debian-binary", b"3.0\n")]), "is not 2.x"),
        (ar([("data.tar", _DATA)]), "data.tar where debian-binary should be"),
        (ar([("debian-binary", b"2.0\n"), ("control.tar.lzo", b"")]), "in an unknown way"),
        (
            ar([("debian-binary", b"2.0\n"), ("control.tar", _CONTROL), ("data.tar.xz", b"no xz")]),
            "format not supported",
        ),
        (
            ar([("debian-binary", b"2.0\n"), ("control.tar", tar([])), ("data.tar", _DATA)]),
            "'control'",
        ),
    ],
)
def test_broken_packages_are_named(tmp_path: Path, data: bytes, reason: str) -> None:
    with (
        open_spool(tmp_path) as spool,
        pytest.raises(ExternalError, match=r"^a_1_all\.deb: ") as caught,
    ):
        read_deb(_path(tmp_path, data), "a_1_all.deb", spool)
    assert reason in caught.value.message


@pytest.mark.parametrize("keep", [70, 200, -40])
def test_truncated_packages_are_refused(tmp_path: Path, keep: int) -> None:
    data = deb_bytes("a", [member("usr/a", b"x" * 5000)])
    with open_spool(tmp_path) as spool, pytest.raises(ExternalError):
        read_deb(_path(tmp_path, data[:keep]), "a.deb", spool)


@pytest.mark.parametrize(
    "entry",
    [
        member("dev/null", kind=tarfile.CHRTYPE),
        member("run/pipe", kind=tarfile.FIFOTYPE),
        member("usr/../../etc/passwd", b""),
        member("usr//a", b""),
        member("a", hardlink="not/there"),
    ],
)
def test_what_a_package_must_not_hold(tmp_path: Path, entry: tuple[tarfile.TarInfo, bytes]) -> None:
    with open_spool(tmp_path) as spool, pytest.raises(ExternalError):
        read_deb(_path(tmp_path, deb_bytes("a", [entry])), "a.deb", spool)


@pytest.mark.parametrize("size", [1 << 62, (1 << 63) - 1, 1 << 70])
@pytest.mark.parametrize("part", ["control", "data"])
def test_a_size_that_no_file_has_is_refused(tmp_path: Path, size: int, part: str) -> None:
    """GNU tar's binary numbers (tar manual, "Extensions") go far beyond what files can have."""
    info = tarfile.TarInfo("huge")
    info.size = size
    huge = info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    parts = {"control": _CONTROL, "data": _DATA, part: huge}
    data = ar(
        [
            ("debian-binary", b"2.0\n"),
            ("control.tar", parts["control"]),
            ("data.tar", parts["data"]),
        ]
    )
    with open_spool(tmp_path) as spool, pytest.raises(ExternalError, match="not a whole") as caught:
        read_deb(_path(tmp_path, data), "a.deb", spool)
    assert "clean" not in (caught.value.hint or "")


@given(st.binary(max_size=400))
def test_any_bytes_are_a_package_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("deb")
    with open_spool(folder) as spool, pytest.raises(ExternalError):
        read_deb(_path(folder, b"!<arch>\n" + data), "a.deb", spool)


def test_control_keeps_continuation_lines() -> None:
    text = "Package: a\nVersion: 1:2-3\nArchitecture: arm64\nDescription: short \n long\n .\n"
    fields = parse_control(text)
    assert fields["Version"] == "1:2-3"
    assert fields["Description"] == "short \n long\n ."


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Package: a\nVersion: 1\n",
        " continuation of nothing\n",
        "Package: a\nVersion: 1\nArchitecture: all\nno field\n",
        "Package: a\nPackage: b\nVersion: 1\nArchitecture: all\n",
    ],
)
def test_control_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="control file"):
        parse_control(text)


@given(
    st.dictionaries(
        st.from_regex(r"X[A-Za-z-]{1,10}", fullmatch=True),
        st.text(st.characters(min_codepoint=33, max_codepoint=0x2000), max_size=20),
        max_size=5,
    )
)
def test_control_round_trip(extra: dict[str, str]) -> None:
    fields = {"Package": "a", "Version": "1", "Architecture": "all", **extra}
    text = "".join(f"{name}: {value}\n" for name, value in fields.items())
    assert parse_control(text) == fields
