"""ELF files: the whole of one, and what its beginning alone gives away."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from io import BytesIO
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder import elf
from builder.elf import (
    ElfError,
    ElfFacts,
    Known,
    VersionNeed,
    dynamic_span,
    elf_hash,
    read_elf,
    read_prefix,
)
from tests.binaries import AARCH64, X86_64, Elf

_EXTENSION = Elf(
    needed=["libtorch.so", "libcuda.so.1", "libc.so.6", "libcudart.so.12"],
    soname="_C.abi3.so",
    runpath="$ORIGIN:$ORIGIN/../lib",
    versions={
        "libc.so.6": ["GLIBC_2.17", "GLIBC_2.34"],
        "libstdc++.so.6": ["GLIBCXX_3.4.21", "CXXABI_1.3"],
        "libcudart.so.12": ["libcudart.so.12"],
    },
)
_NEEDS = (
    VersionNeed(library="libc.so.6", versions=("GLIBC_2.17", "GLIBC_2.34")),
    VersionNeed(library="libstdc++.so.6", versions=("GLIBCXX_3.4.21", "CXXABI_1.3")),
    VersionNeed(library="libcudart.so.12", versions=("libcudart.so.12",)),
)
Linker = Literal["gnu", "lld", "patchelf"]


def _read(elf: Elf) -> ElfFacts:
    return read_elf(BytesIO(elf.write()))


@pytest.mark.parametrize("linker", ["gnu", "lld", "patchelf"])
@pytest.mark.parametrize("bits", [32, 64])
def test_reads_everything_from_a_whole_file(linker: Linker, bits: Literal[32, 64]) -> None:
    facts = _read(replace(_EXTENSION, linker=linker, bits=bits, filler=5000))
    assert facts == ElfFacts(
        known=Known.DYNAMIC,
        machine=AARCH64,
        bits=bits,
        soname="_C.abi3.so",
        needed=("libtorch.so", "libcuda.so.1", "libc.so.6", "libcudart.so.12"),
        runpath=("$ORIGIN", "$ORIGIN/../lib"),
        version_needs=_NEEDS,
    )


def test_reads_a_program() -> None:
    elf = Elf(interpreter="/lib/ld-linux-x86-64.so.2", rpath="/opt/lib", machine=X86_64)
    facts = _read(elf)
    assert (facts.interpreter, facts.rpath) == ("/lib/ld-linux-x86-64.so.2", ("/opt/lib",))
    assert facts.machine == X86_64


def test_reads_the_versions_that_a_library_defines() -> None:
    facts = _read(Elf(soname="libgomp.so.1", defines=["GOMP_1.0", "GOMP_2.0"]))
    assert facts.version_definitions == ("GOMP_1.0", "GOMP_2.0")


@pytest.mark.parametrize("linker", ["gnu", "lld"])
def test_a_beginning_tells_the_libraries(linker: Linker) -> None:
    data = replace(_EXTENSION, linker=linker, filler=100_000).write()
    facts = read_prefix(data[:2000])
    assert facts.known is Known.PREFIX
    assert facts.version_needs == _NEEDS
    assert set(facts.candidates) == {"libtorch.so", "libcuda.so.1", "_C.abi3.so"}
    assert not facts.needed


def test_a_beginning_without_its_strings_tells_the_hashes() -> None:
    data = replace(_EXTENSION, linker="patchelf", filler=100_000).write()
    facts = read_prefix(data[:2000])
    assert facts.known is Known.HASHES
    assert elf_hash("libcudart.so.12") in facts.version_hashes
    assert elf_hash("libcudart.so.13") not in facts.version_hashes


def test_a_beginning_that_ends_too_soon_tells_the_machine() -> None:
    data = replace(_EXTENSION, filler=100_000).write()
    assert read_prefix(data[:300]) == ElfFacts(known=Known.UNKNOWN, machine=AARCH64, bits=64)


def test_a_beginning_that_holds_all_is_exact() -> None:
    data = replace(_EXTENSION, filler=100).write()
    assert read_prefix(data + b"\xa5" * 10_000) == _read(replace(_EXTENSION, filler=100))


def test_hashes_of_nothing_known_are_not_believed() -> None:
    elf = Elf(versions={"libodd.so.1": ["ODD_1"]}, linker="patchelf", filler=100_000)
    assert read_prefix(elf.write()[:2000]).known is Known.UNKNOWN


def test_the_hash_is_the_one_that_linkers_write() -> None:
    """Values out of the version tables of libc.so.6's users (readelf --version-info --wide)."""
    assert elf_hash("GLIBC_2.17") == 0x06969197
    assert elf_hash("GLIBC_2.2.5") == 0x09691A75


def test_dynamic_span_of_a_head() -> None:
    data = replace(_EXTENSION, filler=100_000).write()
    span = dynamic_span(data[:500])
    assert span is not None
    assert span[0] > 100_000
    assert sum(span) == len(data)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x09\x01" + b"\0" * 60, b"#!/bin/sh\n"])
def test_what_is_no_elf_file_is_refused(data: bytes) -> None:
    with pytest.raises(ElfError):
        read_elf(BytesIO(data))
    with pytest.raises(ElfError):
        read_prefix(data)


_elfs = st.builds(
    lambda linker, bits, filler: replace(
        _EXTENSION, linker=linker, bits=bits, filler=filler, defines=["A_1", "A_2"]
    ).write(),
    st.sampled_from(["gnu", "lld", "patchelf"]),
    st.sampled_from([32, 64]),
    st.integers(0, 300),
)


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """A file with bytes changed, and perhaps cut off."""
    data = bytearray(draw(_elfs))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data) - 1))
        piece = draw(st.binary(min_size=1, max_size=8))
        data[at : at + len(piece)] = piece
    return bytes(data[: draw(st.integers(0, len(data)))])


@given(_damaged())
def test_a_damaged_file_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ElfError):
        assert read_elf(BytesIO(data)).known is Known.DYNAMIC
    with contextlib.suppress(ElfError):
        assert read_prefix(data).bits in (32, 64)


@given(_elfs, st.integers(0, 2000))
def test_a_beginning_never_contradicts_the_whole(data: bytes, size: int) -> None:
    whole = read_elf(BytesIO(data))
    try:
        part = read_prefix(data[:size])
    except ElfError:
        return
    if part.known is Known.DYNAMIC:
        assert part == whole
    if part.known is Known.PREFIX:
        assert part.version_needs == whole.version_needs
        assert set(part.candidates) <= {*whole.needed, whole.soname}
    names = (name for need in whole.version_needs for name in need.versions)
    assert set(part.version_hashes) <= {elf_hash(name) for name in names}


@pytest.mark.parametrize(
    "elf",
    [
        Elf(needed=["x" * 60_000] * 100),
        Elf(defines=["v" * 600] * 4000),
        Elf(versions={"libx.so": ["v" * 60_000] * 100}),
    ],
)
def test_one_long_string_named_many_times_is_refused(elf: Elf) -> None:
    """A file of some kB would otherwise be gigabytes of facts."""
    with pytest.raises(ElfError, match="more than any linker writes"):
        _read(elf)


def test_more_names_than_any_linker_writes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "_NAMES_MAX", 10)
    assert len(_read(Elf(needed=["x"] * 10)).needed) == 10
    with pytest.raises(ElfError, match="more than any linker writes"):
        _read(Elf(needed=["x"] * 11))


def test_a_beginning_with_long_strings_tells_the_machine_only() -> None:
    data = Elf(versions={"libx.so": ["v" * 2000]}, filler=100_000).write()
    assert read_prefix(data[:9000]).known is Known.UNKNOWN
