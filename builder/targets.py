"""The GPU targets that a recipe can name, out of `targets.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from builder.document import Flaw, Refused, nearest, read_document, validate
from builder.errors import UsageError
from builder.resources import package_file

Platform = Literal["linux/arm64", "linux/amd64"]

_MACHINES: Mapping[Platform, str] = {"linux/arm64": "aarch64", "linux/amd64": "x86_64"}
_SOURCED = ("sm", "codes", "cuda", "driver", "memory", "torch_arch")


class Cuda(BaseModel):
    """`major` is the CUDA of the images, `since` (major.minor) the first that knows the chip."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    major: int
    since: Annotated[str, Field(pattern=r"^\d+\.\d+$")]


class Target(BaseModel):
    """One row of `targets.yaml`; its head says what each column means."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    description: str
    platform: Platform
    sm: Annotated[str, Field(pattern=r"^sm_\d{2,3}$")]
    codes: tuple[Annotated[str, Field(pattern=r"^sm_\d{2,3}[af]?$")], ...]
    cuda: Cuda
    driver: Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")]
    memory: Literal["unified", "coherent", "discrete"]
    torch_arch: str
    sources: Mapping[str, str]

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        """A fact without its source is a guess, and a source of nothing is a leftover."""
        if set(self.sources) != set(_SOURCED):
            wanted = f"needs exactly the keys {', '.join(_SOURCED)}"
            raise Refused(Flaw(message=wanted, at=("sources",)))
        return self

    @property
    def machine(self) -> str:
        """What `uname -m` says there, which wheel tags use: `aarch64` or `x86_64`."""
        return _MACHINES[self.platform]

    @property
    def architecture(self) -> str:
        """Debian's and OCI's word: `arm64` or `amd64`."""
        return self.platform.removeprefix("linux/")

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability, (12, 1) for sm_121."""
        digits = self.sm.removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    targets: tuple[Target, ...]


@cache
def load_targets() -> Mapping[str, Target]:
    """Every target by name, in the file's order."""
    table = validate(_Table, read_document(package_file("targets.yaml")))
    return {target.name: target for target in table.targets}


def find_target(name: str) -> Target:
    """The target `name`; UsageError with the nearest name where there is none."""
    targets = load_targets()
    if name in targets:
        return targets[name]
    raise UsageError(f"no target is called {name!r}", hint=target_hint(name))


def target_hint(name: str) -> str:
    """What to write instead of the unknown target `name`."""
    meant = nearest(name, load_targets())
    known = f"the targets are {', '.join(load_targets())}"
    return f"did you mean `{meant}`? {known}" if meant else known
