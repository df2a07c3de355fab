"""Every step, path, environment variable and file of an image, decided here and nowhere else.

The templates and the assembler only lay out what a Plan says, so they agree by construction.
Pure: nothing is read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from builder.lock.model import DebianBase, LockedWheel, OciBase


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
    base: DebianBase | OciBase
    venv: Venv
    builder: tuple[Step, ...]
    runtime: tuple[Step, ...]
    config: Config
