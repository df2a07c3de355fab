"""The loader's cache: the real ldconfig's bytes, from its entries in any order."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.engines.debian.deb import Spool, open_spool
from builder.engines.debian.ldcache import (
    MACHINES,
    install_cache,
    library_key,
    render,
    soname_of,
)
from builder.engines.debian.tree import Tree

from .debian_packages import elf

_DATA = Path(__file__).parent / "data"


def _entries(cache: bytes) -> list[tuple[str, str]]:
    """The (SONAME, path) pairs of a cache, by the layout in glibc's dl-cache.h."""
    (count,) = struct.unpack_from("<I", cache, 20)
    found = []
    for index in range(count):
        _, key, value, _, _ = struct.unpack_from("<iIIIQ", cache, 48 + 24 * index)
        texts = [cache[at : cache.index(b"\0", at)].decode() for at in (key, value)]
        found.append((texts[0], texts[1]))
    return found


def _generator(cache: bytes) -> str:
    return cache[cache.rindex(b"ldconfig (") :].decode()


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_bytes_are_those_of_the_real_ldconfig(architecture: str) -> None:
    """The files in `data` were written by Debian 13's ldconfig, on that architecture."""
    cache = (_DATA / f"{architecture}.ld.so.cache").read_bytes()
    entries = _entries(cache)
    assert len(entries) > 50
    names = sorted({soname for soname, _ in entries})
    random.Random(1).shuffle(names)
    entries.sort(key=lambda entry: names.index(entry[0]))  # of one name, the first found stays so
    assert render(entries, MACHINES[architecture], _generator(cache)) == cache


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with open_spool(tmp_path) as opened:
        yield opened


def _installed(tree: Tree) -> dict[str, str]:
    install_cache(tree, "arm64", "2.41-12")
    return dict(_entries(tree.read("etc/ld.so.cache")))


def test_names_are_those_that_ldconfig_gives(spool: Spool) -> None:
    tree = Tree(spool)
    tree.put_file("etc/ld.so.conf", b"# comment\ninclude /etc/ld.so.conf.d/*.conf\n")
    tree.put_file("etc/ld.so.conf.d/b.conf", b"/lib/aarch64-linux-gnu\n/opt/not/there\n")
    tree.put_file("etc/ld.so.conf.d/a.conf", b"/usr/local/lib # ours\n")
    tree.put_file("etc/ld.so.conf.d/.hidden.conf", b"/opt\n")
    lib = "usr/lib/aarch64-linux-gnu"
    tree.put_file(f"{lib}/libone.so.1.2.3", elf("libone.so.1"))
    tree.put_link(f"{lib}/libone.so.1", "libone.so.1.2.3")
    tree.put_link(f"{lib}/libone.so", "libone.so.1")
    tree.put_file(f"{lib}/libbare.so", elf(None))
    tree.put_file(f"{lib}/libscript.so", b"/* GNU ld script */ INPUT(libone.so.1)")
    tree.put_file(f"{lib}/libforeign.so.1", elf("libforeign.so.1", machine=62))
    tree.put_file(f"{lib}/libstatic.so.1", elf(None, dynamic=False))
    tree.put_file(f"{lib}/plugin.so", elf("plugin.so"))
    tree.put_link(f"{lib}/libdangling.so.9", "nowhere")
    tree.put_file("usr/local/lib/libhere.so.2", elf("libhere.so.2"))
    tree.merge_usr()
    assert _installed(tree) == {
        "libone.so.1": "/lib/aarch64-linux-gnu/libone.so.1",
        "libone.so": "/lib/aarch64-linux-gnu/libone.so",
        "libbare.so": "/lib/aarch64-linux-gnu/libbare.so",
        "libhere.so.2": "/usr/local/lib/libhere.so.2",
    }


def test_a_missing_soname_link_is_made_to_the_newest_file(spool: Spool) -> None:
    tree = Tree(spool)
    for version in ("1.9", "1.10"):
        tree.put_file(f"usr/lib/libtwo.so.{version}", elf("libtwo.so.1"))
    tree.merge_usr()
    assert _installed(tree) == {"libtwo.so.1": "/lib/libtwo.so.1"}
    link = tree.get("usr/lib/libtwo.so.1")
    assert link is not None
    assert link.target == "libtwo.so.1.10"


def test_links_through_alternatives_are_followed(spool: Spool) -> None:
    tree = Tree(spool)
    tree.put_file("usr/lib/blas/libblas.so.3", elf("libblas.so.3"))
    tree.put_link("etc/alternatives/libblas", "/usr/lib/blas/libblas.so.3")
    tree.put_link("usr/lib/libblas.so.3", "/etc/alternatives/libblas")
    tree.merge_usr()
    assert _installed(tree) == {"libblas.so.3": "/lib/libblas.so.3"}


@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_stumble(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    with open_spool(tmp_path_factory.mktemp("elf")) as opened:
        tree = Tree(opened)
        tree.put_file("usr/lib/libx.so", b"\x7fELF\x02\x01" + data)
        found = soname_of(tree, "usr/lib/libx.so", MACHINES["arm64"])
    assert found is None or isinstance(found, str)


def test_digits_sort_as_numbers_above_letters() -> None:
    names = ["libz.so", "libz.so.1", "libz.so.10", "libz.so.9", "liba.so", "lib1.so"]
    assert sorted(names, key=library_key) == [
        "liba.so",
        "libz.so",
        "libz.so.1",
        "libz.so.9",
        "libz.so.10",
        "lib1.so",
    ]
