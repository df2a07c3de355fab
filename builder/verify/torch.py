"""Whether torch, and what belongs to it, is still what the image was built with.

Torch's identity is what the lock says of it; for a base's own the digest over its files is
computed anew from the image's layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder import guard
from builder.audit.policy import Policy
from builder.errors import Finding
from builder.lock.base.inventory import Inventory, image_environment
from builder.lock.model import Lock, TorchIdentity
from builder.verify.distributions import Distribution, same_version
from builder.verify.tree import Tree

_Said = Iterator[tuple[str, str]]
"""Subjects and messages."""


def judge_torch(
    policy: Policy,
    tree: Tree,
    own: Sequence[Distribution],
    lock: Lock,
    *,
    inventory: Inventory | None,
    site: str,
) -> Iterator[Finding]:
    """Findings of `torch-replaced`; none for a lock without torch.

    `own` are the distributions of the virtual environment, whose package folder is `site`;
    `inventory` is of the whole image, and needed where torch is the base's.
    """
    torch = lock.torch
    if torch is None:
        return
    packages = guard.guarded_packages(lock)
    if torch.origin == "wheel":
        said = _judge_environment(packages, own)
    else:
        said = _judge_shadows(packages, tree, own, site)
    for subject, message in said:
        yield policy.finding("torch-replaced", subject, message, {})
    if torch.origin == "base" and inventory is not None:
        for subject, message in (
            *_judge_base_torch(torch, inventory),
            *_judge_base_packages(packages, inventory),
        ):
            yield policy.finding("torch-replaced", subject, message, {})


def judge_guard(
    policy: Policy, tree: Tree, config: Mapping[str, Any], lock: Lock, prefix: str
) -> Iterator[Finding]:
    """Findings of `guard-removed`: settings and files that installs in a container obey."""
    found = image_environment(config)
    wanted = guard.guard_environment(lock)
    settings = [name for name, value in wanted.items() if found.get(name) != value]
    path = found.get("PATH", "").split(":")
    if wanted and f"{prefix}/bin" in path[: path.index(guard.BIN) if guard.BIN in path else None]:
        settings.append("PATH")
    files = [file.path for file in guard.guard_files(lock) if tree.find(file.path) is None]
    if settings:
        message = f"the image's {', '.join(settings)} no longer lead to what keeps torch"
        yield policy.finding("guard-removed", settings[0], message, {"settings": settings})
    if files:
        message = f"{', '.join(files)}: gone, and with it what keeps torch"
        yield policy.finding("guard-removed", files[0], message, {"files": files})


def _judge_environment(packages: Mapping[str, str], own: Sequence[Distribution]) -> _Said:
    """Torch from wheels: the environment has each guarded package once, as it was locked."""
    for name, version in packages.items():
        found = [item for item in own if item.name == name]
        if len(found) != 1 or not same_version(found[0].version, version):
            has = ", ".join(item.version for item in found) or "none"
            yield f"{name} {version}", f"{name}: the lock has {version}, the image has {has}"


def _judge_shadows(
    packages: Mapping[str, str], tree: Tree, own: Sequence[Distribution], site: str
) -> _Said:
    """Torch of the base: what lies in the environment would be taken in its place."""
    shadows = [item for item in own if item.name in packages]
    for item in shadows:
        yield item.label, f"{item.path} is taken in place of the base's {item.name}"
    if tree.find(f"{site}/torch") is not None and "torch" not in {item.name for item in shadows}:
        yield "torch", f"{site}/torch is taken in place of the base's torch"


def _judge_base_torch(torch: TorchIdentity, inventory: Inventory) -> _Said:
    label, found = f"torch {torch.version}", inventory.torch
    if found is None:
        yield label, f"{label} of the base is gone from {torch.folder}"
    elif (found.folder, found.version) != (torch.folder, torch.version):
        yield label, f"{label} was in {torch.folder}, now {found.version} is in {found.folder}"
    elif found.sha256 != torch.sha256:
        yield label, f"{torch.folder}: files of the base's torch were changed, added or removed"
    if len(inventory.torches) > 1:
        yield label, f"the image has more than one torch: {', '.join(inventory.torches)}"


def _judge_base_packages(packages: Mapping[str, str], inventory: Inventory) -> _Said:
    found = {item.name: item.version for item in inventory.distributions}
    for name, version in packages.items():
        if name != "torch" and not same_version(found.get(name, "none"), version):
            has = found.get(name, "none")
            yield f"{name} {version}", f"{name}: the base had {version}, the image has {has}"
