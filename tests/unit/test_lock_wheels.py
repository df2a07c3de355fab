"""Resolving: what uv is asked, and what becomes of each of its answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder.context import Context
from builder.errors import ExternalError, LockError, UsageError
from builder.http import Http
from builder.lock.model import LockedGit, LockedWheel
from builder.lock.stubs import Stub, compiled_stub
from builder.lock.wheels import Request, Served, ServedWheel, Upgrade, pinned_files, resolve
from tests.fake_uv import NO_SOLUTION, SHA256, Uv, package, pylock, wheel

REQUEST = Request(
    requirements=("numpy>=2", "torch==2.9.0"), platform="linux/arm64", python="3.13", glibc="2.41"
)
TORCH = Stub(name="torch", version="2.10.0a0", requires=("numpy",), pinned=True)
NUMPY = package("numpy", wheel("numpy-1.0-cp313-cp313-manylinux_2_28_aarch64.whl"))


def http_of(sizes: Mapping[str, int] | None = None) -> Http:
    """A server that answers HEAD with a size, and nothing else."""

    def answer(request: httpx.Request) -> httpx.Response:
        size = (sizes or {}).get(str(request.url))
        if request.method != "HEAD" or size is None:
            return httpx.Response(404)
        return httpx.Response(200, headers={"Content-Length": str(size)})

    return Http({}, transport=httpx.MockTransport(answer), sleep=lambda seconds: None)


def run(
    context: Context,
    uv: Uv,
    request: Request = REQUEST,
    sizes: Mapping[str, int] | None = None,
    **more: Any,
) -> tuple[LockedWheel, ...]:
    with http_of(sizes) as http:
        return resolve(request, context=context, http=http, run=uv, **more)


def test_uv_is_asked_for_the_target_and_for_wheels_only(context: Context) -> None:
    uv = Uv(pylock(NUMPY))
    run(context, uv)
    assert Path(uv.argv[0]).name == "uv"
    assert uv.argv[1:] == [
        *("pip", "compile", "pyproject.toml", "--config-file", "uv.toml"),
        *("--format", "pylock.toml", "--no-header"),
        *("--python-platform", "aarch64-manylinux_2_40", "--python-version", "3.13"),
        *("--python", sys.executable),
        *("--only-binary", ":all:", "--quiet", "--output-file", "pylock.toml"),
    ]
    assert uv.files["pyproject.toml"] == {
        "project": {
            "name": "spark-build-recipe",
            "version": "0",
            "requires-python": "==3.13.*",
            "dependencies": ["numpy>=2", "torch==2.9.0"],
        }
    }
    assert uv.files["uv.toml"] == {"exclude-dependencies": []}
    assert "pylock.toml" not in uv.files
    assert list((context.cache / "scratch").iterdir()) == []


def test_indexes_pins_and_settings_reach_uv(context: Context) -> None:
    uv = Uv(pylock(NUMPY))
    request = replace(
        REQUEST,
        exclude=("flash-attn",),
        indexes={"ours": "https://index.example/simple", "cu130": "https://torch.example/cu130"},
        pinned={"torch": "cu130"},
        settings={"exclude-newer": "2026-01-01T00:00:00Z", "prerelease": "disallow"},
    )
    run(context, uv, request)
    assert uv.files["pyproject.toml"]["tool"]["uv"] == {
        "index": [
            {"name": "cu130", "url": "https://torch.example/cu130", "explicit": True},
            {"name": "ours", "url": "https://index.example/simple", "explicit": True},
        ],
        "sources": {"torch": {"index": "cu130"}},
    }
    assert uv.files["uv.toml"] == {
        "exclude-dependencies": ["flash-attn"],
        "exclude-newer": "2026-01-01T00:00:00Z",
        "prerelease": "disallow",
    }


def test_the_commit_of_what_is_compiled_is_moved_elsewhere(context: Context) -> None:
    vllm = Stub(name="vllm", version="0.13", requires=("numpy",), pinned=True, origin="git")
    request = replace(REQUEST, requirements=(), stubs=(vllm,))
    found = run(context, Uv(pylock(NUMPY)), request, upgrade=Upgrade(packages=("vllm",)))
    assert [entry.name for entry in found] == ["numpy"]


EARLIER = (
    LockedWheel(
        name="numpy", version="0.9", url="https://n.example/n.whl", sha256="b" * 64, size=9
    ),
    LockedWheel(name="six", version="0.1", url="https://n.example/s.whl", sha256="c" * 64, size=9),
)


@pytest.mark.parametrize(
    ("upgrade", "flags", "kept"),
    [
        (Upgrade(), [], {"numpy": "0.9", "six": "0.1", "sympy": "1.14"}),
        (Upgrade(every=True), ["--refresh"], {"numpy": "0.8", "sympy": "1.14"}),
        (
            Upgrade(packages=("NumPy", "sympy")),
            ["--refresh-package", "numpy", "--refresh-package", "sympy"],
            {"six": "0.1"},
        ),
    ],
)
def test_earlier_versions_go_before_the_bases_and_an_upgrade_forgets_them(
    context: Context, upgrade: Upgrade, flags: list[str], kept: dict[str, str]
) -> None:
    """uv's own --upgrade would forget the base's versions as well, and replace all of it."""
    uv = Uv(pylock(NUMPY, package("six", wheel("six-1.0-py3-none-any.whl"))))
    base = tuple(
        Stub(name=name, version=version, pinned=False)
        for name, version in (("numpy", "0.8"), ("sympy", "1.14"))
    )
    run(context, uv, replace(REQUEST, stubs=base), earlier=EARLIER, upgrade=upgrade)
    start = uv.argv.index("--quiet") + 1
    assert uv.argv[start : uv.argv.index("--output-file")] == flags
    preferred = uv.files["pylock.toml"]["packages"]
    assert {entry["name"]: entry["version"] for entry in preferred} == kept
    assert bool(upgrade) == bool(flags)


def test_an_earlier_wheel_is_named_with_its_hash(context: Context) -> None:
    uv = Uv(pylock(NUMPY))
    run(context, uv, earlier=EARLIER[:1])
    wheels = [{"url": "https://n.example/n.whl", "hashes": {"sha256": "b" * 64}}]
    assert uv.files["pylock.toml"]["packages"] == [
        {"name": "numpy", "version": "0.9", "wheels": wheels}
    ]


@pytest.mark.parametrize(
    ("name", "says", "hint"),
    [
        ("nunpy", "nothing in the lock is called so", "did you mean `numpy`?"),
        ("xyz", "nothing in the lock is called so", "the lock names every package"),
        ("Torch", "2.10.0a0 is there already and must stay", "another base brings another one"),
    ],
)
def test_an_upgrade_of_what_is_not_there_is_refused(
    context: Context, name: str, says: str, hint: str
) -> None:
    request = replace(REQUEST, requirements=("numpy",), stubs=(TORCH,))
    with pytest.raises(UsageError) as caught:
        run(context, Uv(pylock(NUMPY)), request, upgrade=Upgrade(packages=(name,)))
    assert caught.value.message == f"--upgrade-package {name.lower()}: {says}"
    assert caught.value.hint == hint


def test_offline_is_handed_on(context: Context) -> None:
    uv = Uv(pylock(NUMPY))
    run(replace(context, offline=True), uv)
    assert uv.argv[-1] == "--offline"


def test_no_requirements_need_no_uv(context: Context) -> None:
    assert run(context, Uv(), replace(REQUEST, requirements=())) == ()


def test_the_best_wheel_of_each_package_is_locked_in_name_order(context: Context) -> None:
    torch = package(
        "torch",
        wheel("torch-2.9.0+cu130-cp313-cp313-win_amd64.whl"),
        wheel("torch-2.9.0+cu130-cp312-cp312-manylinux_2_28_aarch64.whl"),
        wheel("torch-2.9.0+cu130-cp313-cp313-manylinux_2_28_x86_64.whl"),
        wheel("torch-2.9.0+cu130-py3-none-any.whl"),
        wheel("torch-2.9.0%2Bcu130-cp313-cp313-manylinux_2_28_aarch64.whl"),
        wheel("torch-2.9.0+cu130-cp310-abi3-manylinux_2_28_aarch64.whl"),
        version="2.9.0+cu130",
    )
    elsewhere = package(
        "colorama", wheel("colorama-1.0-py3-none-any.whl"), marker="sys_platform == 'win32'"
    )
    found = run(context, Uv(pylock(torch, elsewhere, NUMPY)))
    assert found == (
        LockedWheel(
            name="numpy",
            version="1.0",
            url="https://files.example/numpy-1.0-cp313-cp313-manylinux_2_28_aarch64.whl",
            sha256=SHA256,
            size=1000,
        ),
        LockedWheel(
            name="torch",
            version="2.9.0+cu130",
            url="https://files.example/torch-2.9.0%2Bcu130-cp313-cp313-manylinux_2_28_aarch64.whl",
            sha256=SHA256,
            size=1000,
        ),
    )


def test_a_size_comes_from_the_index_else_from_before_else_from_the_server(
    context: Context,
) -> None:
    urls = {f"https://files.example/{name}-1.0-py3-none-any.whl": name for name in "abc"}
    packages = [
        package("a", wheel("a-1.0-py3-none-any.whl", size=11)),
        package("b", wheel("b-1.0-py3-none-any.whl", size=None, hashes={"sha256": "b" * 64})),
        package("c", wheel("c-1.0-py3-none-any.whl", size=None, hashes={"sha256": "c" * 64})),
    ]
    earlier = LockedWheel(name="b", version="1.0", url="u", sha256="b" * 64, size=22)
    sizes = {next(url for url, name in urls.items() if name == "c"): 33}
    found = run(context, Uv(pylock(*packages)), earlier=[earlier], sizes=sizes)
    assert [entry.size for entry in found] == [11, 22, 33]


def test_credentials_of_an_index_do_not_get_into_the_lock(context: Context) -> None:
    url = "https://me:hush@files.example/numpy-1.0-py3-none-any.whl"
    entry = package("numpy", wheel("x", url=url))
    [found] = run(context, Uv(pylock(entry)))
    assert found.url == "https://files.example/numpy-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    "entry",
    [
        package(
            "numpy",
            sdist={"url": "https://files.example/numpy-1.0.tar.gz", "hashes": {"sha256": SHA256}},
        ),
        package("numpy", wheel("numpy-1.0-cp312-cp312-manylinux_2_28_aarch64.whl")),
        package("numpy", wheel("numpy-1.0-cp313-cp313-manylinux_2_99_aarch64.whl")),
        package(
            "numpy",
            wheel("numpy-1.0-cp313-cp313-win_amd64.whl"),
            sdist={"url": "https://files.example/numpy-1.0.tar.gz", "hashes": {"sha256": SHA256}},
        ),
        package("numpy", directory={"path": "."}),
        package("numpy", wheel("numpy-1.0-py3-none-any.whl", hashes={"md5": "a"})),
        package(
            "numpy",
            wheel("numpy-1.0-py3-none-any.whl", url=None, path="numpy-1.0-py3-none-any.whl"),
        ),
        package("numpy", wheel("x", url="file:///srv/numpy-1.0-py3-none-any.whl")),
        package("numpy", archive={"path": "numpy-1.0.whl", "hashes": {"sha256": SHA256}}),
    ],
    ids=["sdist", "python", "glibc", "sdist-too", "directory", "md5", "path", "file", "archive"],
)
def test_a_package_without_a_wheel_for_the_target_is_refused(
    context: Context, entry: dict[str, Any]
) -> None:
    with pytest.raises(LockError, match="numpy"):
        run(context, Uv(pylock(entry)))


STUB_TAG = "cp313-cp313-manylinux_2_40_aarch64"


def test_stubs_are_pinned_by_path_the_others_found_in_their_folder(context: Context) -> None:
    uv = Uv(pylock(NUMPY))
    numpy = Stub(name="numpy", version="0.8", pinned=False)
    run(context, uv, replace(REQUEST, requirements=("numpy",), stubs=(TORCH, numpy)))
    torch = f"torch-2.10.0a0-999-{STUB_TAG}.whl"
    assert uv.stubs == [f"numpy-0.8-999-{STUB_TAG}.whl", torch]
    project = uv.files["pyproject.toml"]
    assert project["project"]["dependencies"] == ["numpy", "torch==2.10.0a0"]
    path = Path(project["tool"]["uv"]["sources"]["torch"]["path"])
    assert path.is_absolute()
    assert path.parts[-2:] == ("stubs", torch)
    assert uv.files["uv.toml"]["find-links"] == ["stubs"]
    assert uv.files["pylock.toml"]["packages"] == [
        {"name": "numpy", "version": "0.8"},
        {"name": "torch", "version": "2.10.0a0"},
    ]


def test_what_equals_a_stub_is_not_locked(context: Context) -> None:
    """Whether uv took the stub itself or the index's wheel of the same version."""
    answer = pylock(
        package(
            "torch",
            version="2.10.0a0",
            archive={"path": "stubs/t.whl", "hashes": {"sha256": SHA256}},
        ),
        package(
            "numpy",
            wheel("x", url="file:///tmp/stubs/numpy-0.8-py3-none-any.whl"),
            wheel("numpy-0.8-py3-none-any.whl"),
            version="0.8",
        ),
        package("sympy", wheel("sympy-2.0-py3-none-any.whl"), version="2.0"),
    )
    stubs = (
        TORCH,
        Stub(name="numpy", version="0.8.0", pinned=False),
        Stub(name="sympy", version="1.14", pinned=False),
    )
    found = run(context, Uv(answer), replace(REQUEST, requirements=("sympy>=2",), stubs=stubs))
    assert [(entry.name, entry.version) for entry in found] == [("sympy", "2.0")]


def test_a_stub_that_every_requirement_is_taken_to_be_met_by(context: Context) -> None:
    uv = Uv(pylock(NUMPY))
    request = replace(
        REQUEST,
        requirements=("numpy", "torch==2.11.0"),
        stubs=(TORCH,),
        accepted=("Torch",),
        settings={"override-dependencies": ["scipy<2"]},
    )
    run(context, uv, request)
    first, second = uv.files["uv.toml"]["override-dependencies"]
    assert first == "scipy<2"
    assert second.startswith("torch @ file:///")
    assert second.endswith(f"/stubs/torch-2.10.0a0-999-{STUB_TAG}.whl")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"requirements": ("torch==2.11.0",)},
            "the recipe requires torch==2.11.0; the base has 2.10.0a0",
        ),
        (
            {"direct": {"torch": "https://t.example/torch-2.11.0-py3-none-any.whl"}},
            "sources.torch: takes torch from elsewhere, and the base has 2.10.0a0",
        ),
        (
            {"pinned": {"Torch": "cu130"}},
            "sources.torch: takes torch from elsewhere, and the base has 2.10.0a0",
        ),
        (
            {"settings": {"override-dependencies": ["torch==2.11.0"]}},
            "resolve.overrides: `torch==2.11.0` is about torch, and the base has 2.10.0a0",
        ),
        (
            {
                "stubs": (
                    TORCH,
                    Stub(name="torch", version="3", pinned=True, origin="its repository"),
                )
            },
            "its repository has torch 3, and the base has 2.10.0a0",
        ),
    ],
)
def test_nothing_in_a_recipe_replaces_what_is_pinned(
    context: Context, changes: dict[str, Any], says: str
) -> None:
    """Asked before uv is: it forgets a version that is required directly beside a source."""
    uv = Uv(pylock(NUMPY))
    with pytest.raises(LockError) as caught:
        run(context, uv, replace(REQUEST, **{"requirements": (), "stubs": (TORCH,), **changes}))
    assert caught.value.message.startswith(says)
    assert not uv.asked


def test_a_requirement_that_is_not_for_the_platform_is_not_held_against_a_stub(
    context: Context,
) -> None:
    uv = Uv(pylock(NUMPY))
    requirements = ("numpy", "torch==2.11.0; sys_platform == 'win32'", "vllm>=0.13")
    vllm = Stub(name="vllm", version="0", pinned=True, origin="its repository")
    run(context, uv, replace(REQUEST, requirements=requirements, stubs=(TORCH, vllm)))
    assert len(uv.asked) == 1


VLLM_URL = "https://w.example/vllm-0.13.0%2Bcu130-cp38-abi3-manylinux_2_35_aarch64.whl"


def test_a_wheel_by_its_url_is_required_and_locked(context: Context) -> None:
    archive = {"url": VLLM_URL, "hashes": {"sha256": SHA256}}
    uv = Uv(pylock(NUMPY, package("vllm", version="0.13.0+cu130", archive=archive)))
    direct = {"vllm": VLLM_URL}
    stub = Stub(name="vllm", version="0.13.0+cu130", pinned=False)
    request = replace(REQUEST, requirements=("numpy",), direct=direct, stubs=(stub,))
    found = run(context, uv, request, sizes={VLLM_URL: 77})
    assert uv.asked == [["numpy", "vllm"]]
    assert uv.files["pyproject.toml"]["tool"]["uv"]["sources"] == {"vllm": {"url": VLLM_URL}}
    assert uv.stubs == []
    assert found[1] == LockedWheel(
        name="vllm", version="0.13.0+cu130", url=VLLM_URL, sha256=SHA256, size=77
    )


def test_a_package_of_an_index_is_required_too_since_uv_minds_no_other_source(
    context: Context,
) -> None:
    uv = Uv(pylock(NUMPY))
    indexes = {"ours": "https://index.example/simple"}
    run(context, uv, replace(REQUEST, requirements=("x",), indexes=indexes, pinned={"a-b": "ours"}))
    assert uv.asked == [["x", "a-b"]]


def test_a_package_from_a_repository_is_required_too(context: Context) -> None:
    git = LockedGit(
        name="vllm", url="https://git.example/vllm", ref="v1", commit="c" * 40, version="0.13.0"
    )
    uv = Uv(pylock(NUMPY))
    stubs = (compiled_stub(git, ["numpy"]),)
    run(context, uv, replace(REQUEST, requirements=("numpy",), stubs=stubs))
    assert uv.asked == [["numpy", "vllm==0.13.0"]]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://w.example/vllm.whl", "is not the name of a wheel"),
        ("https://w.example/other-1.0-py3-none-any.whl", "is a wheel of other"),
        ("https://w.example/vllm-1.0-cp312-cp312-manylinux_2_28_aarch64.whl", "does not run on"),
        ("https://w.example/vllm-1.0-cp38-abi3-manylinux_2_35_x86_64.whl", "does not run on"),
        ("https://w.example/vllm-1.0-cp38-abi3-manylinux_2_99_aarch64.whl", "does not run on"),
        ("https://w.example/vllm-0.9-py3-none-any.whl", "the recipe requires vllm>=0.10"),
    ],
)
def test_a_url_of_another_wheel_is_refused(context: Context, url: str, says: str) -> None:
    request = replace(REQUEST, requirements=("vllm>=0.10",), direct={"vllm": url})
    with pytest.raises(LockError, match=says) as caught:
        run(context, Uv(pylock(NUMPY)), request)
    assert url.rpartition("/")[2] in caught.value.message


TORCH_WHEEL = "torch-1.0-py3-none-any.whl"


def test_exact_pins_are_looked_up_anew_without_what_they_require(context: Context) -> None:
    uv = Uv(
        pylock(NUMPY, package("torch", wheel("x", url=f"https://me:hush@t.example/{TORCH_WHEEL}"))),
        warnings='warning: `torch==1.0` is yanked (reason: "bad file")\n',
    )
    request = replace(
        REQUEST,
        indexes={"cu130": "https://torch.example/cu130"},
        pinned={"torch": "cu130", "vllm": "cu130"},
        settings={
            "exclude-newer": "2026-01-01T00:00:00Z",
            "prerelease": "disallow",
            "override-dependencies": ["numpy<1"],
        },
    )
    found = pinned_files([("torch", "1.0"), ("numpy", "1.0")], request, context=context, run=uv)
    assert uv.asked == [["torch==1.0", "numpy==1.0"]]
    assert {"--no-deps", "--refresh"} < set(uv.argv)
    assert "--quiet" not in uv.argv
    assert uv.files["uv.toml"] == {
        "prerelease": "allow",
        "exclude-newer": "2026-01-01T00:00:00Z",
    }
    assert uv.files["pyproject.toml"]["tool"]["uv"]["sources"] == {"torch": {"index": "cu130"}}
    torch, numpy = found
    assert torch == Served(
        name="torch",
        version="1.0",
        wheels=(ServedWheel(url=f"https://t.example/{TORCH_WHEEL}", sha256=SHA256),),
        yanked="bad file",
    )
    assert numpy.yanked is None
    [only] = numpy.wheels
    assert only.filename == "numpy-1.0-cp313-cp313-manylinux_2_28_aarch64.whl"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", None),
        ("warning: `numpy==1.0` is yanked", ""),
        ('warning: `numpy==1.0` is yanked (reason: "a "b" (c)")', 'a "b" (c)'),
        ('warning: `numpy==1.0` is yanked (reason: "one\ntwo")', "one"),
        ("warning: `numpy-x==1.0` is yanked", None),
    ],
)
def test_a_yanked_version_is_told_with_its_reason(
    context: Context, said: str, reason: str | None
) -> None:
    uv = Uv(pylock(NUMPY), warnings=f"Resolved 1 package in 7ms\n{said}\n")
    [found] = pinned_files([("numpy", "1.0")], REQUEST, context=context, run=uv)
    assert found.yanked == reason


def test_what_cannot_be_had_is_told_from_the_rest(context: Context) -> None:
    """Of three, the second is gone: all, then the first, the other two, and each of these."""
    other = package("six", wheel("six-1.0-py3-none-any.whl"))
    uv = Uv(answers=[NO_SOLUTION, pylock(NUMPY), NO_SOLUTION, NO_SOLUTION, pylock(other)])
    pins = [("numpy", "1.0"), ("gone", "2.0"), ("six", "1.0")]
    found = pinned_files(pins, REQUEST, context=context, run=uv)
    assert [len(asked) for asked in uv.asked] == [3, 1, 2, 1, 1]
    assert [entry.name for entry in found] == ["numpy", "gone", "six"]
    assert [bool(entry.wheels) for entry in found] == [True, False, True]
    assert found[0].missing is found[2].missing is None
    assert "No solution found" in (found[1].missing or "")


def test_an_index_that_cannot_be_asked_is_no_answer(context: Context) -> None:
    with pytest.raises(ExternalError):
        pinned_files(
            [("numpy", "1.0"), ("six", "1.0")],
            REQUEST,
            context=context,
            run=Uv(says="error: Failed to fetch: `https://index.example/simple/numpy/`"),
        )


def test_no_pins_need_no_uv(context: Context) -> None:
    assert pinned_files([], REQUEST, context=context, run=Uv()) == ()
