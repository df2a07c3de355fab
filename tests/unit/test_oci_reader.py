"""Layers read back: however they are compressed, and never with another error than ours."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.errors import ExternalError
from builder.oci.layer import LayerWriter
from builder.oci.reader import open_members, open_tar

DATA = bytes(range(256)) * 5000


def entries(writer: LayerWriter) -> None:
    writer.directory("etc")
    writer.symlink("etc/link", "large")
    writer.file("large", DATA)
    writer.hardlink("second", "large")


def plain_tar() -> bytes:
    out = io.BytesIO()
    writer = LayerWriter(out)
    entries(writer)
    writer.close()
    return gzip.decompress(out.getvalue())


def members_of(path: Path) -> dict[str, bytes | None]:
    with open_members(path) as members:
        return {
            member.name: None if content is None else content.read() for member, content in members
        }


EXPECTED = {"etc": None, "etc/link": None, "large": DATA, "second": None}


@pytest.mark.parametrize("form", ["plain", "gzip", "two gzips", "spliced", "zstd", "two zstds"])
def test_every_form_is_told_by_its_first_bytes(tmp_path: Path, form: str) -> None:
    tar = plain_tar()
    path = tmp_path / "layer"
    halves = (tar[:5000], tar[5000:])
    match form:
        case "plain":
            path.write_bytes(tar)
        case "gzip":
            path.write_bytes(gzip.compress(tar))
        case "two gzips":
            path.write_bytes(b"".join(map(gzip.compress, halves)))
        case "zstd":
            path.write_bytes(zstandard.compress(tar))
        case "two zstds":
            path.write_bytes(b"".join(map(zstandard.compress, halves)))
        case "spliced":
            with path.open("wb") as file:
                writer = LayerWriter(file)
                entries(writer)
                writer.close()
    assert members_of(path) == EXPECTED
    with open_tar(path) as stream:
        assert stream.read() == tar


def test_a_file_need_not_be_read_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "layer"
    path.write_bytes(gzip.compress(plain_tar()))
    with open_members(path) as members:
        assert [member.name for member, _ in members] == list(EXPECTED)


@pytest.mark.parametrize("data", [b"", b"nonsense" * 200, b"\x1f\x8b", b"\x28\xb5\x2f\xfd"])
def test_what_is_no_layer_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "layer"
    path.write_bytes(data)
    with pytest.raises(ExternalError, match="not a readable layer"):
        members_of(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data(), form=st.sampled_from(["plain", "gzip", "zstd"]))
def test_a_damaged_layer_is_read_or_refused_and_nothing_else(
    tmp_path: Path, data: st.DataObject, form: str
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("a" * 150, "ü/b"):
            info = tarfile.TarInfo(name)
            info.size = 700
            archive.addfile(info, io.BytesIO(b"text " * 140))
    tar = out.getvalue()[:6000]
    forms = {"plain": tar, "gzip": gzip.compress(tar), "zstd": zstandard.compress(tar)}
    whole = bytearray(forms[form])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "layer"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with suppress(ExternalError):
        members_of(path)


def pax_tar(pax: Mapping[str, str], name: str = "usr") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(name)
        info.size, info.pax_headers = 3, dict(pax)
        archive.addfile(info, io.BytesIO(b"abc"))
    return out.getvalue()


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "y"}


@pytest.mark.parametrize(
    "pax",
    [
        {"size": "9" * 30},
        {"size": str(1 << 60)},
        {"GNU.sparse.size": str(1 << 60), "GNU.sparse.map": "0,3"},
        {"GNU.sparse.map": "a,b", "GNU.sparse.size": "3"},
        {"GNU.sparse.map": "0,3", "GNU.sparse.size": "zz"},
        {**SPARSE, "GNU.sparse.realsize": "x"},
        {**SPARSE, "GNU.sparse.realsize": "3"},
        {"path": "a/" * 3000},
    ],
)
def test_what_no_archiver_writes_is_a_broken_layer(tmp_path: Path, pax: Mapping[str, str]) -> None:
    path = tmp_path / "layer"
    path.write_bytes(gzip.compress(pax_tar(pax)))
    with pytest.raises(ExternalError, match="not a readable layer"):
        members_of(path)


def test_a_size_below_nothing_is_broken_or_nothing(tmp_path: Path) -> None:
    """Pythons with tarfile's later security fixes take it for the archive's end."""
    path = tmp_path / "layer"
    path.write_bytes(gzip.compress(pax_tar({"size": "-1000"})))
    with suppress(ExternalError), open_members(path) as members:
        assert list(members) == []


def test_headers_of_headers_without_end_are_a_broken_layer(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type = tarfile.GNUTYPE_LONGNAME
    path = tmp_path / "layer"
    path.write_bytes(info.tobuf() * 3000)
    with pytest.raises(ExternalError, match="not a readable layer"):
        members_of(path)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_header_that_would_fill_memory_is_a_broken_layer(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, 2 << 20
    path = tmp_path / "layer"
    path.write_bytes(gzip.compress(plain_tar()[:512] + info.tobuf() + bytes(3 << 20)))
    with pytest.raises(ExternalError, match="a header of 2097152 bytes"):
        members_of(path)


@pytest.mark.parametrize("form", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("read_all", [True, False])
def test_the_whole_blob_is_hashed_on_the_way(tmp_path: Path, form: str, *, read_all: bool) -> None:
    """However much of it is read, and what follows the archive too."""
    tar = plain_tar() + bytes(3 << 20)
    data = {"plain": tar, "gzip": gzip.compress(tar), "zstd": zstandard.compress(tar)}[form]
    path = tmp_path / "layer"
    path.write_bytes(data)

    def read(digest: str) -> None:
        with open_members(path, digest) as members:
            for _ in members:
                if not read_all:
                    break

    read(f"sha256:{hashlib.sha256(data).hexdigest()}")
    with pytest.raises(ExternalError, match=r"layer: the blob does not match its digest"):
        read(f"sha256:{hashlib.sha256(data[:-1]).hexdigest()}")


def test_an_error_of_whoever_reads_a_layer_is_not_the_layers(tmp_path: Path) -> None:
    path = tmp_path / "layer"
    path.write_bytes(plain_tar())

    def read() -> None:
        with open_members(path) as members:
            next(members)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        read()
