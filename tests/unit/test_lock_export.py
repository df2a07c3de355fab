"""Exports: the same recipe and lock, in the words of uv, pip and PEP 751."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.pylock import Pylock
from packaging.requirements import Requirement

from builder.document import parse_document, validate
from builder.errors import UsageError
from builder.lock.export import Form, export
from builder.lock.model import (
    ChosenSource,
    Guard,
    Lock,
    LockedGit,
    LockedWheel,
    OciBase,
    Refusal,
    TorchIdentity,
)
from builder.lock.pylock import write_lock
from builder.recipe import Recipe
from tests.conftest import Golden

WHEEL_URL = "https://wheels.example/c0ffee/vllm-0.13.0%2Bcu130-cp38-abi3-manylinux_2_35_{}.whl"
GIT = LockedGit(
    name="trl",
    url="https://git.example/trl",
    ref="v1.0",
    commit="c" * 40,
    version="1.0",
    subdirectory="python",
)

RECIPE = """\
name: open-train
target: [gb10, thor, rtx-pro-x86]
base: {oci: ./base}
indexes: {vllm-cu130: https://wheels.example/nightly/cu130}
resolve:
  exclude_newer: 2026-11-01
  prerelease: allow
  constraints: [numpy<3]
  overrides: [protobuf>=5]
torch: {from: wheel, version: 2.9.0, index: cu130}
packages: [vllm>=0.13, "accelerate>=1; python_version < '3.14'", trl]
exclude: [Flash_Attn]
sources:
  vllm:
    - wheel: https://wheels.example/c0ffee/vllm-0.13.0%2Bcu130-cp38-abi3-manylinux_2_35_aarch64.whl
    - index: vllm-cu130
  trl: [{git: https://git.example/trl, ref: v1.0, subdirectory: python}]
"""


def recipe(text: str = RECIPE) -> Recipe:
    return validate(Recipe, parse_document(text.encode(), Path("recipe.yaml")))


def wheel(name: str, version: str, url: str | None = None) -> LockedWheel:
    plain = f"https://files.example/{name}-{version}-py3-none-any.whl"
    return LockedWheel(name=name, version=version, url=url or plain, sha256="a" * 64, size=10)


TORCH = wheel(
    "torch",
    "2.9.0+cu130",
    "https://files.example/cu130/torch-2.9.0%2Bcu130-cp312-cp312-manylinux_2_28_aarch64.whl",
)


def lock(target: str = "gb10", platform: str = "linux/arm64", *, vllm: str = "wheel") -> Lock:
    machine = "aarch64" if platform == "linux/arm64" else "x86_64"
    url = WHEEL_URL.format(machine)
    refused = (Refusal(source=f"wheel {url}", reason="404 Not Found"),)
    chosen = {
        "wheel": ChosenSource(name="vllm", source=f"wheel {url}"),
        "index": ChosenSource(name="vllm", source="index vllm-cu130", refused=refused),
    }
    return Lock(
        name="open-train",
        target=target,
        platform=platform,
        python="3.12",
        interpreter="/usr/bin/python3.12",
        glibc="2.39",
        base=OciBase(path="./base", digest=f"sha256:{'0' * 64}"),
        wheels=(wheel("accelerate", "1.2"), TORCH, wheel("vllm", "0.13.0+cu130", url)),
        gits=(GIT,),
        sources=(ChosenSource(name="trl", source="git https://git.example/trl@v1.0"), chosen[vllm]),
        inputs={},
    )


def test_a_project_of_one_platform(golden: Golden) -> None:
    golden.check("export-pyproject.toml", export(recipe(), [lock()], "pyproject"))


def test_a_project_tells_platforms_apart(golden: Golden) -> None:
    locks = [lock(), lock("thor"), lock("rtx-pro-x86", "linux/amd64", vllm="index")]
    text = export(recipe(), locks, "pyproject")
    golden.check("export-pyproject-platforms.toml", text)
    assert export(recipe(), locks[::-1], "pyproject") == text


def test_a_projects_dependencies_are_the_recipes_on_its_platform_only() -> None:
    document = tomllib.loads(export(recipe(), [lock()], "pyproject"))
    dependencies = [Requirement(text) for text in document["project"]["dependencies"]]
    assert [item.name for item in dependencies] == ["accelerate", "torch", "trl", "vllm"]
    spark = {"platform_system": "Linux", "platform_machine": "aarch64", "python_version": "3.12"}
    for item in dependencies:
        assert item.marker is not None
        assert item.marker.evaluate(spark)
        assert not item.marker.evaluate({**spark, "platform_machine": "x86_64"})
        assert not item.marker.evaluate({**spark, "platform_system": "Darwin"})
    assert dependencies[0].marker is not None
    assert not dependencies[0].marker.evaluate({**spark, "python_version": "3.14"})


def test_two_targets_that_no_marker_tells_apart_are_refused() -> None:
    with pytest.raises(UsageError, match="from one place for gb10 and from another for thor"):
        export(recipe(), [lock(), lock("thor", vllm="index")], "pyproject")


def test_a_torch_of_the_base_stays_out_of_the_project() -> None:
    text = RECIPE.replace("{from: wheel, version: 2.9.0, index: cu130}", "{from: base}")
    guarded = replace(
        lock(),
        torch=TorchIdentity(origin="base", version="2.10.0a0+b558c986e8.nv25.11"),
        guard=Guard(packages={"torch": "2.10.0a0+b558c986e8.nv25.11", "triton": "3.5.0"}),
    )
    document = tomllib.loads(export(recipe(text), [guarded], "pyproject"))
    assert document["tool"]["uv"]["exclude-dependencies"] == ["flash-attn", "torch", "triton"]
    assert not any(text.startswith("torch") for text in document["project"]["dependencies"])
    assert "torch" not in document["tool"]["uv"]["sources"]


def test_the_smallest_project_has_no_settings() -> None:
    text = "name: small\ntarget: gb10\nbase: {oci: x}\npackages: [rich]\n"
    plain = replace(lock(), gits=(), sources=(), wheels=(wheel("rich", "14.0"),))
    assert tomllib.loads(export(recipe(text), [plain], "pyproject")) == {
        "project": {
            "name": "small",
            "version": "0",
            "requires-python": ">=3.12,<3.13",
            "dependencies": [
                "rich; platform_system == 'Linux' and platform_machine == 'aarch64'",
            ],
        }
    }


def test_packages_that_are_compiled_see_the_projects_torch() -> None:
    text = RECIPE + "build_after_torch: [deepspeed==0.19.8]\n"
    document = tomllib.loads(export(recipe(text), [lock()], "pyproject"))
    assert document["tool"]["uv"]["no-build-isolation-package"] == ["deepspeed"]
    assert any(
        item.startswith("deepspeed==0.19.8;") for item in document["project"]["dependencies"]
    )


def test_requirements_pin_every_wheel_by_hash(golden: Golden) -> None:
    built = replace(lock(), gits=(), sources=lock().sources[1:])
    golden.check("export-requirements.txt", export(recipe(), [built], "requirements"))


def test_requirements_cannot_hold_a_commit() -> None:
    with pytest.raises(UsageError, match="trl is compiled from git") as caught:
        export(recipe(), [lock()], "requirements")
    assert "pylock" in (caught.value.hint or "")


def test_a_pylock_is_the_lock_without_what_is_ours() -> None:
    text = export(recipe(), [lock()], "pylock")
    document = tomllib.loads(text)
    Pylock.from_dict(document).validate()
    ours = tomllib.loads(write_lock(lock()))
    assert document.pop("tool", None) is None
    del ours["tool"]
    assert document == ours


@pytest.mark.parametrize("form", ["requirements", "pylock"])
def test_what_holds_one_lock_takes_one(form: Form) -> None:
    with pytest.raises(UsageError, match="gb10, thor") as caught:
        export(recipe(), [lock(), lock("thor")], form)
    assert "--target" in (caught.value.hint or "")


def test_a_source_of_what_nothing_asked_for_is_left_out() -> None:
    unused = ChosenSource(name="unused", source="wheel https://wheels.example/u-1-py3-none-any.whl")
    whole = lock()
    more = replace(whole, sources=(*whole.sources, unused))
    assert export(recipe(), [more], "pyproject") == export(recipe(), [whole], "pyproject")
