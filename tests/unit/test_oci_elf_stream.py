"""ELF files read while they go by, by their parts."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.elf import MAGIC, ElfFacts, Known, read_elf
from builder.oci import elf_stream
from builder.oci.elf_stream import read_or_unknown, read_passing
from tests.binaries import Elf

_ELF = Elf(
    needed=["libc.so.6"],
    soname="libdemo.so.1",
    defines=[f"version_{number}" for number in range(500)],
    filler=100_000,
)


def _read(data: bytes) -> ElfFacts | None:
    return read_passing(data[:4], len(data), io.BytesIO(data[4:]))


@pytest.mark.parametrize("linker", ["gnu", "lld", "patchelf"])
def test_a_small_file_is_read_whole(linker: Literal["gnu", "lld", "patchelf"]) -> None:
    data = replace(_ELF, linker=linker).write()
    assert _read(data) == read_elf(io.BytesIO(data))


@pytest.mark.parametrize("linker", ["gnu", "lld", "patchelf"])
def test_a_large_file_is_read_by_its_parts(
    linker: Literal["gnu", "lld", "patchelf"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elf_stream, "_HEAD_BYTES", 40_000)
    monkeypatch.setattr(elf_stream, "_TAIL_BYTES", 80_000)
    monkeypatch.setattr(elf_stream, "_READ_BYTES", 1000)
    data = replace(_ELF, linker=linker).write() + os.urandom(50_000)
    assert _read(data) == read_elf(io.BytesIO(data))


def test_parts_that_do_not_hold_the_tables_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf_stream, "_HEAD_BYTES", 600)
    monkeypatch.setattr(elf_stream, "_TAIL_BYTES", 600)
    assert _read(_ELF.write() + os.urandom(50_000)) is None


@given(st.binary(max_size=400))
def test_what_only_looks_like_elf_is_not_known(data: bytes) -> None:
    found = _read(MAGIC + data)
    assert found is not None
    assert found == read_or_unknown(io.BytesIO(MAGIC + data))


def test_no_elf_file() -> None:
    assert read_or_unknown(io.BytesIO(b"text")).known is Known.UNKNOWN
