"""Facts of layers, whatever they are compressed with, and what is kept of them."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest
import zstandard

from builder.context import Context
from builder.elf import Known
from builder.errors import ExternalError
from builder.oci import elf_stream
from builder.oci.image import LAYER_GZIP, LayerBlob, digest_of
from builder.verify.static import Entry, Kind, parse_ld_cache, read_layer, read_layers
from tests.binaries import Elf

_DATA = Path(__file__).parent / "data"
_ELF = Elf(needed=["libc.so.6"], soname="libdemo.so.1")


@dataclass
class Tar:
    """A layer's tar, entry by entry."""

    entries: list[tuple[tarfile.TarInfo, bytes]] = field(default_factory=list)

    def add(
        self, name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, to: str = ""
    ) -> Tar:
        """One more entry."""
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, len(data), to
        self.entries.append((info, data))
        return self

    def bytes(self) -> bytes:
        """The whole archive."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for info, data in self.entries:
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()


def _layer(path: Path, data: bytes) -> LayerBlob:
    path.write_bytes(data)
    digest = digest_of(data)
    return LayerBlob(
        digest=digest, diff_id=digest, size=len(data), media_type=LAYER_GZIP, path=path
    )


def _sample() -> Tar:
    return (
        Tar()
        .add("./", kind=tarfile.DIRTYPE)
        .add("./usr/lib", kind=tarfile.DIRTYPE)
        .add("lib", kind=tarfile.SYMTYPE, to="usr/lib")
        .add("usr/lib/libdemo.so.1", _ELF.write())
        .add("usr/lib/libdemo.so", kind=tarfile.LNKTYPE, to="./usr/lib/libdemo.so.1")
        .add("usr/lib/.wh.old.so")
        .add("var/.wh..wh..opq")
        .add("etc/passwd", b"root:x:0:0::/:\n")
        .add("dev/null", kind=tarfile.CHRTYPE)
    )


def _compressions() -> dict[str, bytes]:
    data = _sample().bytes()
    half = len(data) // 2
    return {
        "plain": data,
        "gzip": gzip.compress(data),
        "members": gzip.compress(data[:half]) + gzip.compress(data[half:]),
        "zstd": zstandard.compress(data),
    }


@pytest.mark.parametrize("compression", ["plain", "gzip", "members", "zstd"])
def test_reads_a_layer(compression: str, tmp_path: Path) -> None:
    facts = read_layer(_layer(tmp_path / "layer", _compressions()[compression]))
    assert facts.entries == (
        Entry(Kind.DIRECTORY, "usr/lib"),
        Entry(Kind.SYMLINK, "lib", "usr/lib"),
        Entry(Kind.FILE, "usr/lib/libdemo.so.1"),
        Entry(Kind.HARDLINK, "usr/lib/libdemo.so", "usr/lib/libdemo.so.1"),
        Entry(Kind.WHITEOUT, "usr/lib/old.so"),
        Entry(Kind.OPAQUE, "var"),
        Entry(Kind.FILE, "etc/passwd"),
        Entry(Kind.FILE, "dev/null"),
    )
    assert list(facts.elfs) == ["usr/lib/libdemo.so.1"]
    assert facts.elfs["usr/lib/libdemo.so.1"].needed == ("libc.so.6",)
    assert facts.libraries is None


def test_a_broken_elf_file_is_not_known(tmp_path: Path) -> None:
    data = Tar().add("a.so", b"\x7fELF" + b"\xff" * 100).bytes()
    assert read_layer(_layer(tmp_path / "layer", data)).elfs["a.so"].known is Known.UNKNOWN


@pytest.mark.parametrize("linker", ["gnu", "lld", "patchelf"])
@pytest.mark.parametrize("room", [600, 40_000])
def test_a_large_file_is_read_by_its_parts(
    linker: Literal["gnu", "lld", "patchelf"],
    room: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 600 bytes the parts do not hold the tables, and the file is read again, whole."""
    monkeypatch.setattr(elf_stream, "_HEAD_BYTES", room)
    monkeypatch.setattr(elf_stream, "_TAIL_BYTES", room)
    monkeypatch.setattr(elf_stream, "_READ_BYTES", 1000)
    elf = replace(
        _ELF,
        defines=[f"version_{number}" for number in range(500)],
        filler=100_000,
        linker=linker,
    )
    data = Tar().add("a.so", elf.write() + os.urandom(50_000)).bytes()
    facts = read_layer(_layer(tmp_path / "layer", data)).elfs["a.so"]
    assert facts.known is Known.DYNAMIC
    assert (facts.soname, len(facts.version_definitions)) == ("libdemo.so.1", 500)


def test_names_that_leave_the_root_do_not(tmp_path: Path) -> None:
    layer = _layer(tmp_path / "layer", Tar().add("../../etc/x", b"1").add("/abs", b"2").bytes())
    assert [entry.path for entry in read_layer(layer).entries] == ["etc/x", "abs"]


def test_facts_are_kept_by_digest(tmp_path: Path, context: Context) -> None:
    layer = _layer(tmp_path / "layer", gzip.compress(_sample().bytes()))
    first = read_layers([layer, layer], context)
    layer.path.unlink()
    assert read_layers([layer, layer], context) == first
    assert first[0] == first[1]


@pytest.mark.parametrize("data", [b"\x1f\x8b broken", b"\x28\xb5\x2f\xfd broken", b"no tar" * 200])
def test_a_broken_layer_is_refused(data: bytes, tmp_path: Path, context: Context) -> None:
    layer = _layer(tmp_path / "layer", data)
    with pytest.raises(ExternalError, match="not a readable layer"):
        read_layers([layer], context)


def test_the_loaders_cache() -> None:
    """A cache that ldconfig wrote for arm64."""
    libraries = parse_ld_cache((_DATA / "arm64.ld.so.cache").read_bytes())
    assert libraries["libc.so.6"].endswith("/aarch64-linux-gnu/libc.so.6")


@pytest.mark.parametrize("size", [0, 20, 47, 60])
def test_a_loaders_cache_that_ends_too_soon(size: int) -> None:
    assert parse_ld_cache((_DATA / "arm64.ld.so.cache").read_bytes()[:size]) == {}


def test_a_layer_of_another_digest_leaves_no_facts(tmp_path: Path, context: Context) -> None:
    """They would be those of the layer that has the digest, in every later run."""
    layer = _layer(tmp_path / "layer", _sample().bytes())
    layer.path.write_bytes(Tar().add("etc/passwd", b"other").bytes())
    with pytest.raises(ExternalError, match="does not match its digest"):
        read_layers([layer], context)
    assert not (context.cache / "facts").exists()
