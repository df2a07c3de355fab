"""Which torch a lock has: told from the wheel, and held to what the recipe says."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from builder.errors import LockError
from builder.http import Http
from builder.lock.base.inventory import Inventory
from builder.lock.model import LockedWheel, TorchIdentity
from builder.lock.store import Store
from builder.lock.torch import check_index, find_torch, refuse_second_torch, wheel_identity
from tests.builders import FileServer, WheelText, locked

HELD = TorchIdentity(
    origin="base", version="2.10.0a0+b558c986e8.nv25.11", folder="/usr/lib/python3/torch"
)


def torch_wheel(text: str, version: str = "2.11.0") -> WheelText:
    return WheelText(name="torch", version=version, files={"torch/version.py": text.encode()})


def identify(wheel: WheelText, cache: Path) -> TorchIdentity:
    server = FileServer({f"/packages/{wheel.filename}": wheel.zipped()})
    with Http({}, transport=httpx.MockTransport(server)) as http:
        return wheel_identity(locked(wheel), http, Store(cache), cache=cache)


@pytest.mark.parametrize(("cuda", "found"), [("'13.0'", "13.0"), ("None", None)])
def test_a_wheel_says_which_torch_it_is(tmp_path: Path, cuda: str, found: str | None) -> None:
    """The index calls torch 2.11.0 what calls itself 2.11.0+cu130."""
    text = (
        f"__version__ = '2.11.0+cu130'\nfrom typing import Optional\ncuda: Optional[str] = {cuda}\n"
    )
    assert identify(torch_wheel(text), tmp_path) == TorchIdentity(
        origin="wheel", version="2.11.0", module="2.11.0+cu130", cuda=found
    )


def test_a_torch_that_says_nothing_is_refused_by_its_file(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"torch-2\.11\.0-py3-none-any\.whl: torch/version\.py"):
        identify(torch_wheel("__version__ = compute()"), tmp_path)


def identity(cuda: str | None) -> TorchIdentity:
    return TorchIdentity(origin="wheel", version="2.11.0", module="2.11.0+x", cuda=cuda)


@pytest.mark.parametrize(
    ("index", "cuda"),
    [
        ("cu130", "13.0"),
        ("cu126", "12.6"),
        ("cpu", None),
        ("ours", "12.6"),
        ("ours", None),
        (None, None),
        (None, "13.2"),
    ],
)
def test_a_torch_of_the_cuda_that_the_index_means_passes(
    index: str | None, cuda: str | None
) -> None:
    check_index(identity(cuda), index)


@pytest.mark.parametrize(
    ("index", "cuda", "meant", "found"),
    [
        ("cu130", "12.9", "for CUDA 13.0", "for CUDA 12.9"),
        ("cu130", None, "for CUDA 13.0", "without CUDA"),
        ("cpu", "13.0", "without CUDA", "for CUDA 13.0"),
    ],
)
def test_a_torch_of_another_cuda_is_refused(
    index: str, cuda: str | None, meant: str, found: str
) -> None:
    with pytest.raises(LockError) as caught:
        check_index(identity(cuda), index)
    assert caught.value.message == (
        f"torch.index: {index} means a build {meant}, and torch 2.11.0+x is a build {found}"
    )


def wheel(name: str, version: str) -> LockedWheel:
    return LockedWheel(name=name, version=version, url="https://w.example/w", sha256="a", size=1)


def test_there_is_one_torch_or_none() -> None:
    one, two = wheel("torch", "2.11.0"), wheel("torch", "2.10.0")
    assert find_torch([wheel("numpy", "2.0")]) is None
    assert find_torch([wheel("numpy", "2.0"), one]) == one
    with pytest.raises(LockError, match=r"more than one torch: 2\.11\.0 and 2\.10\.0"):
        find_torch([one, two])


def test_a_wheels_torch_on_a_base_with_torch_is_refused() -> None:
    base = Inventory(python="3.12", interpreter="/usr/bin/python3.12", glibc="2.39", torch=HELD)
    with pytest.raises(LockError) as caught:
        refuse_second_torch(base, [wheel("torch", "2.11.0")])
    assert caught.value.message.startswith("wheel torch on a base with torch is refused: ")
    assert "2.10.0a0+b558c986e8.nv25.11 in /usr/lib/python3/torch" in caught.value.message
    assert "{from: base}" in (caught.value.hint or "")


def test_one_torch_is_fine_wherever_it_is() -> None:
    bare = Inventory(python="3.12", interpreter="/usr/bin/python3.12", glibc="2.39")
    held = Inventory(python="3.12", interpreter="/usr/bin/python3.12", glibc="2.39", torch=HELD)
    refuse_second_torch(None, [wheel("torch", "2.11.0")])
    refuse_second_torch(bare, [wheel("torch", "2.11.0")])
    refuse_second_torch(held, [wheel("numpy", "2.0")])
