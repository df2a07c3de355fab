"""Plans: every decision about an image, as values, out of a recipe and its lock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder import guard
from builder.errors import LockError, UsageError
from builder.lock.model import (
    DebianBase,
    Guard,
    Lock,
    LockedGit,
    LockedWheel,
    OciBase,
    TorchIdentity,
)
from builder.plan import Config, CopyFile, InstallWheels, Plan, Symlink, Venv, WriteFile, make_plan
from builder.recipe import load_recipe
from tests.builders import demo_lock

WHEEL = LockedWheel(
    name="numpy", version="2.3.4", url="https://files.example/n.whl", sha256="a" * 64, size=1
)
LOCK = demo_lock(WHEEL, base=DebianBase(suite="trixie", debs=()))
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


# ── torch ────────────────────────────────────────────────────────────────────────────────────────

TORCH = TorchIdentity(origin="wheel", version="2.13.0", module="2.13.0+cu130", cuda="13.0")
OF_BASE = replace(
    LOCK,
    torch=replace(TORCH, origin="base", folder="/usr/lib/python3/dist-packages/torch"),
    guard=Guard(packages={"torch": "2.13.0"}, scripts={"torchrun": "torch.distributed.run:main"}),
)


def written(plan: Plan) -> dict[str, WriteFile]:
    steps = (*plan.builder, *plan.runtime)
    return {step.path: step for step in steps if isinstance(step, WriteFile)}


def test_only_the_bases_torch_is_seen_through_the_environment(tmp_path: Path) -> None:
    for lock, seen in ((LOCK, False), (replace(LOCK, torch=TORCH), False), (OF_BASE, True)):
        plan = plan_of(tmp_path, lock=lock)
        text = written(plan)["/opt/venv/pyvenv.cfg"].text
        assert plan.venv.system_site is seen
        assert f"include-system-site-packages = {str(seen).lower()}\n" in text


def test_the_bases_programs_run_in_the_environment(tmp_path: Path) -> None:
    script = written(plan_of(tmp_path, lock=OF_BASE))["/opt/venv/bin/torchrun"]
    assert script.mode == 0o755
    assert script.text.startswith("#!/opt/venv/bin/python\n")
    assert "from torch.distributed.run import main\n" in script.text
    assert script.text.endswith("    sys.exit(main())\n")


@pytest.mark.parametrize(
    "scripts",
    [
        *(
            {name: "a:b"}
            for name in ("../python", "", "python", "python3.12", "$(x)", "a\nb", "-x")
        ),
        *({"x": reference} for reference in ("a", "a:b; import os")),
    ],
)
def test_a_lock_cannot_write_just_any_program(tmp_path: Path, scripts: dict[str, str]) -> None:
    lock = replace(OF_BASE, guard=Guard(scripts=scripts))
    with pytest.raises(LockError, match=r"guard\.scripts: entry point"):
        plan_of(tmp_path, lock=lock)


@pytest.mark.parametrize("lock", [replace(LOCK, torch=TORCH), OF_BASE], ids=["wheel", "base"])
def test_what_keeps_torch_is_in_the_image(tmp_path: Path, lock: Lock) -> None:
    plan = plan_of(tmp_path, lock=lock)
    assert {file.path for file in guard.guard_files(lock)} < written(plan).keys()
    assert plan.config.path == "/opt/spark-build/bin:/opt/venv/bin"
    assert guard.guard_environment(lock).items() < plan.config.env.items()
    links = (step for step in plan.builder if isinstance(step, Symlink))
    programs = [step for step in links if step.path.startswith(guard.BIN)]
    assert [step.path.rpartition("/")[2] for step in programs] == ["pip", "pip3", "pip3.13", "uv"]
    assert {step.target for step in programs} == {"/opt/spark-build/guard/wrapper"}


@pytest.mark.parametrize("lock", [LOCK, OF_BASE], ids=["plain", "guarded"])
def test_the_builder_stage_leaves_nothing_outside_of_what_is_kept(
    tmp_path: Path, lock: Lock
) -> None:
    plan = plan_of(tmp_path, lock=lock)
    paths = [step.path for step in plan.builder if not isinstance(step, InstallWheels)]
    assert plan.kept[0] == plan.venv.prefix
    assert all(path.startswith(tuple(f"{folder}/" for folder in plan.kept)) for path in paths)
    outside = [step.path for step in plan.runtime if isinstance(step, WriteFile)]
    assert outside == (["/etc/uv/uv.toml"] if lock.torch else [])


@pytest.mark.parametrize("name", ["PIP_CONSTRAINT", "UV_EXCLUDE", "UV_SYSTEM_PYTHON"])
def test_a_recipe_cannot_undo_what_keeps_torch(tmp_path: Path, name: str) -> None:
    text = RECIPE.replace("HF_HOME", name)
    with pytest.raises(UsageError, match=rf"recipe demo: env\.{name}: is set by spark-build"):
        plan_of(tmp_path, text, OF_BASE)
    assert plan_of(tmp_path, text).config.env[name] == "/data"


def test_packages_that_must_be_compiled_are_told(tmp_path: Path) -> None:
    git = LockedGit(name="vllm", url="https://git.example/vllm", ref="v1", commit="c" * 40)
    assert plan_of(tmp_path, lock=replace(LOCK, gits=(git,))).compiled == (git,)
