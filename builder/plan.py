"""Every step, path, environment variable and file of an image, decided here and nowhere else.

The templates and the assembler only lay out what a Plan says, so they agree by construction.
Pure: nothing is read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from builder import guard
from builder.errors import LockError, UsageError
from builder.lock.base.metadata import is_script_name
from builder.lock.model import Base, DebianBase, Lock, LockedGit, LockedWheel
from builder.recipe import Recipe

PREFIX = "/opt/venv"
"""Where the environment lies in every image."""

TARGET_LABEL = "spark-build.target"
"""The label that says which target an image is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """A text file of ours at the absolute `path`."""

    path: str
    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Symlink:
    """A symbolic link at the absolute `path`."""

    path: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFile:
    """A file of the user's: `source` as the recipe spells it, `name` in the build context."""

    source: str
    name: str
    path: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallWheels:
    """The lock's wheels into the venv, exactly these and no others."""

    wheels: tuple[LockedWheel, ...]
    lock_filename: str


Step = WriteFile | Symlink | CopyFile | InstallWheels


@dataclass(frozen=True, slots=True, kw_only=True)
class Venv:
    """Where the wheels go: a virtual environment (PEP 405) over the base's own Python.

    `python` is X.Y, `interpreter` the base's absolute path, `site` relative to `prefix`. With
    `system_site` Python sees what the base has as well, below what is in the environment.
    """

    prefix: str
    python: str
    interpreter: str
    system_site: bool = False

    @property
    def site(self) -> str:
        """site-packages below `prefix`, for pure and platform wheels alike."""
        return f"lib/python{self.python}/site-packages"

    @property
    def executable(self) -> str:
        """What console scripts name in their first line."""
        return f"{self.prefix}/bin/python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The image's own settings (OCI image-spec, config.md); `env` comes on top of the base's.

    `path` is put before the base's PATH. `user` and `workdir` are None where the base's stay.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    path: str
    labels: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    workdir: str | None = None
    user: str | None = None
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One image, whole: `builder` steps run in the stage with tools, `runtime` in the final one.

    Everything that the builder stage leaves in the image lies under one of `kept`, of which
    `venv.prefix` is the first. `platform` is `linux/arm64` or `linux/amd64`. `compiled` are
    packages that no step of these makes: they need one that runs inside the image.
    """

    name: str
    target: str
    platform: str
    base: Base
    venv: Venv
    builder: tuple[Step, ...]
    runtime: tuple[Step, ...]
    config: Config
    kept: tuple[str, ...] = (PREFIX,)
    compiled: tuple[LockedGit, ...] = ()


DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of a base whose config sets none (as container engines have it)."""

_SCRIPT = """\
#!{python}
# -*- coding: utf-8 -*-
import sys
from {module} import {first}
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit({function}())
"""
_VISIBLE = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
"""What NVIDIA's own CUDA images set; without it the container runtime hands in no GPU."""


def make_plan(recipe: Recipe, lock: Lock) -> Plan:
    """The image that `recipe` asks for, out of what `lock` holds.

    Raises UsageError where the recipe undoes what keeps torch, LockError where a text of the lock
    cannot stand in a file of the image.
    """
    venv = Venv(
        prefix=PREFIX,
        python=lock.python,
        interpreter=lock.interpreter,
        system_site=lock.uses_base_torch,
    )
    install = InstallWheels(wheels=lock.wheels, lock_filename=lock.filename)
    kept = (guard.FOLDER, guard.BIN) if lock.torch is not None else ()
    inside, outside = _guard_steps(lock, (PREFIX, *kept))
    return Plan(
        name=recipe.name,
        target=lock.target,
        platform=lock.platform,
        base=lock.base,
        venv=venv,
        builder=(*_venv_steps(venv), install, *_script_steps(venv, lock.guard.scripts), *inside),
        runtime=(*outside, *_file_steps(recipe)),
        config=_config(recipe, lock),
        kept=(PREFIX, *kept),
        compiled=lock.gits,
    )


def _venv_steps(venv: Venv) -> tuple[Step, ...]:
    """A virtual environment without running anything: PEP 405 asks for one file and one link."""
    home = venv.interpreter.rpartition("/")[0]
    system_site = "true" if venv.system_site else "false"
    settings = (
        f"home = {home}\ninclude-system-site-packages = {system_site}\nversion = {venv.python}\n"
    )
    return (
        WriteFile(path=f"{venv.prefix}/pyvenv.cfg", text=settings),
        Symlink(path=f"{venv.prefix}/bin/python", target=venv.interpreter),
        Symlink(path=f"{venv.prefix}/bin/python3", target="python"),
        Symlink(path=f"{venv.prefix}/bin/python{venv.python}", target="python"),
    )


def console_script(venv: Venv, name: str, reference: str) -> str:
    """The text of the script `name` that calls `reference` (`module:function`), as uv writes it.

    The function's own extras are left out (entry points specification, "Data model"). ValueError
    where one of the two is not valid.
    """
    module, _, function = reference.partition("[")[0].strip().partition(":")
    module, function = module.strip(), function.strip()
    dotted = [*module.split("."), *function.split(".")]
    if "/" in name or name in ("", ".", "..") or not all(part.isidentifier() for part in dotted):
        raise ValueError(f"entry point {name!r} = {reference!r} is not valid")
    first = function.partition(".")[0]
    return _SCRIPT.format(python=venv.executable, module=module, first=first, function=function)


def _script_steps(venv: Venv, scripts: Mapping[str, str]) -> tuple[Step, ...]:
    """The guarded packages' programs again: the base's own run its Python, not the environment's.

    So `torchrun` sees what is installed here.
    """
    for name in scripts:
        if not is_script_name(name):
            raise LockError(f"guard.scripts: entry point {name!r} is not valid")
    try:
        return tuple(
            WriteFile(
                path=f"{venv.prefix}/bin/{name}",
                text=console_script(venv, name, reference),
                mode=0o755,
            )
            for name, reference in scripts.items()
        )
    except ValueError as error:
        raise LockError(f"guard.scripts: {error}") from None


def _guard_steps(lock: Lock, kept: tuple[str, ...]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """What keeps torch at run time: its files below `kept`, and those elsewhere."""
    files = [
        WriteFile(path=file.path, text=file.text, mode=file.mode)
        for file in guard.guard_files(lock)
    ]
    links = [
        Symlink(path=f"{guard.BIN}/{name}", target=f"{guard.FOLDER}/wrapper")
        for name in guard.guard_programs(lock)
    ]
    inside = [file for file in files if file.path.startswith(tuple(f"{item}/" for item in kept))]
    return (*inside, *links), tuple(file for file in files if file not in inside)


def _file_steps(recipe: Recipe) -> tuple[Step, ...]:
    return tuple(
        CopyFile(source=file.source, name=f"files/{number}", path=file.to, mode=file.mode)
        for number, file in enumerate(recipe.files)
    )


def _config(recipe: Recipe, lock: Lock) -> Config:
    """The recipe's settings; a base that is no image of NVIDIA's gets what one would set."""
    visible = _VISIBLE if isinstance(lock.base, DebianBase) else {}
    keeping = guard.guard_environment(lock)
    for name in recipe.env:
        if name in keeping:
            raise UsageError(
                f"recipe {recipe.name}: env.{name}: is set by spark-build, to keep torch",
                hint="leave it out; `resolve` has constraints and overrides for the lock",
            )
    return Config(
        env={**visible, "VIRTUAL_ENV": PREFIX, **keeping, **recipe.env},
        path=f"{guard.BIN}:{PREFIX}/bin" if keeping else f"{PREFIX}/bin",
        labels=_labels(recipe, lock),
        entrypoint=recipe.entrypoint,
        cmd=recipe.cmd,
        workdir=recipe.workdir,
        user=recipe.user,
    )


def _labels(recipe: Recipe, lock: Lock) -> dict[str, str]:
    """Pre-defined annotation keys (OCI annotations.md), where the image came from, the recipe's."""
    described = {"org.opencontainers.image.description": recipe.description}
    return {
        "org.opencontainers.image.title": recipe.name,
        **{key: value for key, value in described.items() if value},
        TARGET_LABEL: lock.target,
        "spark-build.lock": lock.contents,
        **recipe.labels,
    }
