"""Tags and markers of another machine, against the specifications and this machine's own."""

from __future__ import annotations

import platform
import sys

import pytest
from packaging.markers import Marker, default_environment
from packaging.tags import Tag, sys_tags

from builder.errors import LockError
from builder.lock.platforms import (
    MACHINES,
    marker_holds,
    markers,
    uv_platform,
    wheel_tags,
    wheel_version,
)


def names(tags: list[Tag]) -> list[str]:
    return [str(tag) for tag in tags]


def test_the_best_tag_comes_first() -> None:
    tags = names(wheel_tags("linux/arm64", "3.13", "2.19"))
    assert tags[:6] == [
        "cp313-cp313-manylinux_2_19_aarch64",
        "cp313-cp313-manylinux_2_18_aarch64",
        "cp313-cp313-manylinux_2_17_aarch64",
        "cp313-cp313-manylinux2014_aarch64",
        "cp313-cp313-linux_aarch64",
        "cp313-abi3-manylinux_2_19_aarch64",
    ]
    assert tags[-1] == "py30-none-any"
    assert len(tags) == len(set(tags))


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("cp313-cp313-manylinux_2_28_aarch64", True),
        ("cp313-cp313-manylinux_2_41_aarch64", True),
        ("cp313-cp313-manylinux_2_42_aarch64", False),
        ("cp313-cp313-manylinux_2_28_x86_64", False),
        ("cp312-cp312-manylinux_2_28_aarch64", False),
        ("cp313-cp313t-manylinux_2_28_aarch64", False),
        ("cp38-abi3-manylinux2014_aarch64", True),
        ("cp314-abi3-manylinux2014_aarch64", False),
        ("py3-none-manylinux2014_aarch64", True),
        ("py3-none-musllinux_1_2_aarch64", False),
        ("py3-none-any", True),
        ("py2-none-any", False),
        ("cp313-none-any", True),
        ("pp311-pypy311_pp73-manylinux_2_28_aarch64", False),
    ],
)
def test_what_runs_there_is_known(tag: str, *, fits: bool) -> None:
    assert (tag in names(wheel_tags("linux/arm64", "3.13", "2.41"))) == fits


def test_the_old_names_are_there_for_each_machine() -> None:
    arm = {tag.platform for tag in wheel_tags("linux/arm64", "3.13", "2.41")}
    amd = {tag.platform for tag in wheel_tags("linux/amd64", "3.13", "2.41")}
    assert {p for p in arm if "manylinux2" in p or "linux1" in p} == {"manylinux2014_aarch64"}
    assert {p for p in amd if "manylinux2" in p or "linux1" in p} == {
        "manylinux2014_x86_64",
        "manylinux2010_x86_64",
        "manylinux1_x86_64",
    }
    assert "manylinux_2_5_x86_64" in amd
    assert "manylinux_2_4_x86_64" not in amd


def test_this_machine_is_told_as_it_tells_itself() -> None:
    """The one machine that an independent answer is at hand for (glibc hosts only, as we are)."""
    here = {machine: name for name, machine in MACHINES.items()}[platform.machine()]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    glibc = platform.libc_ver()[1]
    tags, expected = wheel_tags(here, python, glibc), list(sys_tags())
    assert set(tags) == set(expected)
    # Where plain linux_* comes is a matter of taste: last for uv, first for pip.
    assert [t for t in tags if "-linux_" not in str(t)] == [
        t for t in expected if "-linux_" not in str(t)
    ]
    ours, own = dict(markers(here, python)), dict(default_environment())
    for key in ("implementation_version", "python_full_version"):
        assert str(own.pop(key)).startswith(f"{python}.")
        assert str(ours.pop(key)).startswith(f"{python}.")
    for key in ("platform_release", "platform_version"):  # of the kernel, which nobody knows
        own.pop(key)
        assert ours.pop(key) == ""
    assert ours == own


@pytest.mark.parametrize(
    ("marker", "holds"),
    [
        ("platform_machine == 'aarch64' and sys_platform == 'linux'", True),
        ("platform_machine == 'x86_64'", False),
        ("python_version >= '3.13' and python_full_version < '3.14'", True),
        ("implementation_name == 'cpython' and os_name == 'posix'", True),
        ("platform_system == 'Windows'", False),
    ],
)
def test_markers_are_of_the_target(marker: str, *, holds: bool) -> None:
    environment = {key: str(value) for key, value in markers("linux/arm64", "3.13").items()}
    assert Marker(marker).evaluate(environment) == holds


@pytest.mark.parametrize(
    ("glibc", "name"),
    [
        ("2.17", "manylinux_2_17"),
        ("2.27", "manylinux_2_17"),
        ("2.28", "manylinux_2_28"),
        ("2.36", "manylinux_2_36"),
        ("2.40", "manylinux_2_40"),
        ("2.43", "manylinux_2_40"),
    ],
)
def test_uv_is_asked_for_a_platform_that_it_knows(glibc: str, name: str) -> None:
    assert uv_platform("linux/arm64", glibc) == f"aarch64-{name}"
    assert uv_platform("linux/amd64", glibc) == f"x86_64-{name}"


def test_a_glibc_older_than_any_name_is_refused() -> None:
    with pytest.raises(LockError, match=r"glibc 2\.12"):
        uv_platform("linux/amd64", "2.12")


@pytest.mark.parametrize(
    ("marker", "extra", "holds"),
    [
        (None, "", True),
        ("sys_platform == 'linux' and platform_machine == 'aarch64'", "", True),
        ("platform_machine == 'x86_64'", "", False),
        ("extra == 'gpu'", "", False),
        ("extra == 'GPU'", "gpu", True),
        ("python_version >= '3.13' or extra == 'gpu'", "gpu", True),
    ],
)
def test_a_marker_holds_there_and_not_here(marker: str | None, extra: str, *, holds: bool) -> None:
    found = None if marker is None else Marker(marker)
    assert marker_holds(found, markers("linux/arm64", "3.12"), extra) == holds


def version_of(filename: str) -> str:
    found = wheel_version(
        filename, "Some.Name", platform="linux/arm64", python="3.12", glibc="2.39"
    )
    return str(found)


def test_a_wheel_says_its_version_by_its_name() -> None:
    assert version_of("some_name-1.0+cu130-cp38-abi3-manylinux_2_35_aarch64.whl") == "1.0+cu130"


@pytest.mark.parametrize(
    ("filename", "says"),
    [
        ("some_name.whl", "some_name.whl is not the name of a wheel"),
        ("other-1.0-py3-none-any.whl", "is a wheel of other, not of some-name"),
        ("some_name-1.0-cp311-cp311-linux_aarch64.whl", "does not run on linux/arm64 with Python"),
        ("some_name-1.0-cp38-abi3-manylinux_2_40_aarch64.whl", "and glibc 2.39"),
        ("some_name-1.0-py3-none-manylinux_2_17_x86_64.whl", "does not run on linux/arm64"),
    ],
)
def test_a_wheel_of_another_package_or_machine_is_refused(filename: str, says: str) -> None:
    with pytest.raises(LockError, match=says):
        version_of(filename)
