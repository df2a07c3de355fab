"""Layers on top of each other."""

from __future__ import annotations

from builder.elf import ElfFacts, Known
from builder.verify.static import Entry, Kind, LayerFacts
from builder.verify.tree import Directory, File, Symlink, Tree

_ELF = ElfFacts(known=Known.DYNAMIC, machine=183, bits=64)


def _layer(*entries: Entry, elfs: tuple[str, ...] = ()) -> LayerFacts:
    return LayerFacts(entries=entries, elfs=dict.fromkeys(elfs, _ELF), libraries=None)


def _file(path: str) -> Entry:
    return Entry(Kind.FILE, path)


def _link(path: str, target: str) -> Entry:
    return Entry(Kind.SYMLINK, path, target)


def _paths(tree: Tree) -> list[str]:
    return [path for path, node in tree.walk() if not isinstance(node, Directory)]


def test_upper_files_replace_lower_ones() -> None:
    lower = _layer(_file("a/b.so"), _file("a/c"), elfs=("a/b.so",))
    tree = Tree([lower, _layer(_file("a/b.so"))])
    assert _paths(tree) == ["/a/b.so", "/a/c"]
    assert tree.find("/a/b.so") == ("/a/b.so", File())
    assert Tree([lower]).find("a/b.so") == ("/a/b.so", File(_ELF))


def test_whiteouts_remove_what_lower_layers_have() -> None:
    lower = _layer(_file("a/b/c"), _file("a/d"), _file("e/f"))
    upper = _layer(
        _file("a/new"), Entry(Kind.WHITEOUT, "a/b"), Entry(Kind.OPAQUE, "e"), _file("e/g")
    )
    assert _paths(Tree([lower, upper])) == ["/a/d", "/a/new", "/e/g"]


def test_a_whiteout_does_not_touch_its_own_layer() -> None:
    layer = _layer(_file("a/b"), Entry(Kind.WHITEOUT, "a/b"), Entry(Kind.OPAQUE, "a"))
    assert _paths(Tree([layer])) == ["/a/b"]


def test_whiteouts_of_nothing() -> None:
    layer = _layer(Entry(Kind.WHITEOUT, "no/where"), Entry(Kind.OPAQUE, "no"), _file("x"))
    assert _paths(Tree([layer])) == ["/x"]


def test_upper_files_follow_the_links_of_lower_layers() -> None:
    """As on a base whose /lib is a link (usrmerge)."""
    base = _layer(Entry(Kind.DIRECTORY, "usr/lib"), _link("lib", "usr/lib"))
    tree = Tree([base, _layer(_file("lib/x/y.so"), elfs=("lib/x/y.so",))])
    assert _paths(tree) == ["/lib", "/usr/lib/x/y.so"]
    assert tree.find("/lib/x/y.so") == ("/usr/lib/x/y.so", File(_ELF))


def test_links_are_followed_wherever_they_lead() -> None:
    tree = Tree(
        [
            _layer(
                _file("opt/v1/lib/a.so"),
                _link("opt/current", "v1"),
                _link("opt/up", "../opt/current/./lib"),
                _link("usr/abs", "/opt/up/a.so"),
            )
        ]
    )
    assert tree.find("/usr/abs") == ("/opt/v1/lib/a.so", File())
    assert tree.find("/opt/up/../lib/a.so") == ("/opt/v1/lib/a.so", File())
    assert tree.find("/../../opt/v1") is not None


def test_links_to_nowhere_and_in_circles() -> None:
    tree = Tree([_layer(_link("a", "b"), _link("b", "a"), _link("c", "none"), _file("f"))])
    assert tree.find("/a") is None
    assert tree.find("/c") is None
    assert tree.find("/f/below") is None


def test_a_folder_replaces_a_link_and_a_link_a_folder() -> None:
    lower = _layer(_link("a", "b"), _file("b/x"), _file("c/y"))
    upper = _layer(Entry(Kind.DIRECTORY, "a"), _link("c", "b"))
    tree = Tree([lower, upper])
    found = tree.find("/a")
    assert found is not None
    assert isinstance(found[1], Directory)
    assert tree.find("/c/x") == ("/b/x", File())


def test_hard_links_share_what_they_name() -> None:
    layer = _layer(_file("a.so"), Entry(Kind.HARDLINK, "b.so", "a.so"), elfs=("a.so",))
    assert Tree([layer]).find("/b.so") == ("/b.so", File(_ELF))
    assert [node for _, node in Tree([_layer(_link("l", "t"))]).walk()] == [Symlink("t")]


def test_the_uppermost_loaders_cache_counts() -> None:
    layers = [
        LayerFacts(entries=(), elfs={}, libraries={"a": "/1"}),
        LayerFacts(entries=(), elfs={}, libraries={"b": "/2"}),
        _layer(_file("x")),
    ]
    assert Tree(layers).libraries == {"b": "/2"}


def test_a_hard_link_to_a_folder_is_none() -> None:
    """It would make a tree without an end."""
    folder = Entry(Kind.DIRECTORY, "a")
    links = (Entry(Kind.HARDLINK, "a/b", "a"), Entry(Kind.HARDLINK, "c", ""))
    assert _paths(Tree([_layer(folder, *links)])) == ["/a/b", "/c"]
