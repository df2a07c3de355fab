"""Locking: resolved where it must be, left alone where it can be, and told what changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.context import Context
from builder.errors import LockError, StaleLockError, UsageError
from builder.lock import Locked, Upgrade, closure, debs, drift, lock_recipe
from builder.lock.model import DebianBase, LockedDeb, LockedWheel, OciBase
from builder.lock.pylock import write_lock
from builder.lock.supply import open_supply
from builder.lock.wheels import Request
from builder.oci.image import write_layout
from builder.oci.layer import LayerWriter
from builder.recipe import load_recipe
from builder.targets import find_target
from tests.builders import base_layout, image_of, write_layer

NUMPY = LockedWheel(
    name="numpy",
    version="2.3.4",
    url="https://files.example/numpy-2.3.4-py3-none-any.whl",
    sha256="a" * 64,
    size=1000,
)
DEB = LockedDeb(
    name="python3.13-minimal",
    version="3.13.5-2",
    architecture="arm64",
    url="https://debs.example/python3.13-minimal_3.13.5-2_arm64.deb",
    sha256="b" * 64,
    size=2000,
)
RECIPE = "name: demo\ntarget: [gb10, b200-x86]\nbase: {oci: base}\npackages: [numpy]\n"


@dataclass
class Resolver:
    """Stands in for uv: answers with `wheels`, and keeps what it was asked."""

    wheels: tuple[LockedWheel, ...] = (NUMPY,)
    asked: list[Request] = field(default_factory=list)
    earlier: list[tuple[LockedWheel, ...]] = field(default_factory=list)

    def __call__(
        self, request: Request, *, earlier: Any, **settings: Any
    ) -> tuple[LockedWheel, ...]:
        self.asked.append(request)
        self.earlier.append(tuple(earlier))
        return self.wheels


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    stand_in = Resolver()
    monkeypatch.setattr(closure, "resolve", stand_in)
    monkeypatch.setattr(closure, "uv_version", lambda: "0.9.8")
    return stand_in


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a recipe and the base that it names."""
    folder = tmp_path / "project"
    folder.mkdir()
    base_layout(folder / "base")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture
def lock(project: Path, context: Context, resolver: Resolver) -> Iterator[Callable[..., Locked]]:
    """`lock(text=…, target=…, …)` locks the recipe, with a new text where one is given."""
    with open_supply(replace(context, offline=True)) as supply:

        def run(text: str | None = None, *, target: str = "gb10", **settings: Any) -> Locked:
            if text is not None:
                (project / "recipe.yaml").write_text(text)
            loaded = load_recipe(project / "recipe.yaml")
            return lock_recipe(loaded, find_target(target), supply, **settings)

        yield run


def test_a_recipe_is_locked_beside_itself(
    project: Path, lock: Callable[..., Locked], resolver: Resolver
) -> None:
    locked = lock()
    assert (locked.written, locked.path) == (True, project / "pylock.demo-gb10.toml")
    assert locked.path.read_text() == write_lock(locked.lock)
    found = locked.lock
    assert (found.name, found.target, found.platform) == ("demo", "gb10", "linux/arm64")
    assert (found.python, found.interpreter, found.glibc) == ("3.13", "/usr/bin/python3.13", "2.41")
    assert found.wheels == (NUMPY,)
    assert isinstance(found.base, OciBase)
    assert found.base.path == "base"
    assert found.tools["uv"] == "0.9.8"
    [request] = resolver.asked
    assert (request.requirements, request.platform) == (("numpy",), "linux/arm64")
    assert (request.python, request.glibc) == ("3.13", "2.41")


def test_an_unchanged_recipe_is_not_resolved_again(
    lock: Callable[..., Locked], resolver: Resolver
) -> None:
    first = lock()
    inode = first.path.stat().st_ino
    for options in ({}, {"frozen": True}):
        again = lock(f"# a comment\n{RECIPE}", **options)
        assert (again.written, again.lock) == (False, first.lock)
    assert len(resolver.asked) == 1
    assert first.path.stat().st_ino == inode


def test_a_changed_recipe_is_resolved_again_from_what_was_locked(
    lock: Callable[..., Locked], resolver: Resolver
) -> None:
    lock()
    resolver.wheels = (replace(NUMPY, version="2.4.0"),)
    again = lock(RECIPE.replace("[numpy]", "[numpy>=2.4]"))
    assert again.written
    assert again.lock.wheels == resolver.wheels
    assert resolver.earlier == [(), (NUMPY,)]


def test_an_upgrade_resolves_again_and_writes_only_what_is_new(
    lock: Callable[..., Locked], resolver: Resolver
) -> None:
    lock()
    assert not lock(upgrade=Upgrade(every=True)).written
    assert len(resolver.asked) == 2
    resolver.wheels = (replace(NUMPY, version="2.4.0"),)
    assert lock(upgrade=Upgrade(packages=("numpy",))).written


def stale(lock: Callable[..., Locked], text: str | None = None) -> list[str]:
    """What a frozen run says has changed."""
    with pytest.raises(StaleLockError) as caught:
        lock(text, frozen=True)
    assert "commit the lock" in (caught.value.hint or "")
    first, *lines = caught.value.message.splitlines()
    assert first.endswith("pylock.demo-gb10.toml: does not answer the recipe:")
    return [line.strip() for line in lines]


def test_a_frozen_run_without_a_lock_says_so(
    project: Path, lock: Callable[..., Locked], resolver: Resolver
) -> None:
    assert stale(lock) == ["there is no lock yet"]
    assert resolver.asked == []
    assert not (project / "pylock.demo-gb10.toml").exists()


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (
            RECIPE.replace("[numpy]", "[numpy<3]"),
            ["requirements: - numpy", "requirements: + numpy<3"],
        ),
        (f"{RECIPE}exclude: [flash-attn]\n", ["exclude: nothing → ['flash-attn']"]),
        (f"{RECIPE}python: 3.13\n", ["python: nothing → 3.13"]),
        (
            f"{RECIPE}torch: {{from: wheel, version: 2.9.0, index: cu130}}\n",
            [
                "requirements: + torch==2.9.0",
                "torch: nothing → {'from': 'wheel', 'version': '2.9.0', 'index': 'cu130'}",
            ],
        ),
        (
            f"{RECIPE}resolve: {{prerelease: allow}}\n",
            ["resolve: nothing → {'prerelease': 'allow'}"],
        ),
    ],
)
def test_a_frozen_run_names_what_changed(
    lock: Callable[..., Locked], resolver: Resolver, text: str, changes: list[str]
) -> None:
    before = lock().path.read_bytes()
    assert stale(lock, text) == changes
    assert len(resolver.asked) == 1
    assert lock(RECIPE).path.read_bytes() == before


@pytest.mark.parametrize(
    "addition",
    [
        "env: {A: b}\n",
        "entrypoint: [python]\n",
        "description: another\n",
        "labels: {a: b}\n",
        "checks: [matmul]\n",
    ],
)
def test_what_the_resolution_does_not_see_makes_nothing_stale(
    lock: Callable[..., Locked], addition: str
) -> None:
    lock()
    assert not lock(RECIPE + addition, frozen=True).written


def test_another_base_under_the_same_path_makes_the_lock_stale(
    project: Path, lock: Callable[..., Locked], resolver: Resolver
) -> None:
    old = lock().lock.base
    shutil.rmtree(project / "base")
    new = base_layout(project / "base", config={"Env": ["NEW=1"]})
    assert isinstance(old, OciBase)
    assert stale(lock) == [f"base.oci: {old.digest} → {new.digest}"]
    again = lock()
    assert again.lock.base == OciBase(path="base", digest=new.digest)


def test_a_lock_of_another_recipe_under_this_ones_name_is_stale(
    project: Path, lock: Callable[..., Locked]
) -> None:
    path = lock().path
    lock(RECIPE.replace("demo", "other"))
    (project / "pylock.other-gb10.toml").replace(path)
    assert stale(lock, RECIPE) == ["lock: pylock.other-gb10.toml → pylock.demo-gb10.toml"]
    assert lock().written


def test_each_target_has_a_lock_of_its_own(
    project: Path, lock: Callable[..., Locked], context: Context
) -> None:
    lock()
    with pytest.raises(UsageError, match="holds no image for linux/amd64"):
        lock(target="b200-x86")
    assert [path.name for path in project.glob("pylock.*")] == ["pylock.demo-gb10.toml"]


def test_the_python_of_the_recipe_must_be_the_bases(
    project: Path, lock: Callable[..., Locked], resolver: Resolver
) -> None:
    with pytest.raises(LockError, match=r"the recipe says 3\.12, its base has 3\.13"):
        lock(f"{RECIPE}python: 3.12\n")
    assert resolver.asked == []
    assert list(project.glob("pylock.*")) == []


def test_a_lock_that_was_changed_by_hand_is_not_taken(lock: Callable[..., Locked]) -> None:
    path = lock().path
    path.write_text(path.read_text().replace("size = 1000", "size = 1001"))
    with pytest.raises(LockError, match="changed by hand"):
        lock()


def test_a_base_without_python_is_refused(project: Path, lock: Callable[..., Locked]) -> None:
    def write(writer: LayerWriter) -> None:
        writer.file("usr/lib/libc.so.6", b"\0GLIBC_2.41\0")

    shutil.rmtree(project / "base")
    write_layout(image_of([write_layer(project / "layer", write)]), project / "base")
    with pytest.raises(LockError, match=r"has no python3\.N in /usr/bin"):
        lock()


def test_a_base_that_is_not_there_is_named(project: Path, lock: Callable[..., Locked]) -> None:
    shutil.rmtree(project / "base")
    with pytest.raises(UsageError, match="not an OCI layout"):
        lock()


def test_the_choices_of_the_recipe_reach_the_resolver(
    lock: Callable[..., Locked], resolver: Resolver
) -> None:
    lock(
        f"{RECIPE}exclude: [flash-attn]\n"
        "torch: {from: wheel, version: 2.9.0, index: cu130}\n"
        "resolve: {exclude_newer: 2026-01-01, prerelease: allow, constraints: [numpy<3]}\n"
    )
    [request] = resolver.asked
    assert request.requirements == ("numpy", "torch==2.9.0")
    assert request.exclude == ("flash-attn",)
    assert request.pinned == {"torch": "cu130"}
    assert list(request.indexes) == ["cu130"]
    assert request.settings["prerelease"] == "allow"
    assert request.settings["constraint-dependencies"] == ["numpy<3"]
    assert str(request.settings["exclude-newer"]).startswith("2026-01-01")


@pytest.mark.parametrize("python", ["3.13", None])
def test_a_debian_base_is_locked_by_its_packages(
    lock: Callable[..., Locked], monkeypatch: pytest.MonkeyPatch, python: str | None
) -> None:
    asked: list[tuple[Any, ...]] = []

    def resolve(*arguments: Any, **settings: Any) -> tuple[LockedDeb, ...]:
        asked.append((*arguments, settings["mirror"]))
        return (DEB,)

    monkeypatch.setattr(debs, "resolve", resolve)
    monkeypatch.setattr(debs, "python_version", lambda found: python)
    monkeypatch.setattr(debs, "glibc_version", lambda found: "2.41")
    base = "{debian: {suite: trixie, packages: [python3], mirror: 'https://debs.example/d'}}"
    text = RECIPE.replace("{oci: base}", base) + "system: [git]\n"
    if python is None:
        with pytest.raises(
            LockError, match=r"\.yaml:3: base\.debian\.packages: no Python is among"
        ):
            lock(text)
    else:
        found = lock(text).lock
        assert found.base == DebianBase(suite="trixie", debs=(DEB,))
        assert (found.interpreter, found.glibc) == ("/usr/bin/python3.13", "2.41")
    assert asked == [("trixie", ["python3", "git"], "arm64", "https://debs.example/d")]


def test_what_a_suite_does_not_have_is_said_at_its_place_in_the_recipe(
    project: Path, lock: Callable[..., Locked], monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*arguments: Any, **settings: Any) -> tuple[LockedDeb, ...]:
        raise LockError("the mirror has no such suite", hint="mind the spelling")

    monkeypatch.setattr(debs, "resolve", resolve)
    debian = "\n  debian:\n    suite: trixi\n    packages: [python3]"
    with pytest.raises(LockError) as caught:
        lock(RECIPE.replace(" {oci: base}", debian))
    assert caught.value.message == (
        f"{project / 'recipe.yaml'}:4: base.debian: the mirror has no such suite"
    )
    assert caught.value.hint == "mind the spelling"


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ({}, {}, []),
        ({"a": 1}, {"a": 2}, ["a: 1 → 2"]),
        ({"a": {"b": "x"}}, {"a": {"b": "y"}}, ["a.b: x → y"]),
        ({"a": "x"}, {}, ["a: x → nothing"]),
        ({"a": ["x", "y"]}, {"a": ["y", "z"]}, ["a: - x", "a: + z"]),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}, ["a: the same in another order or number"]),
        ({"a": ["x", "x"]}, {"a": ["x"]}, ["a: the same in another order or number"]),
        ({"a": ["x"]}, {"a": "x"}, ["a: ['x'] → x"]),
        ({"a": "x"}, {"a": ["x"]}, ["a: x → ['x']"]),
        ({"a": {"b": 1}}, {"a": "b"}, ["a: {'b': 1} → b"]),
    ],
)
def test_what_differs_is_told_line_by_line(old: Any, new: Any, lines: list[str]) -> None:
    assert list(drift(old, new)) == lines


PLAIN = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=2), PLAIN), st.dictionaries(st.text(max_size=2), PLAIN))
def test_something_is_told_exactly_where_something_differs(old: Any, new: Any) -> None:
    assert bool(list(drift(old, new))) == (old != new)
