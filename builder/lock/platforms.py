"""Another machine's wheel tags and markers, computed here: no code of that machine is run."""

from __future__ import annotations

from packaging.markers import Environment, Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.errors import LockError

MACHINES = {"linux/arm64": "aarch64", "linux/amd64": "x86_64"}
"""OCI platform → `platform.machine()` there."""

_OLDEST_GLIBC = {"aarch64": 17, "x86_64": 5}  # PEP 600: where manylinux begins for each
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_UV_GLIBC = (17, 28, *range(31, 41))  # what `uv pip compile --python-platform` has names for


def wheel_tags(platform: str, python: str, glibc: str) -> list[Tag]:
    """The tags of wheels that CPython `python` (X.Y) runs on `platform`, best first (PEP 425)."""
    machine = MACHINES[platform]
    version = tuple(int(part) for part in python.split("."))
    platforms = _manylinux(machine, int(glibc.partition(".")[2]))
    interpreter = f"cp{version[0]}{version[1]}"
    own = cpython_tags(version, abis=[interpreter], platforms=platforms)
    return [*own, *compatible_tags(version, interpreter, platforms)]


def wheel_version(filename: str, name: str, *, platform: str, python: str, glibc: str) -> Version:
    """The version of a wheel that, by its name (PEP 427), is one of `name` and runs there.

    Raises LockError where it is not, without saying where the name was found.
    """
    try:
        found, version, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        raise LockError(f"{filename} is not the name of a wheel") from None
    if found != canonicalize_name(name):
        raise LockError(f"{filename} is a wheel of {found}, not of {canonicalize_name(name)}")
    if tags.isdisjoint(wheel_tags(platform, python, glibc)):
        raise LockError(
            f"{filename} does not run on {platform} with Python {python} and glibc {glibc}",
            hint="name the wheel for that platform",
        )
    return version


def markers(platform: str, python: str) -> Environment:
    """The environment markers (PEP 508) of CPython `python` (X.Y) on `platform`."""
    return Environment(
        implementation_name="cpython",
        implementation_version=f"{python}.0",
        os_name="posix",
        platform_machine=MACHINES[platform],
        platform_python_implementation="CPython",
        platform_release="",
        platform_system="Linux",
        platform_version="",
        python_full_version=f"{python}.0",
        python_version=python,
        sys_platform="linux",
    )


def marker_holds(marker: Marker | None, environment: Environment, extra: str = "") -> bool:
    """Whether a requirement with `marker` counts in `environment`, with `extra` asked for."""
    values = {name: str(value) for name, value in environment.items()}
    return marker is None or marker.evaluate({**values, "extra": extra})


def uv_platform(platform: str, glibc: str) -> str:
    """What uv's `--python-platform` calls `platform` with that glibc or older.

    Raises LockError where the glibc is older than any that it has a name for.
    """
    fitting = [known for known in _UV_GLIBC if known <= int(glibc.partition(".")[2])]
    if not fitting:
        raise LockError(
            f"the base has glibc {glibc}, and wheels are resolved for 2.{_UV_GLIBC[0]} or newer",
            hint="take a newer base",
        )
    minor = fitting[-1]
    return f"{MACHINES[platform]}-manylinux_2_{minor}"


def _manylinux(machine: str, newest: int) -> list[str]:
    platforms = []
    for minor in range(newest, _OLDEST_GLIBC[machine] - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{machine}")
        if minor in _LEGACY:
            platforms.append(f"{_LEGACY[minor]}_{machine}")
    return [*platforms, f"linux_{machine}"]
