"""Layers: the same entries give the same bytes, and the bytes are a tar that anyone reads.

The digests below are constants: a change of any of them makes every layer that anyone has built
another one, so it goes with a new LAYOUT_VERSION or not at all.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.oci.layer import MTIME, Deflated, LayerDigest, LayerError, LayerWriter, sort_key


def raw_deflate(data: bytes, level: int = 9) -> bytes:
    compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def deflated(data: bytes, level: int = 9, *, piece: int = 1000) -> Deflated:
    raw = raw_deflate(data, level)
    chunks = [raw[start : start + piece] for start in range(0, len(raw), piece)]
    return Deflated(chunks=chunks, size=len(data), crc32=zlib.crc32(data))


def written(write: Callable[[LayerWriter], object]) -> tuple[bytes, LayerDigest]:
    out = io.BytesIO()
    writer = LayerWriter(out)
    write(writer)
    digest = writer.close()
    blob = out.getvalue()
    assert digest.size == len(blob)
    assert digest.digest == f"sha256:{hashlib.sha256(blob).hexdigest()}"
    assert digest.diff_id == f"sha256:{hashlib.sha256(gzip.decompress(blob)).hexdigest()}"
    return blob, digest


def read(blob: bytes) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob))) as archive:
        members = archive.getmembers()
        assert len({member.name for member in members}) == len(members)
        contents = [archive.extractfile(member) if member.isreg() else None for member in members]
        data = [b"" if content is None else content.read() for content in contents]
        return {member.name: (member, read) for member, read in zip(members, data, strict=True)}


def everything(writer: LayerWriter) -> None:
    """One entry of every kind, in an order that only part-wise sorting gives."""
    writer.directory("opt")
    writer.directory("opt/venv", mode=0o750, owner=(0, 42))
    writer.symlink("opt/venv/bin", "usr/bin")
    writer.file("opt/venv/empty", b"")
    writer.file("opt/venv/" + "long/" * 30 + "name", b"deep")
    writer.symlink("opt/venv/long-link", "t/" * 80 + "arget")
    writer.file("opt/venv/run", b"#!/bin/sh\n", mode=0o755)
    writer.deflated("opt/venv/spliced", STORED)
    writer.file("opt/venv/ünï/\N{SNOWMAN}.txt", "schön".encode())
    writer.file("opt/venv-2", b"after everything in opt/venv")
    writer.stream("var/large", 200_000, iter([bytes(150_000), b"x" * 50_000]), owner=(7, 8))
    writer.hardlink("var/second", "opt/venv/run", mode=0o755)


STORED = Deflated(
    # RFC 1951 section 3.2.4: two stored blocks, so that no compressor has a say.
    chunks=[b"\x00\x03\x00\xfc\xff", b"abc\x01\x02\x00\xfd\xff", b"de"],
    size=5,
    crc32=zlib.crc32(b"abcde"),
)


def test_the_digests_of_every_kind_of_entry_are_what_they_always_were() -> None:
    _, digest = written(everything)
    assert digest == LayerDigest(
        diff_id="sha256:b1cf159b798dac67064039cbcb9615fea4530804da63bc0850f0d9b3df91144f",
        digest="sha256:74e3f7489e98b25e524bd696cbcafdf999259d92c0c92e558aefcadbab79a89f",
        size=215_129,
    )


def test_the_digests_of_an_empty_layer_are_what_they_always_were() -> None:
    blob, digest = written(lambda writer: None)
    assert gzip.decompress(blob) == bytes(10_240)
    assert digest == LayerDigest(
        diff_id="sha256:84ff92691f909a05b224e1c56abb4864f01b4f8e3c854e4bb4c7baf1d3f6d652",
        digest="sha256:83ff23059a4e9930f36d2a4591530d4c47974771558ca6bb4443508b9ede5250",
        size=10_263,
    )


def test_the_tar_is_the_one_that_python_writes() -> None:
    """An independent way to the same diff_id: tarfile's own archive of the same entries."""
    expected = io.BytesIO()
    with tarfile.open(fileobj=expected, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data, mode in [("a" * 120, b"one", 0o644), ("b/ü", b"two" * 999, 0o755)]:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), mode, MTIME
            archive.addfile(info, io.BytesIO(data))

    def write(writer: LayerWriter) -> None:
        writer.file("a" * 120, b"one")
        writer.deflated("b/ü", deflated(b"two" * 999), mode=0o755)

    blob, _ = written(write)
    assert gzip.decompress(blob) == expected.getvalue()


def test_every_kind_of_entry_is_read_back() -> None:
    members = read(written(everything)[0])
    kinds = {name: member.type for name, (member, _) in members.items()}
    assert kinds["opt"] == tarfile.DIRTYPE
    assert (members["opt/venv/bin"][0].linkname, kinds["opt/venv/bin"]) == (
        "usr/bin",
        tarfile.SYMTYPE,
    )
    assert members["opt/venv/bin"][0].mode == 0o777
    assert members["opt/venv/long-link"][0].linkname == "t/" * 80 + "arget"
    assert (members["var/second"][0].linkname, kinds["var/second"]) == (
        "opt/venv/run",
        tarfile.LNKTYPE,
    )
    assert members["opt/venv/spliced"][1] == b"abcde"
    assert members["opt/venv/ünï/\N{SNOWMAN}.txt"][1] == "schön".encode()
    assert members["opt/venv/" + "long/" * 30 + "name"][1] == b"deep"
    assert members["var/large"][1] == bytes(150_000) + b"x" * 50_000
    assert {member.mtime for member, _ in members.values()} == {MTIME}
    owners = {name: (member.uid, member.gid) for name, (member, _) in members.items()}
    assert (owners.pop("opt/venv"), owners.pop("var/large")) == ((0, 42), (7, 8))
    assert set(owners.values()) == {(0, 0)}
    assert {(member.uname, member.gname) for member, _ in members.values()} == {("", "")}


def test_the_level_of_compression_has_no_part_in_the_diff_id() -> None:
    data = bytes(range(256)) * 300

    def diff_id(level: int) -> str:
        return written(lambda writer: writer.deflated("f", deflated(data, level)))[1].diff_id

    ids = {diff_id(level) for level in (0, 1, 6, 9)}
    assert ids == {written(lambda writer: writer.file("f", data))[1].diff_id}


@pytest.mark.parametrize("piece", [1, 7, 4096, 65_535, 3_000_000])
def test_the_pieces_that_data_comes_in_leave_no_trace(piece: int) -> None:
    data = bytes(range(251)) * (20 if piece < 100 else 10_000)
    pieces = [data[start : start + piece] for start in range(0, len(data), piece)]
    streamed = written(lambda writer: writer.stream("f", len(data), pieces))[1]
    assert streamed == written(lambda writer: writer.file("f", data))[1]
    spliced = written(lambda writer: writer.deflated("f", deflated(data, 1, piece=piece)))[1]
    assert spliced == written(lambda writer: writer.deflated("f", deflated(data, 1)))[1]


@pytest.mark.parametrize("more", [-512, 0, 512])
def test_a_spliced_entry_may_begin_where_a_member_was_just_full(more: int) -> None:
    """With `more` at 0, nothing is pending when the splice begins: no empty member is written."""

    def write(writer: LayerWriter) -> None:
        writer.file("a", bytes((1 << 20) - 2 * 512 + more))
        writer.deflated("b", STORED)

    found = read(written(write)[0])
    assert (len(found["a"][1]), found["b"][1]) == ((1 << 20) - 1024 + more, b"abcde")


def test_deflated_data_is_taken_over_as_it_is() -> None:
    data = b"some text, " * 5000
    blob, _ = written(lambda writer: writer.deflated("f", deflated(data)))
    assert raw_deflate(data) in blob
    assert len(blob) < 12_000


def test_writing_gives_the_hash_of_the_file() -> None:
    data = b"spark" * 1000
    writer = LayerWriter(io.BytesIO())
    expected = hashlib.sha256(data).hexdigest()
    assert writer.deflated("a", deflated(data)) == expected
    assert writer.stream("b", len(data), [data]) == expected


def test_progress_is_told_of_every_byte() -> None:
    told: list[int] = []
    writer = LayerWriter(io.BytesIO(), told.append)
    everything(writer)
    assert writer.close().size == sum(told)


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cs"]),
    min_size=1,
    max_size=40,
).filter(lambda name: name not in (".", "..") and not name.startswith(".wh."))
PATHS = st.lists(NAMES, min_size=1, max_size=6).map("/".join)
CONTENT = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(["file", "stream", "deflated"]), st.binary(max_size=3000)),
    st.tuples(
        st.just("symlink"),
        st.text(
            st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
            min_size=1,
            max_size=150,
        ).map(str.encode),
    ),
)


def put(writer: LayerWriter, path: str, content: tuple[str, bytes] | None) -> None:
    match content:
        case None:
            writer.directory(path)
        case ("file", data):
            writer.file(path, data)
        case ("stream", data):
            writer.stream(path, len(data), [data[:10], data[10:]])
        case ("deflated", data):
            writer.deflated(path, deflated(data))
        case (_, data):
            writer.symlink(path, data.decode())


@settings(max_examples=50)
@given(st.dictionaries(PATHS, CONTENT, max_size=12))
def test_whatever_is_written_is_read_back(
    entries: Mapping[str, tuple[str, bytes] | None],
) -> None:
    def write(writer: LayerWriter) -> None:
        for path in sorted(entries, key=sort_key):
            put(writer, path, entries[path])

    blob, digest = written(write)
    assert written(write) == (blob, digest)
    found: dict[str, tuple[str, bytes] | None] = {}
    for path, (member, data) in read(blob).items():
        if member.isdir():
            found[path] = None
        else:
            found[path] = (
                ("symlink", member.linkname.encode()) if member.issym() else ("file", data)
            )
    plain = {"stream": "file", "deflated": "file"}
    assert found == {
        path: content and (plain.get(content[0], content[0]), content[1])
        for path, content in entries.items()
    }


@settings(max_examples=50)
@given(st.lists(PATHS, min_size=1, max_size=12, unique=True))
def test_a_folder_comes_right_before_what_it_holds(paths: list[str]) -> None:
    order = sorted(paths, key=sort_key)
    for folder in order:
        inside = [path.startswith(f"{folder}/") for path in order[order.index(folder) + 1 :]]
        assert inside == sorted(inside, reverse=True)
        assert not any(path.startswith(f"{folder}/") for path in order[: order.index(folder)])


@pytest.mark.parametrize(
    "path",
    ["", "/etc", "etc/", "a//b", ".", "./a", "a/.", "..", "../a", "a/../b", "a\0b", "\0"],
)
def test_a_path_that_is_not_clean_is_refused(path: str) -> None:
    with pytest.raises(LayerError, match="not a clean relative path"):
        LayerWriter(io.BytesIO()).file(path, b"")


@pytest.mark.parametrize("path", [".wh.a", "a/.wh..wh..opq", "a/.wh.b/c", ".wh."])
def test_a_name_that_would_delete_files_is_refused(path: str) -> None:
    writer = LayerWriter(io.BytesIO())
    for write in (writer.directory, lambda path: writer.file(path, b"")):
        with pytest.raises(LayerError, match="would delete files"):
            write(path)
    writer.file("a.wh.b", b"")


def test_a_link_target_with_a_nul_is_refused() -> None:
    with pytest.raises(LayerError, match="not a clean"):
        LayerWriter(io.BytesIO()).symlink("a", "b\0c")


@pytest.mark.parametrize(
    ("first", "second"), [("b", "a"), ("a", "a"), ("a/b", "a"), ("a-b", "a/b"), ("a/b", "a/b")]
)
def test_what_comes_twice_or_out_of_order_is_refused(first: str, second: str) -> None:
    writer = LayerWriter(io.BytesIO())
    writer.file(first, b"")
    with pytest.raises(LayerError, match="twice, or out of order"):
        writer.file(second, b"")


def broken(**changes: Any) -> Deflated:
    data = b"payload" * 100
    values: dict[str, Any] = {
        "chunks": [raw_deflate(data)],
        "size": len(data),
        "crc32": zlib.crc32(data),
    }
    return Deflated(**(values | changes))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (broken(size=699), "other data"),
        (broken(size=701), "other data"),
        (broken(crc32=1), "other data"),
        (broken(chunks=[]), "other data"),
        (broken(chunks=[raw_deflate(b"payload" * 100)[:-1]]), "other data"),
        (broken(chunks=[raw_deflate(b"payload" * 100) + b"x"]), "bytes follow"),
        (broken(chunks=[raw_deflate(b"payload" * 100), b"x"]), "bytes follow"),
        (broken(chunks=[b"\xff" * 20]), "broken deflate stream"),
    ],
    ids=["short", "long", "crc", "nothing", "cut", "trailing", "further", "broken"],
)
def test_a_stream_that_is_not_what_was_announced_is_refused(data: Deflated, reason: str) -> None:
    with pytest.raises(LayerError, match=reason) as caught:
        LayerWriter(io.BytesIO()).deflated("lib/x.so", data)
    assert "lib/x.so" in caught.value.message


@pytest.mark.parametrize("size", [0, 4, 6])
def test_chunks_of_another_length_than_announced_are_refused(size: int) -> None:
    with pytest.raises(LayerError, match="has 5 bytes where"):
        LayerWriter(io.BytesIO()).stream("f", size, [b"ab", b"cde"])


class Sink(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(memoryview(data))


def zeros(size: int) -> Iterator[bytes]:
    """The raw deflate stream of `size` zeros, one piece at a time."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    for _ in range(size // 100_000):
        if chunk := compressor.compress(bytes(100_000)):
            yield chunk
    yield compressor.flush()


def test_a_highly_compressible_entry_does_not_fill_the_memory() -> None:
    size = 50_000_000
    whole = b"".join(zeros(size))
    crc32 = 0
    for _ in range(size // 100_000):
        crc32 = zlib.crc32(bytes(100_000), crc32)
    tracemalloc.start()
    try:
        writer = LayerWriter(Sink())  # type: ignore[arg-type]  # no more than write() is called
        writer.deflated("f", Deflated(chunks=[whole], size=size, crc32=crc32))
        writer.stream("g", size, (bytes(100_000) for _ in range(size // 100_000)))
        writer.close()
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
