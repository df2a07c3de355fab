"""Which torch a lock has, where it is a wheel's: told from the wheel, held to the recipe's word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from builder.errors import LockError
from builder.http import Http
from builder.lock.base.inventory import Inventory
from builder.lock.base.torch_version import TORCH_VERSION_FILE, parse_torch_version
from builder.lock.members import read_member
from builder.lock.model import LockedWheel, TorchIdentity
from builder.lock.store import Store

_TORCH = "torch"
_VERSION_FILE = re.compile(re.escape(TORCH_VERSION_FILE))
_CUDA_INDEX = re.compile(r"cu(\d{2})(\d)")
_CPU_INDEX = "cpu"


def find_torch(wheels: Sequence[LockedWheel]) -> LockedWheel | None:
    """The torch among `wheels`; LockError where there are several."""
    found = [wheel for wheel in wheels if wheel.name == _TORCH]
    if len(found) > 1:
        versions = " and ".join(wheel.version for wheel in found)
        raise LockError(f"the lock holds more than one torch: {versions}")
    return found[0] if found else None


def wheel_identity(wheel: LockedWheel, http: Http, store: Store, *, cache: Path) -> TorchIdentity:
    """What the wheel's own `torch/version.py` says; kept under `cache`.

    Of a wheel that is not in the store a few kilobytes are read. Raises LockError where the file
    says nothing that can be read, ExternalError where it cannot be had.
    """
    data = read_member(wheel, _VERSION_FILE, http=http, store=store, cache=cache)
    try:
        said = parse_torch_version(data.decode("utf-8", "replace"))
    except LockError as error:
        raise LockError(f"{wheel.filename}: {error.message}") from None
    return TorchIdentity(origin="wheel", version=wheel.version, module=said.module, cuda=said.cuda)


def check_index(identity: TorchIdentity, index: str | None) -> None:
    """Hold a torch to the index that the recipe names: `cu130` means CUDA 13.0, `cpu` none.

    Raises LockError where it is of another CUDA. Of any other index, and of the default one,
    nothing is claimed; whether the target takes such a torch is the audit's to say.
    """
    match = _CUDA_INDEX.fullmatch(index or "")
    if match is None and index != _CPU_INDEX:
        return
    wanted = None if match is None else f"{int(match[1])}.{match[2]}"
    if identity.cuda == wanted:
        return
    raise LockError(
        f"torch.index: {index} means {_build(wanted)}, and torch {identity.module} is "
        f"{_build(identity.cuda)}",
        hint="name the index of the CUDA that is meant, or a version that it has",
    )


def refuse_second_torch(inventory: Inventory | None, wheels: Sequence[LockedWheel]) -> None:
    """LockError where `wheels` bring a torch onto a base that has one."""
    held = None if inventory is None else inventory.torch
    second = find_torch(wheels)
    if held is None or second is None:
        return
    raise LockError(
        f"wheel torch on a base with torch is refused: the base has {held.version} in "
        f"{held.folder}, the wheels bring {second.version}",
        hint="take a CUDA -base image, which has no torch, or write `torch: {from: base}`",
    )


def _build(cuda: str | None) -> str:
    return "a build without CUDA" if cuda is None else f"a build for CUDA {cuda}"
