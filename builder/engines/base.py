"""What every engine offers, and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from builder.errors import Finding
from builder.oci.image import Image
from builder.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that an engine made; `layout` is the OCI layout's folder.

    `layers_written` and `wheels_read` say how much of it had to be made: both are 0 where every
    layer was there already.
    """

    image: Image
    engine: str
    layout: Path
    layers_written: int
    wheels_read: int


class Engine(Protocol):
    """One way to build a Plan."""

    name: str

    def missing(self) -> Finding | None:
        """What the host lacks for this engine; None where it can run."""

    def check(self, plan: Plan) -> None:
        """Raise MissingError where `plan` has a step that this engine cannot do."""

    def build(self, plan: Plan, sources: Path, destination: Path) -> Built:
        """Build `plan` and leave an OCI layout at `destination`, whole or not at all.

        `sources` is the folder that the plan's CopyFile sources are relative to.
        """
