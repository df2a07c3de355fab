"""Facts of a wheel: which files are looked at, how far they are read, what is kept."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

import httpx
import pytest

from builder.audit.facts import Access, WheelFacts, load_facts, read_wheel, save_facts
from builder.elf import ElfFacts, Known
from builder.errors import UsageError
from builder.http import Http
from builder.remote import WheelError, open_local, open_remote
from tests.binaries import Elf, RangeServer
from tests.builders import WheelText

_SHA256 = "0" * 64
_FILENAME = "demo-1.0-cp313-cp313-manylinux_2_28_aarch64.whl"
_SMALL = Elf(
    needed=["libc.so.6", "libcudart.so.12"],
    versions={"libc.so.6": ["GLIBC_2.17"], "libcudart.so.12": ["libcudart.so.12"]},
)
_LARGE = replace(_SMALL, filler=300_000)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def _read(
    files: Mapping[str, bytes],
    pool: ThreadPoolExecutor,
    *,
    modes: Mapping[str, int] | None = None,
    ranges: bool = True,
    deep: bool = False,
) -> WheelFacts:
    wheel = WheelText(files=files, modes=modes or {}).zipped()
    server = RangeServer({"/demo.whl": wheel}, ranges=ranges)
    http = Http({}, transport=httpx.MockTransport(server))
    source = open_remote(_FILENAME, http, "https://files.example/demo.whl")
    facts = read_wheel(_FILENAME, source, pool, deep=deep)
    assert facts.bytes_read == server.sent
    return facts


def _only(facts: WheelFacts) -> ElfFacts:
    (file,) = facts.files
    return file.facts


@pytest.mark.parametrize(
    ("linker", "known"), [("gnu", Known.PREFIX), ("lld", Known.PREFIX), ("patchelf", Known.HASHES)]
)
def test_a_large_file_is_read_in_part(
    linker: Literal["gnu", "lld", "patchelf"], known: Known, pool: ThreadPoolExecutor
) -> None:
    facts = _read({"demo/_C.so": replace(_LARGE, linker=linker).write()}, pool)
    assert _only(facts).known is known
    assert facts.bytes_read < facts.size_bytes / 2


def test_a_small_file_is_read_whole_where_its_beginning_does_not_do(
    pool: ThreadPoolExecutor,
) -> None:
    data = replace(_SMALL, filler=100_000, linker="patchelf").write()
    assert _only(_read({"demo/_C.so": data}, pool)).known is Known.DYNAMIC


def test_reading_goes_on_until_the_tables_come(pool: ThreadPoolExecutor) -> None:
    """As in a large C++ library, where the symbols' names stand before the versions."""
    symbols = replace(_LARGE, defines=[f"symbol_{number:06}" for number in range(12_000)])
    facts = _read({"demo/_C.so": symbols.write()}, pool)
    assert _only(facts).known is Known.PREFIX


def test_a_large_file_without_versions_is_not_known(pool: ThreadPoolExecutor) -> None:
    data = replace(_LARGE, versions={}, filler=800_000).write()
    facts = _read({"demo/_C.so": data}, pool)
    assert _only(facts).known is Known.UNKNOWN
    assert facts.count(Known.UNKNOWN) == 1
    assert facts.bytes_read < facts.size_bytes


def test_a_deep_read_is_exact(pool: ThreadPoolExecutor) -> None:
    data = replace(_LARGE, versions={}, filler=800_000).write()
    facts = _read({"demo/_C.so": data, "demo/text.so": b"/* ld script */"}, pool, deep=True)
    assert _only(facts).known is Known.DYNAMIC
    assert _only(facts).needed == ("libc.so.6", "libcudart.so.12")
    assert facts.deep


def test_elf_files_are_found_by_name_mode_and_magic(pool: ThreadPoolExecutor) -> None:
    elf = _SMALL.write()
    found = {"a.so", "b.so.1.2", "demo-1.0.data/scripts/tool", "bin/ptxas", "bin/x-3.1", "run"}
    files = dict.fromkeys((*found, "data.bin", "notes"), elf)
    files |= {"script.so": b"INPUT(a.so)", "demo-1.0.data/scripts/demo": b"#!python\n"}
    facts = _read(files, pool, modes={"run": 0o755})
    assert {file.path for file in facts.files} == found


def test_a_broken_elf_file_is_not_known(pool: ThreadPoolExecutor) -> None:
    for deep in (False, True):
        facts = _read({"demo/_C.so": b"\x7fELF" + b"\xff" * 100}, pool, deep=deep)
        assert _only(facts).known is Known.UNKNOWN


def test_a_server_without_ranges_is_told(pool: ThreadPoolExecutor) -> None:
    facts = _read({"demo/_C.so": _LARGE.write()}, pool, ranges=False)
    assert facts.access is Access.WHOLE
    assert facts.bytes_read == facts.size_bytes


def test_a_local_wheel_gives_the_same_facts(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    wheel = WheelText(files={"demo/_C.so": _LARGE.write()})
    remote = _read(wheel.files, pool)
    with open_local(wheel.write(tmp_path), _FILENAME) as source:
        local = read_wheel(_FILENAME, source, pool, deep=False)
    assert (local.files, local.tags, local.requires) == (
        remote.files,
        remote.tags,
        remote.requires,
    )
    assert (remote.access, local.access) == (Access.RANGES, Access.LOCAL)
    assert local.tags == ("cp313-cp313-manylinux_2_28_aarch64",)


def _read_zip(path: Path, name: str, text: str, pool: ThreadPoolExecutor) -> WheelFacts:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, text)
    with open_local(path, _FILENAME) as source:
        return read_wheel(_FILENAME, source, pool, deep=False)


def test_requirements_come_from_the_metadata(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    text = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nRequires-Dist: torch==2.13.0\n\nX\n"
    facts = _read_zip(tmp_path / "demo.whl", "demo-1.0.dist-info/METADATA", text, pool)
    assert facts.requires == ("torch==2.13.0",)


def test_a_wheel_without_metadata_is_refused(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with pytest.raises(WheelError, match="no METADATA"):
        _read_zip(tmp_path / "demo.whl", "demo.py", "", pool)


def test_a_wheel_by_a_wrong_name_is_refused(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    path = WheelText().write(tmp_path)
    with (
        open_local(path, "demo.zip") as source,
        pytest.raises(WheelError, match=r"demo\.zip: not a wheel's name"),
    ):
        read_wheel("demo.zip", source, pool, deep=False)


def test_kept_facts_come_back_the_same(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    facts = _read({"demo/_C.so": _LARGE.write(), "bin/tool": _SMALL.write()}, pool)
    save_facts(tmp_path, _SHA256, facts)
    assert load_facts(tmp_path, _SHA256, deep=False) == facts
    assert load_facts(tmp_path, "1" * 64, deep=False) is None


def test_quick_facts_do_not_answer_a_deep_question(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    files = {"demo/_C.so": _SMALL.write()}
    save_facts(tmp_path, _SHA256, _read(files, pool))
    assert load_facts(tmp_path, _SHA256, deep=True) is None
    save_facts(tmp_path, _SHA256, _read(files, pool, deep=True))
    assert load_facts(tmp_path, _SHA256, deep=False) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0, "facts": {}}', "\0"])
def test_a_broken_cache_is_as_none(text: str, tmp_path: Path) -> None:
    place = tmp_path / "facts" / f"{_SHA256}.json"
    place.parent.mkdir()
    place.write_text(text)
    assert load_facts(tmp_path, _SHA256, deep=False) is None


def test_facts_that_were_read_in_place_are_those_of_the_url(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    here, there = "https://files.example/demo.whl", "https://other.example/demo.whl"
    facts = _read({"demo/_C.so": _SMALL.write()}, pool)
    save_facts(tmp_path, _SHA256, facts, url=there)
    assert load_facts(tmp_path, _SHA256, deep=False, url=there) == facts
    assert load_facts(tmp_path, _SHA256, deep=False, url=here) is None
    assert load_facts(tmp_path, _SHA256, deep=False) is None
    whole = replace(facts, access=Access.LOCAL)
    save_facts(tmp_path, _SHA256, whole)
    assert load_facts(tmp_path, _SHA256, deep=False, url=there) == whole


@pytest.mark.parametrize("sha256", ["../../evil", "", "A" * 64])
def test_a_hash_that_is_none_never_becomes_a_path(
    sha256: str, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with pytest.raises(UsageError, match="no sha256"):
        save_facts(tmp_path / "cache", sha256, _read({}, pool))
    with pytest.raises(UsageError, match="no sha256"):
        load_facts(tmp_path / "cache", sha256, deep=False)
    assert not list(tmp_path.iterdir())
