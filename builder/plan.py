"""Every step, path, environment variable and file of an image, decided here and nowhere else.

The templates and the assembler only lay out what a Plan says, so they agree by construction.
Pure: nothing is read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from builder.lock.model import Base, DebianBase, Lock, LockedWheel
from builder.recipe import Recipe


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

    `python` is X.Y, `interpreter` the base's absolute path, `site` relative to `prefix`.
    """

    prefix: str
    python: str
    interpreter: str

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

    Everything that the builder stage leaves in the image lies under `venv.prefix`.
    `platform` is `linux/arm64` or `linux/amd64`.
    """

    name: str
    target: str
    platform: str
    base: Base
    venv: Venv
    builder: tuple[Step, ...]
    runtime: tuple[Step, ...]
    config: Config


DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of a base whose config sets none (as container engines have it)."""

PREFIX = "/opt/venv"
"""Where the environment lies in every image."""

_VISIBLE = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
"""What NVIDIA's own CUDA images set; without it the container runtime hands in no GPU."""


def make_plan(recipe: Recipe, lock: Lock) -> Plan:
    """The image that `recipe` asks for, out of what `lock` holds."""
    venv = Venv(prefix=PREFIX, python=lock.python, interpreter=lock.interpreter)
    install = InstallWheels(wheels=lock.wheels, lock_filename=lock.filename)
    return Plan(
        name=recipe.name,
        target=lock.target,
        platform=lock.platform,
        base=lock.base,
        venv=venv,
        builder=(*_venv_steps(venv), install),
        runtime=_file_steps(recipe),
        config=_config(recipe, lock),
    )


def _venv_steps(venv: Venv) -> tuple[Step, ...]:
    """A virtual environment without running anything: PEP 405 asks for one file and one link."""
    home = venv.interpreter.rpartition("/")[0]
    settings = f"home = {home}\ninclude-system-site-packages = false\nversion = {venv.python}\n"
    return (
        WriteFile(path=f"{venv.prefix}/pyvenv.cfg", text=settings),
        Symlink(path=f"{venv.prefix}/bin/python", target=venv.interpreter),
        Symlink(path=f"{venv.prefix}/bin/python3", target="python"),
        Symlink(path=f"{venv.prefix}/bin/python{venv.python}", target="python"),
    )


def _file_steps(recipe: Recipe) -> tuple[Step, ...]:
    return tuple(
        CopyFile(source=file.source, name=f"files/{number}", path=file.to, mode=file.mode)
        for number, file in enumerate(recipe.files)
    )


def _config(recipe: Recipe, lock: Lock) -> Config:
    """The recipe's settings; a base that is no image of NVIDIA's gets what one would set."""
    visible = _VISIBLE if isinstance(lock.base, DebianBase) else {}
    return Config(
        env={**visible, "VIRTUAL_ENV": PREFIX, **recipe.env},
        path=f"{PREFIX}/bin",
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
        "spark-build.target": lock.target,
        "spark-build.lock": lock.contents,
        **recipe.labels,
    }
