"""Check an image without running it: is everything there that it needs, and nothing else?

    verify(image, ...)  facts of every layer, cached by digest, and one verdict over them

This is the static half. Whether the image works on a GPU it cannot say, so `device` is `pending`
in every report that it makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from builder.audit.judge import Allowed, count_findings
from builder.audit.policy import load_policy
from builder.context import Context
from builder.errors import Finding, Severity, worst
from builder.lock.base.inventory import Inventory, image_environment, take_inventory
from builder.lock.model import Lock
from builder.oci.image import Image
from builder.plan import PREFIX
from builder.progress import format_count
from builder.targets import find_target
from builder.verify.judge import Expected, judge
from builder.verify.loader import Loader
from builder.verify.static import read_layers
from builder.verify.tree import Tree

__all__ = ["VerifyReport", "verify"]

FORMAT = 1
"""The version of `VerifyReport.as_dict`; goes up when a key changes its meaning or goes away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What the static checks found.

    `driver_libraries` are those that only the NVIDIA driver brings; `unknown` are paths of ELF
    files that could not be read; `counts` are explained at `judge.Verdict`.
    """

    platform: str
    findings: tuple[Finding, ...]
    allowed: tuple[Allowed, ...]
    driver_libraries: tuple[str, ...]
    unknown: tuple[str, ...]
    counts: Mapping[str, int]
    device: Literal["pending"] = "pending"

    @property
    def passed(self) -> bool:
        """Whether the static checks found no error; this says nothing about the device."""
        return worst(self.findings) is not Severity.ERROR

    @property
    def summary(self) -> str:
        """One line: what was found, in how much, and that no GPU was asked."""
        found = count_findings(self.findings)
        counts = self.counts
        binaries = format_count(counts["elf"], "binary", "binaries")
        needed = format_count(counts["needed"], "library", "libraries")
        return (
            f"static: {found} in {binaries}, {needed} needed, "
            f"{counts['unmet']} unmet; device: {self.device}"
        )

    def as_dict(self) -> dict[str, object]:
        """The report as JSON-ready values.

        Top level: `format`, `platform`, `static` (`passed` or `failed`), `device` (`pending`),
        `findings`, `allowed`, `driver_libraries`, `unknown` and `counts`.
        """
        return {
            "format": FORMAT,
            "platform": self.platform,
            "static": "passed" if self.passed else "failed",
            "device": self.device,
            "findings": [finding.as_dict() for finding in self.findings],
            "allowed": [allowed.as_dict() for allowed in self.allowed],
            "driver_libraries": list(self.driver_libraries),
            "unknown": list(self.unknown),
            "counts": dict(self.counts),
        }


def verify(
    image: Image,
    *,
    context: Context,
    lock: Lock | None = None,
    cuda_major: int | None = None,
    exclude: Sequence[str] = (),
    prefix: str = PREFIX,
) -> VerifyReport:
    """Judge `image` by its layers.

    With a `lock` the distributions under `prefix` and torch are compared with it, and its target
    says which CUDA the image is for, unless `cuda_major` does. Raises ExternalError for a broken
    layer, LockError where an image whose torch is the base's has lost its glibc.
    """
    if cuda_major is None and lock is not None:
        cuda_major = find_target(lock.target).cuda.major
    policy = load_policy()
    platform = f"{image.platform.get('os')}/{image.platform.get('architecture')}"
    tree = Tree(read_layers(image.layers, context))
    defaults = policy.platform(platform).libraries
    loader = Loader(tree, search=_library_path(image.config), defaults=defaults)
    expected = Expected(
        platform=platform,
        prefix=prefix,
        cuda_major=cuda_major,
        lock=lock,
        exclude=exclude,
        inventory=_inventory(image, lock, context),
        config=image.config,
    )
    verdict = judge(tree, policy, loader, expected)
    return VerifyReport(
        platform=platform,
        findings=tuple(verdict.findings),
        allowed=tuple(verdict.allowed),
        driver_libraries=tuple(sorted(verdict.driver_libraries)),
        unknown=tuple(verdict.unknown),
        counts=dict(verdict.counts),
    )


def _inventory(image: Image, lock: Lock | None, context: Context) -> Inventory | None:
    """What the image has outside the environment, where the lock's torch is there."""
    if lock is None or not lock.uses_base_torch:
        return None
    return take_inventory(image, context.cache, context.progress)


def _library_path(config: Mapping[str, Any]) -> list[str]:
    """The folders of LD_LIBRARY_PATH in an image's config."""
    path = image_environment(config).get("LD_LIBRARY_PATH", "")
    return [folder for folder in path.split(":") if folder]
