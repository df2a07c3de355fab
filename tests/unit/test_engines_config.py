"""The image's config: the base's own, with what the plan says on top of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.engines.config import image_config
from builder.lock.model import OciBase
from builder.plan import DEFAULT_PATH, Config, Plan, Venv

PLAN = Plan(
    name="demo",
    target="gb10",
    platform="linux/arm64",
    base=OciBase(path="base", digest="sha256:" + "a" * 64),
    venv=Venv(prefix="/opt/venv", python="3.13", interpreter="/usr/bin/python3.13"),
    builder=(),
    runtime=(),
    config=Config(path="/opt/venv/bin"),
)
BASE: dict[str, Any] = {
    "architecture": "arm64",
    "os": "linux",
    "variant": "v8",
    "author": "someone",
    "created": "2025-05-05T05:05:05Z",
    "unknown.field": {"kept": True},
    "config": {
        "Env": ["PATH=/usr/local/cuda/bin:/usr/bin", "A=base", "EMPTY=", "B=b=b"],
        "Labels": {"maintainer": "someone", "k": "base"},
        "Cmd": ["bash"],
        "User": "1000",
        "WorkingDir": "/workspace",
        "ExposedPorts": {"80/tcp": {}},
        "StopSignal": "SIGINT",
        "Volumes": {"/data": {}},
    },
    "rootfs": {"type": "layers", "diff_ids": ["sha256:base"]},
    "history": [{"created_by": "base"}, {"created_by": "ENV", "empty_layer": True}],
}


def config_of(base: dict[str, Any] | None = BASE, **settings: Any) -> dict[str, Any]:
    plan = replace(PLAN, config=replace(PLAN.config, **settings))
    added = [("sha256:one", "numpy 2.3.4"), ("sha256:two", "files of demo")]
    return image_config(plan, base=base, added=added, epoch=1_700_000_000)


def runtime(base: dict[str, Any] | None = BASE, **settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = config_of(base, **settings)["config"]
    return found


def test_what_the_plan_does_not_say_stays_the_bases() -> None:
    found = config_of()
    for key in ("architecture", "os", "variant", "author", "unknown.field"):
        assert found[key] == BASE[key]
    for key in ("Cmd", "User", "WorkingDir", "ExposedPorts", "StopSignal", "Volumes", "Labels"):
        assert found["config"][key] == BASE["config"][key]
    assert "Entrypoint" not in found["config"]


def test_each_layer_has_its_line_of_history_after_the_bases() -> None:
    found = config_of()
    created = "2023-11-14T22:13:20Z"
    assert found["created"] == created
    assert found["rootfs"] == {
        "type": "layers",
        "diff_ids": ["sha256:base", "sha256:one", "sha256:two"],
    }
    assert found["history"] == [
        *BASE["history"],
        {"created": created, "created_by": "spark-build: numpy 2.3.4"},
        {"created": created, "created_by": "spark-build: files of demo"},
    ]


def test_variables_are_merged_by_name_in_the_bases_order() -> None:
    env = {"A": "ours", "NEW": "1", "PATHS": "/x"}
    assert runtime(env=env)["Env"] == [
        "PATH=/opt/venv/bin:/usr/local/cuda/bin:/usr/bin",
        "A=ours",
        "EMPTY=",
        "B=b=b",
        "NEW=1",
        "PATHS=/x",
    ]


@pytest.mark.parametrize("env", [[], None, ["A=1"], ["PATH="]])
def test_a_base_without_a_path_gets_the_usual_one(env: list[str] | None) -> None:
    found = runtime({**BASE, "config": {"Env": env}})["Env"]
    assert f"PATH=/opt/venv/bin:{DEFAULT_PATH}" in found
    assert len(found) == len([entry for entry in env or [] if "PATH" not in entry]) + 1


def test_an_entrypoint_of_ours_drops_the_bases_arguments() -> None:
    found = runtime(entrypoint=("vllm", "serve"))
    assert found["Entrypoint"] == ["vllm", "serve"]
    assert "Cmd" not in found


def test_arguments_of_ours_stay_with_either_entrypoint() -> None:
    found = runtime(entrypoint=("vllm",), cmd=("serve",))
    assert (found["Entrypoint"], found["Cmd"]) == (["vllm"], ["serve"])
    base = {**BASE, "config": {"Entrypoint": ["/init"], "Cmd": ["bash"]}}
    found = runtime(base, cmd=("serve",))
    assert (found["Entrypoint"], found["Cmd"]) == (["/init"], ["serve"])


def test_the_other_settings_replace_or_add() -> None:
    found = runtime(user="root", workdir="/opt/app", ports=(8000, 8001), labels={"k": "ours"})
    assert (found["User"], found["WorkingDir"]) == ("root", "/opt/app")
    assert found["Labels"] == {"maintainer": "someone", "k": "ours"}
    assert found["ExposedPorts"] == {"80/tcp": {}, "8000/tcp": {}, "8001/tcp": {}}


def test_without_a_base_the_image_is_ours_alone() -> None:
    found = config_of(None, labels={"k": "v"})
    assert (found["os"], found["architecture"]) == ("linux", "arm64")
    assert found["rootfs"]["diff_ids"] == ["sha256:one", "sha256:two"]
    assert len(found["history"]) == 2
    assert found["config"] == {
        "Env": [f"PATH=/opt/venv/bin:{DEFAULT_PATH}"],
        "Labels": {"k": "v"},
    }


@pytest.mark.parametrize("key", ["config", "history"])
def test_a_null_in_the_base_is_nothing(key: str) -> None:
    """Go programs write null for an empty list or map."""
    found = config_of({**BASE, key: None}, ports=(80,))
    assert len(found["history"]) == (2 if key == "history" else 4)
    nulls = dict.fromkeys(("Env", "Labels", "Cmd", "ExposedPorts"))
    assert runtime({**BASE, "config": nulls}, ports=(80,))["ExposedPorts"] == {"80/tcp": {}}


def test_the_base_is_not_changed() -> None:
    before = repr(BASE)
    config_of(env={"A": "x"}, ports=(1,), entrypoint=("x",), labels={"k": "x"})
    assert repr(BASE) == before
