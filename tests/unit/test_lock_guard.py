"""What of a base is held in place, what a resolution is told of the rest, and what a guard says."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from packaging.utils import canonicalize_name

from builder.errors import LockError
from builder.lock.base.inventory import Distribution, Inventory
from builder.lock.guard import base_guard, protected, stubs_of, wheel_guard
from builder.lock.model import Guard, LockedWheel, Shadow
from builder.lock.stubs import Stub
from builder.resources import package_file

TORCH = "2.10.0a0+b558c986e8.nv25.11"
SITE = "/usr/local/lib/python3.12/dist-packages"


def held(name: str, version: str = "1.0", *requires: str, **more: Any) -> Distribution:
    return Distribution(name=name, version=version, folder=SITE, requires=requires, **more)


def base(*distributions: Distribution, **more: Any) -> Inventory:
    return Inventory(
        **{
            "python": "3.12",
            "interpreter": "/usr/bin/python3.12",
            "glibc": "2.39",
            "distributions": distributions,
            **more,
        }
    )


def stub(inventory: Inventory, name: str = "demo") -> Stub:
    [found] = [entry for entry in stubs_of(inventory, "linux/arm64") if entry.name == name]
    return found


def test_torchs_abi_set_is_told_by_name_and_by_what_links_it() -> None:
    inventory = base(
        held("apex", "0.1", links_torch=True),
        held("nvidia-cudnn-cu13", "9.0"),
        held("nvidia-ml-py", "13.0"),
        held("numpy", "1.26.4"),
        held("torch", TORCH),
        held("torchmetrics", "1.0"),
        held("torchvision", "0.25.0a0+nv25.11"),
    )
    assert protected(inventory) == {
        "apex": "0.1",
        "nvidia-cudnn-cu13": "9.0",
        "torch": TORCH,
        "torchvision": "0.25.0a0+nv25.11",
    }


def test_without_torch_nothing_is_held() -> None:
    assert protected(base(held("triton", "3.5.0"), held("numpy"))) == {}


def test_two_torches_on_the_path_are_refused() -> None:
    paths = ("/usr/local/a/torch-1.dist-info", "/usr/lib/b/torch-2.dist-info")
    with pytest.raises(LockError, match="more than one torch") as caught:
        protected(base(held("torch", "1"), torches=paths))
    assert all(path in caught.value.message for path in paths)


def test_a_protected_version_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(LockError, match="the base's apex has the version 'nightly'"):
        protected(base(held("torch", TORCH), held("apex", "nightly", links_torch=True)))


def test_another_version_that_cannot_be_compared_gets_no_stub() -> None:
    inventory = base(held("torch", TORCH), held("odd", "1.0-dirty-x"), held("demo"))
    assert [entry.name for entry in stubs_of(inventory, "linux/arm64")] == ["demo", "torch"]


def test_the_protected_ones_are_pinned_and_the_others_not() -> None:
    inventory = base(held("torch", TORCH, "demo"), held("demo"))
    assert stubs_of(inventory, "linux/arm64") == (
        Stub(name="demo", version="1.0", pinned=False),
        Stub(name="torch", version=TORCH, requires=("demo",), pinned=True),
    )


def test_a_base_without_python_has_no_stubs() -> None:
    assert stubs_of(base(python=None, interpreter=None), "linux/arm64") == ()


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("numpy", "numpy"),
        ("NumPy >=1.20, <2", "NumPy<2,>=1.20"),
        ("numpy>=2", None),  # the base itself does not meet it
        ("absent", None),
        ("numpy[all]>=1", "numpy>=1"),
        ("pre>=2.9", "pre>=2.9"),  # a pre-release counts, as for pip and uv
        ("pre>=2.10", None),
        ("numpy; sys_platform == 'linux'", "numpy"),
        ("numpy; platform_machine == 'x86_64'", None),
        ("numpy>=2; python_version < '3.12'", None),
        ("numpy @ file:///build/numpy.whl", "numpy"),
        ("absent @ https://w.example/absent.whl", None),
        ("odd", None),  # its version cannot be compared
        ("not a requirement at all !", None),
        ("absent>=3; extra == 'more'", 'absent>=3; extra == "more"'),
        ("absent @ https://w.example/a.whl ; extra == 'more'", None),
    ],
)
def test_only_what_the_base_meets_counts_of_its_requirements(line: str, kept: str | None) -> None:
    inventory = base(
        held("demo", "1.0", line), held("numpy", "1.26.4"), held("pre", TORCH), held("odd", "x y")
    )
    assert stub(inventory).requires == (() if kept is None else (kept,))


@pytest.mark.parametrize(
    ("specifier", "met"),
    [
        *((text, True) for text in ("", ">=2.8", ">2.9", "~=2.9", "==2.10.*", "<2.11,>=2.8")),
        *((text, True) for text in ("<=2.10.0", ">=2.10.0a0", "==2.10.0a0", "!=2.9.0")),
        *((text, False) for text in (">=2.10", "==2.10.0", "~=2.10.0", "<2.10", "==2.9.1")),
        (">2.10.0a0", False),
    ],
)
def test_a_snapshot_of_torch_meets_what_pip_and_uv_say_it_does(
    specifier: str, *, met: bool
) -> None:
    inventory = base(held("demo", "1.0", f"torch{specifier}"), held("torch", TORCH))
    assert bool(stub(inventory).requires) == met


def test_a_build_of_triton_by_another_name_stands_for_triton() -> None:
    inventory = base(held("torch", TORCH), held("pytorch-triton", "3.4.0+gitc817b9b6"))
    assert stub(inventory, "triton") == Stub(
        name="triton", version="3.4.0+gitc817b9b6", pinned=True
    )
    both = base(held("torch", TORCH), held("pytorch-triton", "3.4.0"), held("triton", "3.5.0"))
    assert stub(both, "triton").version == "3.5.0"
    assert "triton" not in protected(inventory)


def wheel(name: str, version: str) -> LockedWheel:
    return LockedWheel(name=name, version=version, url="https://w.example/w", sha256="a", size=1)


def test_the_guard_of_a_bases_torch() -> None:
    inventory = base(
        held("numpy", "1.26.4"),
        held("rich", "13.0", scripts={"rich": "rich:main"}),
        held("torch", TORCH, scripts={"torchrun": "torch.distributed.run:main"}),
        constraints=("numpy==1.26.4", "torch==2.10.0a0", "Rich<14", "scipy<2", "what is this?"),
    )
    guard = base_guard(inventory, [wheel("numpy", "2.5.5"), wheel("scipy", "2.1")], ["accepted"])
    assert guard == Guard(
        packages={"torch": TORCH},
        constraints=("Rich<14",),
        scripts={"torchrun": "torch.distributed.run:main"},
        shadows=(Shadow(name="numpy", base="1.26.4", version="2.5.5"),),
        accepted=("accepted",),
    )


def test_the_guard_of_a_wheels_torch() -> None:
    wheels = [
        wheel("numpy", "2.5.5"),
        wheel("nvidia-cublas", "13.1"),
        wheel("nvidia-ml-py", "13.0"),
        wheel("torch", "2.11.0"),
        wheel("triton", "3.6.0"),
    ]
    assert wheel_guard(wheels) == Guard(
        packages={"nvidia-cublas": "13.1", "torch": "2.11.0", "triton": "3.6.0"}
    )
    assert wheel_guard([entry for entry in wheels if entry.name != "torch"]) == Guard()


def test_names_in_the_law_are_normalised_and_come_once() -> None:
    law = yaml.safe_load(package_file("guard.yaml").read_text())
    names = [entry["name"] for part in law.values() for entry in part]
    assert len(names) == len(set(names))
    assert names == [canonicalize_name(name) for name in names]
    assert all(entry["source"].startswith("https://") for part in law.values() for entry in part)


def test_a_constraint_with_a_url_is_not_taken_over() -> None:
    """Pip would fetch from there, with the container's own variables in the URL."""
    lines = ("numpy<2", "x @ https://index.example/${TOKEN}/x.whl", "--index-url https://e.example")
    assert base_guard(base(held("torch", TORCH), constraints=lines), (), ()).constraints == (
        "numpy<2",
    )
