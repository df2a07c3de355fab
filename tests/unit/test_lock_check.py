"""Drift: each thing that can go wrong with a lock in the world, and what is said of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomli_w

from builder.context import Context
from builder.errors import ExternalError, OfflineError, ToolError
from builder.http import Http
from builder.lock.changes.check import drift_of
from builder.lock.model import (
    Base,
    ChosenSource,
    DebianBase,
    Lock,
    LockedDeb,
    LockedGit,
    LockedWheel,
    OciBase,
    RegistryBase,
)
from builder.lock.store import Store
from builder.lock.supply import Supply
from builder.oci.registry import Registry
from builder.process import Completed
from builder.recipe import Recipe
from tests.builders import demo_lock

FILES = "https://files.example"
IMAGE = "registry.example/nvidia/pytorch:25.11-py3"
INDEX, MANIFEST = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
COMMIT = "c" * 40
DATA = b"a wheel"

RECIPE = Recipe.model_validate(
    {
        "name": "demo",
        "target": "gb10",
        "base": {"debian": {"suite": "trixie", "packages": ["python3"]}},
        "torch": {"from": "wheel", "version": "2.13.0", "index": "cu130"},
        "indexes": {"ours": "https://index.example/simple"},
        "packages": ["numpy", "pillow"],
        "sources": {"pillow": [{"index": "ours"}]},
        "resolve": {"exclude_newer": "2026-11-01"},
    }
)


def wheel(name: str, version: str = "1.0") -> LockedWheel:
    return LockedWheel(
        name=name,
        version=version,
        url=f"{FILES}/{name}-{version}-py3-none-any.whl",
        sha256=hashlib.sha256(DATA).hexdigest(),
        size=len(DATA),
    )


DEB = LockedDeb(
    name="libc6",
    version="2.41-12",
    architecture="arm64",
    url=f"{FILES}/libc6_2.41-12_arm64.deb",
    sha256="d" * 64,
    size=3000,
)
GIT = LockedGit(name="vllm", url="https://git.example/vllm", ref="v0.13.0", commit=COMMIT)
DEBIAN = DebianBase(suite="trixie", debs=(DEB,))
LOCAL = OciBase(path="base", digest=INDEX)
REGISTRY = RegistryBase(image=IMAGE, index=INDEX, digest=MANIFEST, size=1)


def lock_of(
    *wheels: LockedWheel,
    base: Base = LOCAL,
    gits: tuple[LockedGit, ...] = (),
    sources: tuple[ChosenSource, ...] = (),
) -> Lock:
    return demo_lock(*wheels, base=base, gits=gits, sources=sources)


@dataclass
class Tools:
    """Stands in for uv and git: what the index lists, and what a repository has."""

    wheels: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    warnings: str = ""
    refs: str = f"{COMMIT}\trefs/tags/v0.13.0\n"
    fetch_says: str | None = None
    projects: list[str] = field(default_factory=list)

    def __call__(
        self, argv: Sequence[str], *, cwd: Path | None = None, **settings: Any
    ) -> Completed:
        if argv[0] == "git":
            return Completed(tuple(argv), 0, self._git(argv), "")
        assert cwd is not None
        self._compile(cwd)
        return Completed(tuple(argv), 0, "", self.warnings)

    def _git(self, argv: Sequence[str]) -> str:
        if "ls-remote" in argv:
            return self.refs
        if "fetch" in argv and self.fetch_says is not None:
            raise ToolError("git failed", returncode=128, stderr=self.fetch_says)
        return ""

    def _compile(self, folder: Path) -> None:
        self.projects.append((folder / "pyproject.toml").read_text())
        asked = [name for name in self.wheels if f'"{name}==' in self.projects[-1]]
        if missing := [name for name in asked if not self.wheels[name]]:
            says = f"No solution found: there is no version of {missing[0]}==1.0"
            raise ToolError("uv failed", returncode=1, stderr=says)
        packages = [
            {"name": name, "version": "1.0", "wheels": list(self.wheels[name])} for name in asked
        ]
        listed = {"lock-version": "1.0", "created-by": "uv", "packages": packages}
        (folder / "pylock.toml").write_text(tomli_w.dumps(listed))


def listed(name: str, sha256: str | None = None, filename: str | None = None) -> dict[str, Any]:
    """A wheel as the index lists it, by default the locked one."""
    place = filename or f"{name}-1.0-py3-none-any.whl"
    digest = sha256 or hashlib.sha256(DATA).hexdigest()
    return {"url": f"{FILES}/{place}", "hashes": {"sha256": digest}}


Answers = Mapping[str, httpx.Response]
Check = Callable[..., tuple[str, ...]]


@pytest.fixture
def check(context: Context) -> Check:
    """`check(lock, answers, tools)`: drift where every URL answers as it did, `answers` apart."""

    def run(
        lock: Lock,
        answers: Answers | None = None,
        tools: Tools | None = None,
        *,
        recipe: Recipe = RECIPE,
        offline: bool = False,
    ) -> tuple[str, ...]:
        files = {file.url: str(file.size) for file in (*lock.wheels, DEB)}

        def answer(request: httpx.Request) -> httpx.Response:
            url = str(request.url)
            known = (answers or {}).get(f"{request.method} {url}") or (answers or {}).get(url)
            if known is not None:
                return known
            if url in files:
                return httpx.Response(200, headers={"Content-Length": files[url]})
            digest = INDEX if url.endswith("/25.11-py3") else MANIFEST
            return httpx.Response(200, headers={"Docker-Content-Digest": digest})

        if tools is None:
            tools = Tools({item.name: [listed(item.name)] for item in lock.wheels})
        transport = httpx.MockTransport(answer)
        with Http({}, offline=offline, transport=transport, sleep=lambda seconds: None) as http:
            supply = Supply(
                context=replace(context, offline=offline),
                http=http,
                registry=Registry(http, {}),
                store=Store(context.cache),
            )
            return drift_of(lock, recipe=recipe, supply=supply, run=tools)

    return run


def test_nothing_changed(check: Check) -> None:
    lock = lock_of(wheel("numpy"), wheel("pillow"), base=DEBIAN, gits=(GIT,))
    assert check(lock) == ()
    assert check(lock_of(base=REGISTRY)) == ()


MANIFESTS = "https://registry.example/v2/nvidia/pytorch/manifests"
OTHER = f"sha256:{'9' * 64}"


def test_a_tag_that_moved(check: Check) -> None:
    moved = httpx.Response(200, headers={"Docker-Content-Digest": OTHER})
    assert check(lock_of(base=REGISTRY), {f"{MANIFESTS}/25.11-py3": moved}) == (
        f"base {IMAGE}: the tag names {OTHER} now, the lock has {INDEX}",
    )


def test_a_tag_and_a_digest_that_are_gone(check: Check) -> None:
    gone = httpx.Response(404)
    answers = {f"{MANIFESTS}/25.11-py3": gone, f"{MANIFESTS}/{MANIFEST}": gone}
    assert check(lock_of(base=REGISTRY), answers) == (
        f"base {IMAGE}: the registry has no such tag any more",
        f"base {IMAGE}: the registry does not have {MANIFEST} any more",
    )


def test_a_base_by_digest_has_no_tag_to_move(check: Check) -> None:
    base = replace(REGISTRY, image=f"{IMAGE}@{INDEX}")
    moved = httpx.Response(200, headers={"Docker-Content-Digest": OTHER})
    assert check(lock_of(base=base), {f"{MANIFESTS}/25.11-py3": moved}) == ()


@pytest.mark.parametrize("status", [404, 410])
def test_a_file_that_is_gone(check: Check, context: Context, status: int) -> None:
    lock = lock_of(wheel("numpy"), base=DEBIAN)
    answers = {file.url: httpx.Response(status) for file in (*lock.wheels, DEB)}
    lines = (
        f"numpy 1.0: {FILES}/numpy-1.0-py3-none-any.whl is gone: the server answers {status}",
        f"libc6 2.41-12: {DEB.url} is gone: the server answers {status}",
    )
    assert check(lock, answers) == lines
    Store(context.cache).put(DATA)
    assert check(lock, answers) == (f"{lines[0]} (the cache still has it)", lines[1])


def test_a_file_of_another_size(check: Check) -> None:
    larger = httpx.Response(200, headers={"Content-Length": "8"})
    lock = lock_of(wheel("numpy"))
    assert check(lock, {lock.wheels[0].url: larger}) == (
        f"numpy 1.0: {FILES}/numpy-1.0-py3-none-any.whl has 8 bytes now, the lock has 7",
    )


@pytest.mark.parametrize("status", [405, 501])
def test_a_server_that_takes_no_head(check: Check, status: int) -> None:
    lock = lock_of(wheel("numpy"))
    url = lock.wheels[0].url
    answers = {f"HEAD {url}": httpx.Response(status), f"GET {url}": httpx.Response(200)}
    assert check(lock, answers) == ()
    [line] = check(lock, {**answers, f"GET {url}": httpx.Response(404)})
    assert line.endswith("is gone: the server answers 404")


def test_a_server_that_says_no_size(check: Check) -> None:
    lock = lock_of(wheel("numpy"))
    assert check(lock, {lock.wheels[0].url: httpx.Response(200)}) == ()


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_server_that_refuses_is_no_drift(check: Check, status: int) -> None:
    lock = lock_of(wheel("numpy"))
    with pytest.raises(ExternalError, match=str(status)):
        check(lock, {lock.wheels[0].url: httpx.Response(status)})


def test_offline_nothing_is_known(check: Check) -> None:
    for lock in (lock_of(wheel("numpy")), lock_of(gits=(GIT,)), lock_of(base=REGISTRY)):
        with pytest.raises(OfflineError):
            check(lock, offline=True)


@pytest.mark.parametrize(
    ("wheels", "warnings", "line"),
    [
        (
            [listed("numpy")],
            'warning: `numpy==1.0` is yanked (reason: "breaks on arm64")',
            "numpy 1.0: yanked: breaks on arm64",
        ),
        (
            [listed("numpy")],
            "warning: `numpy==1.0` is yanked",
            "numpy 1.0: yanked: no reason is given",
        ),
        (
            [listed("numpy", sha256="e" * 64)],
            "",
            "numpy 1.0: the index has another file as numpy-1.0-py3-none-any.whl now",
        ),
        (
            [listed("numpy", sha256="e" * 64, filename="numpy-1.0-py2-none-any.whl")],
            "",
            "numpy 1.0: the index does not list numpy-1.0-py3-none-any.whl any more",
        ),
        ([], "", "numpy 1.0: the index does not have it for this platform any more"),
    ],
    ids=["yanked", "yanked without a reason", "another hash", "not listed", "no such version"],
)
def test_what_the_index_says(
    check: Check, wheels: list[dict[str, Any]], warnings: str, line: str
) -> None:
    tools = Tools({"numpy": wheels, "pillow": [listed("pillow")]}, warnings=warnings)
    assert check(lock_of(wheel("numpy"), wheel("pillow")), tools=tools) == (line,)


def test_an_index_without_hashes_is_believed(check: Check) -> None:
    plain = {"url": f"{FILES}/numpy-1.0-py3-none-any.whl", "hashes": {"md5": "0" * 32}}
    assert check(lock_of(wheel("numpy")), tools=Tools({"numpy": [plain]})) == ()


def test_each_package_is_asked_of_its_own_index(check: Check) -> None:
    sources = (
        ChosenSource(name="pillow", source="index ours"),
        ChosenSource(name="vllm", source=f"wheel {FILES}/vllm-1.0-py3-none-any.whl"),
        ChosenSource(name="numpy", source="index dropped"),
    )
    lock = lock_of(*(wheel(name) for name in ("numpy", "pillow", "torch", "vllm")), sources=sources)
    tools = Tools({item.name: [listed(item.name)] for item in lock.wheels})
    assert check(lock, tools=tools) == ()
    [project] = tools.projects
    assert "vllm" not in project
    assert '[tool.uv.sources.pillow]\nindex = "ours"' in project
    assert '[tool.uv.sources.torch]\nindex = "cu130"' in project
    assert "tool.uv.sources.numpy" not in project


def test_the_lines_keep_the_order_of_the_lock(check: Check) -> None:
    lock = lock_of(wheel("a"), wheel("b"), base=DEBIAN, gits=(GIT,))
    gone = {file.url: httpx.Response(404) for file in (*lock.wheels, DEB)}
    tools = Tools({"a": [], "b": []}, refs="")
    subjects = [line.partition(":")[0] for line in check(lock, gone, tools)]
    assert subjects == ["a 1.0", "a 1.0", "b 1.0", "b 1.0", "libc6 2.41-12", "vllm"]


@pytest.mark.parametrize(
    ("refs", "said"),
    [
        (f"{'d' * 40}\trefs/tags/v0.13.0\n", "v0.13.0 names dddddddddddd now, the lock has cccc"),
        ("", "has no tag or branch v0.13.0 any more"),
    ],
)
def test_a_ref_that_moved_or_went(check: Check, refs: str, said: str) -> None:
    [line] = check(lock_of(gits=(GIT,)), tools=Tools(refs=refs))
    assert line.startswith("vllm: https://git.example/vllm")
    assert said in line


@pytest.mark.parametrize(
    ("says", "lines"),
    [
        (None, ()),
        ("fatal: remote error: Server does not allow request for unadvertised object c", ()),
        (
            f"fatal: remote error: upload-pack: not our ref {COMMIT}",
            (f"vllm: https://git.example/vllm does not have the commit {COMMIT} any more",),
        ),
    ],
)
def test_a_commit_that_went(check: Check, says: str | None, lines: tuple[str, ...]) -> None:
    git = replace(GIT, ref=COMMIT)
    assert check(lock_of(gits=(git,)), tools=Tools(fetch_says=says)) == lines


def test_a_repository_that_cannot_be_reached_is_no_drift(check: Check) -> None:
    git = replace(GIT, ref=COMMIT)
    with pytest.raises(ExternalError, match="Could not resolve host"):
        check(lock_of(gits=(git,)), tools=Tools(fetch_says="fatal: Could not resolve host"))
