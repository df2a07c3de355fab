"""Plans: every decision about an image, as values, out of a recipe and its lock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.lock.model import DebianBase, Lock, LockedWheel, OciBase
from builder.plan import Config, CopyFile, InstallWheels, Plan, Symlink, Venv, WriteFile, make_plan
from builder.recipe import load_recipe

WHEEL = LockedWheel(
    name="numpy", version="2.3.4", url="https://files.example/n.whl", sha256="a" * 64, size=1
)
LOCK = Lock(
    name="demo",
    target="gb10",
    platform="linux/arm64",
    python="3.13",
    interpreter="/usr/bin/python3.13",
    glibc="2.41",
    base=DebianBase(suite="trixie", debs=()),
    wheels=(WHEEL,),
    inputs={},
)
RECIPE = """\
name: demo
description: a demo
target: gb10
base: {debian: {suite: trixie, packages: [python3]}}
packages: [numpy]
env: {HF_HOME: /data, NVIDIA_VISIBLE_DEVICES: none}
labels: {org.example.team: ours, spark-build.target: mine}
files: [{from: a.py, to: /opt/app/a.py}, {from: run.sh, to: /opt/app/run, mode: 0755}]
entrypoint: [python, /opt/app/a.py]
cmd: [--help]
workdir: /opt/app
user: 1000:1000
"""


def plan_of(folder: Path, text: str = RECIPE, lock: Lock = LOCK) -> Plan:
    for name in ("a.py", "run.sh"):
        (folder / name).touch()
    path = folder / "recipe.yaml"
    path.write_text(text)
    return make_plan(load_recipe(path).recipe, lock)


def test_the_environment_is_one_that_python_itself_would_make(tmp_path: Path) -> None:
    """PEP 405: a pyvenv.cfg with `home`, and a link to the interpreter."""
    plan = plan_of(tmp_path)
    assert plan.venv == Venv(prefix="/opt/venv", python="3.13", interpreter="/usr/bin/python3.13")
    assert plan.venv.site == "lib/python3.13/site-packages"
    assert plan.venv.executable == "/opt/venv/bin/python"
    text = "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.13\n"
    assert plan.builder == (
        WriteFile(path="/opt/venv/pyvenv.cfg", text=text),
        Symlink(path="/opt/venv/bin/python", target="/usr/bin/python3.13"),
        Symlink(path="/opt/venv/bin/python3", target="python"),
        Symlink(path="/opt/venv/bin/python3.13", target="python"),
        InstallWheels(wheels=(WHEEL,), lock_filename="pylock.demo-gb10.toml"),
    )


def test_files_come_last_under_names_that_cannot_clash(tmp_path: Path) -> None:
    assert plan_of(tmp_path).runtime == (
        CopyFile(source="a.py", name="files/0", path="/opt/app/a.py"),
        CopyFile(source="run.sh", name="files/1", path="/opt/app/run", mode=0o755),
    )


def test_the_settings_are_the_recipes_with_what_a_gpu_image_needs(tmp_path: Path) -> None:
    config = plan_of(tmp_path).config
    assert config == Config(
        env={
            "NVIDIA_VISIBLE_DEVICES": "none",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "VIRTUAL_ENV": "/opt/venv",
            "HF_HOME": "/data",
        },
        path="/opt/venv/bin",
        labels={
            "org.opencontainers.image.title": "demo",
            "org.opencontainers.image.description": "a demo",
            "spark-build.target": "mine",
            "spark-build.lock": LOCK.contents,
            "org.example.team": "ours",
        },
        entrypoint=("python", "/opt/app/a.py"),
        cmd=("--help",),
        workdir="/opt/app",
        user="1000:1000",
    )


def test_a_small_recipe_asks_for_nothing_more(tmp_path: Path) -> None:
    text = "name: demo\ntarget: gb10\nbase: {debian: {suite: trixie, packages: [python3]}}\n"
    plan = plan_of(tmp_path, text)
    assert plan.runtime == ()
    assert (plan.config.entrypoint, plan.config.cmd) == ((), ())
    assert (plan.config.workdir, plan.config.user) == (None, None)
    assert "org.opencontainers.image.description" not in plan.config.labels


def test_a_base_that_is_an_image_keeps_its_own_gpu_settings(tmp_path: Path) -> None:
    base = OciBase(path="base", digest="sha256:" + "a" * 64)
    lock = replace(LOCK, base=base, interpreter="/usr/local/bin/python3.13")
    text = RECIPE.replace("{debian: {suite: trixie, packages: [python3]}}", "{oci: base}")
    plan = plan_of(tmp_path, text.replace(", NVIDIA_VISIBLE_DEVICES: none", ""), lock)
    assert plan.base == base
    assert plan.config.env == {"VIRTUAL_ENV": "/opt/venv", "HF_HOME": "/data"}
    assert isinstance(plan.builder[0], WriteFile)
    assert plan.builder[0].text.startswith("home = /usr/local/bin\n")


@pytest.mark.parametrize("change", [{"glibc": "2.39"}, {"wheels": ()}])
def test_the_image_names_the_contents_that_it_was_made_of(
    tmp_path: Path, change: dict[str, object]
) -> None:
    other = replace(LOCK, **change)  # type: ignore[arg-type]  # one field each
    labels = [plan_of(tmp_path, lock=lock).config.labels for lock in (LOCK, other)]
    assert labels[0]["spark-build.lock"] != labels[1]["spark-build.lock"]


def test_a_plan_is_made_of_its_arguments_alone(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert plan_of(tmp_path) == plan_of(tmp_path / "x")
