"""What pip and uv do to an installed torch, and that they cannot do it under the guard.

The first half is the ground that the guard stands on: where a version of pip or uv behaves in
another way, a row fails. Each row is a package that requires torch so, installed from a folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder import process

from .containers import NGC, Container, shop

pytestmark = [pytest.mark.real("index", "sh")]

# Whether torch 2.10.0a0+b558c986e8.nv25.11 meets it. Pre-releases count, since one is installed;
# and `<` and `>` leave out what is of the same release as the version that they name (PEP 440).
MEETS: Mapping[str, bool] = {
    "torch": True,
    "torch>=2.8": True,
    "torch>2.9": True,
    "torch~=2.9": True,
    "torch==2.10.*": True,
    "torch<2.11,>=2.8": True,
    "torch<=2.10.0": True,
    "torch>=2.10.0a0": True,
    "torch==2.10.0a0": True,
    "torch!=2.9.0": True,
    "torch>=2.10": False,
    "torch>=2.10.0": False,
    "torch==2.10.0": False,
    "torch~=2.10.0": False,
    "torch<2.10": False,
    "torch==2.9.1": False,
    "torch>2.10.0a0": False,
    "torch==2.11.0": False,
}
PIP = ("pip", "install")
UV = ("uv", "pip", "install")
# They replace even a torch that meets every requirement.
FORCES = {
    "uv -U": (*UV, "-U"),
    "uv --reinstall": (*UV, "--reinstall"),
    "pip -U, eager": (*PIP, "-U", "--upgrade-strategy", "eager"),
    "pip --force-reinstall": (*PIP, "--force-reinstall"),
    "pip --ignore-installed": (*PIP, "--ignore-installed"),
}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Containers that are made once and put back as they were before each install."""

    plain: Container
    """Torch in the environment."""
    layered: Container
    """Torch in the base, below the environment."""
    names: Mapping[str, str]
    """Package names by what they require."""

    def fresh(self, container: Container) -> Container:
        """The container as it was made; files are links to the first ones, which nobody writes."""
        for name in ("opt", "etc"):
            shutil.rmtree(container.root / name, ignore_errors=True)
        made, opt = container.root / "made", container.root / "opt"
        shutil.copytree(made, opt, symlinks=True, copy_function=os.link)
        return container


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("guard")
    containers = {
        kind: Container(root=folder / kind, kind=kind, links=folder / "links", version=NGC)
        for kind in ("wheel", "base")
    }
    for container in containers.values():
        container.make()
        (container.root / "opt").rename(container.root / "made")
    names = shop(folder / "links", MEETS)
    return Bench(plain=containers["wheel"], layered=containers["base"], names=names)


@pytest.mark.parametrize("tool", [PIP, UV], ids=["pip", "uv"])
@pytest.mark.parametrize("requirement", MEETS)
def test_what_is_met_is_kept_and_nothing_else(
    bench: Bench, requirement: str, tool: tuple[str, ...]
) -> None:
    container = bench.fresh(bench.plain)
    done = container.install(container.plain(), *tool, bench.names[requirement])
    assert done.returncode == 0, done.stderr
    assert (container.torches() == [NGC]) is MEETS[requirement]


@pytest.mark.parametrize("force", FORCES)
def test_a_torch_that_meets_everything_is_replaced_by_force(bench: Bench, force: str) -> None:
    container = bench.fresh(bench.plain)
    done = container.install(container.plain(), *FORCES[force], bench.names["torch"])
    assert done.returncode == 0, done.stderr
    assert NGC not in container.torches() or len(container.torches()) > 1


def test_uv_does_not_see_the_bases_torch_at_all(bench: Bench) -> None:
    container = bench.fresh(bench.layered)
    assert container.install(container.plain(), *UV, bench.names["torch"]).returncode == 0
    assert container.torches() == ["2.11.0+cpu", NGC]


def test_pip_lays_another_torch_over_the_bases(bench: Bench) -> None:
    container = bench.fresh(bench.layered)
    assert container.install(container.plain(), *PIP, bench.names["torch"]).returncode == 0
    assert container.torches() == [NGC]
    assert container.install(container.plain(), *PIP, bench.names["torch==2.11.0"]).returncode == 0
    assert container.torches() == ["2.11.0+cpu", NGC]


@pytest.mark.parametrize(
    ("variable", "text", "status", "kept"),
    [
        ("PIP_CONSTRAINT", f"torch=={NGC}", 0, False),
        ("UV_CONSTRAINT", f"torch=={NGC}", 1, True),
        ("UV_OVERRIDE", f"torch=={NGC}", 0, True),
        ("UV_OVERRIDE", "torch==2.10.0a0", 0, True),
        ("UV_OVERRIDE", "torch ; sys_platform == 'never'", 0, True),
        ("UV_EXCLUDE", "torch", 0, True),
    ],
)
def test_what_uv_obeys(bench: Bench, variable: str, text: str, *, status: int, kept: bool) -> None:
    container = bench.fresh(bench.plain)
    lines = container.root / "lines.txt"
    lines.write_text(text)
    env = {**container.plain(), variable: str(lines)}
    done = container.install(env, *UV, "-U", bench.names["torch==2.11.0"])
    assert done.returncode == status, done.stderr
    assert (container.torches() == [NGC]) is kept


def test_an_exact_version_lets_a_build_for_the_cpu_in_unless_it_is_compared_as_text(
    bench: Bench,
) -> None:
    container = bench.fresh(bench.plain)
    env = container.plain()
    assert container.install(env, *PIP, "torch==2.11.0", "--no-deps").returncode == 0
    for operator, found in (("==", "2.11.0+cpu"), ("===", "2.11.0")):
        (container.root / "pins.txt").write_text(f"torch{operator}2.11.0")
        pinned = {**env, "PIP_CONSTRAINT": str(container.root / "pins.txt")}
        assert container.install(pinned, *PIP, "--force-reinstall", "torch").returncode == 0
        assert container.torches() == [found]


# ── under the guard ──────────────────────────────────────────────────────────────────────────────

_HARD = ("torch", "torch>=2.10", "torch<2.10", "torch==2.11.0")
_GUARDED = [
    *((UV, requirement) for requirement in MEETS),
    *((force, "torch") for force in FORCES.values()),
    *((PIP, requirement) for requirement in _HARD),
]


@pytest.mark.parametrize("kind", ["plain", "layered"])
@pytest.mark.parametrize(
    ("tool", "requirement"), _GUARDED, ids=[f"{' '.join(t)} {r}" for t, r in _GUARDED]
)
def test_no_ordinary_install_replaces_torch(
    bench: Bench, kind: str, tool: tuple[str, ...], requirement: str
) -> None:
    container = bench.fresh(getattr(bench, kind))
    env = container.guard()
    done = container.install(env, *tool, bench.names[requirement])
    assert container.torches() == [NGC]
    assert f"spark-build: torch {NGC} stays as the image has it" in done.stderr
    assert "was replaced" not in done.stderr
    if tool[0] == "uv":
        assert done.returncode == 0
        assert ("it may not work" in done.stderr) is not MEETS[requirement]
    elif done.returncode:
        assert "torch" in done.stderr


@pytest.mark.parametrize("kind", ["plain", "layered"])
@pytest.mark.parametrize(
    ("argv", "scrubbed"),
    [
        ((*UV, "-U", "torch==2.11.0"), ""),
        (("uv", "--no-config", "pip", "install", "-U", "torch"), ""),
        ((*UV, "-U", "torch", "--excludes", "/dev/null", "--overrides", "/dev/null"), ""),
        ((*UV, "-U", "torch", "torch==2.11.0"), "UV_"),
        ((*PIP, "-U", "torch==2.11.0"), "PIP_"),
        (("pip", "--isolated", "install", "-U", "torch==2.11.0"), ""),
    ],
)
def test_one_of_the_two_nets_is_enough(
    bench: Bench, kind: str, argv: tuple[str, ...], scrubbed: str
) -> None:
    container = bench.fresh(getattr(bench, kind))
    env = container.guard()
    if scrubbed:
        env = {name: value for name, value in env.items() if not name.startswith(scrubbed)}
    container.install(env, *argv)
    assert container.torches() == [NGC]


@pytest.mark.parametrize("kind", ["plain", "layered"])
@pytest.mark.parametrize(
    "argv",
    [("uv", "--no-config", "pip", "install", "-U", "torch"), (*PIP, "-U", "torch==2.11.0")],
    ids=["uv", "pip"],
)
def test_who_goes_round_both_nets_is_told(bench: Bench, kind: str, argv: tuple[str, ...]) -> None:
    container = bench.fresh(getattr(bench, kind))
    env = container.guard()
    assert container.report(env).returncode == 0
    for name in ("UV_EXCLUDE", "UV_OVERRIDE", "UV_CONSTRAINT", "PIP_CONSTRAINT"):
        del env[name]
    done = container.install({**env, "PIP_CONFIG_FILE": "/dev/null"}, *argv)
    assert done.returncode == 0
    assert container.torches()[0] == "2.11.0+cpu"
    assert "spark-build: torch was replaced: Python takes 2.11.0+cpu from" in done.stderr
    report = container.report(env)
    assert report.returncode == 1
    assert "to go back" in report.stderr
    if kind == "layered":
        container.run(env, "pip", "uninstall", "-y", "torch")
        assert (container.torches(), container.report(env).returncode) == ([NGC], 0)


def test_an_install_without_consequences_is_not_spoken_about(bench: Bench) -> None:
    container = bench.fresh(bench.plain)
    env = container.guard()
    for argv in (("pip", "--version"), ("pip3", "list"), ("uv", "pip", "list")):
        done = container.run(env, *argv)
        assert done.returncode == 0
        assert "spark-build" not in done.stderr


def test_a_pip_of_the_base_installs_into_the_environment(bench: Bench) -> None:
    container = bench.fresh(bench.plain)
    env = container.guard()
    _remove_pip(container)
    tools = container.root / "tools"
    tools.mkdir()
    own = container.root / "made" / "venv" / "bin" / "python"
    (tools / "pip").write_text(f'#!/bin/sh\nexec {own} -m pip "$@"\n')
    (tools / "pip").chmod(0o755)
    env["PATH"] += f":{tools}"
    assert container.install(env, *PIP, bench.names["torch"]).returncode == 0
    assert list(container.venv.glob(f"lib/*/site-packages/{bench.names['torch']}-1.0.dist-info"))
    assert container.install(env, *PIP, bench.names["torch==2.11.0"]).returncode == 1
    assert container.torches() == [NGC]


def test_the_wrappers_without_anything_behind_them(bench: Bench) -> None:
    container = bench.fresh(bench.plain)
    env = container.guard()
    _remove_pip(container)
    env["PATH"] = f"{container.root}/opt/spark-build/bin:/nowhere"
    for name in ("pip", "pip3", "uv"):
        done = container.run(env, name, "install", "x")
        assert (done.returncode, done.stderr) == (127, f"{name}: not found\n")


@pytest.mark.parametrize(
    "spelling", ["{bin}/.", "{bin}//", "{opt}/../opt/spark-build/bin", "{links}"]
)
def test_the_wrapper_never_takes_itself_for_the_real_one(bench: Bench, spelling: str) -> None:
    container = bench.fresh(bench.plain)
    env = container.guard()
    own, links = container.root / "opt" / "spark-build" / "bin", container.root / "links-to-it"
    links.mkdir(exist_ok=True)
    if not (links / "uv").is_symlink():
        (links / "uv").symlink_to(own / "uv")
    first = spelling.format(bin=own, opt=container.root / "opt", links=links)
    env["PATH"] = f"{own}:{first}:/nowhere"
    done = container.run(env, "uv", "--version")
    assert (done.returncode, done.stderr) == (127, "uv: not found\n")


@pytest.mark.parametrize("module", ["pip", "types", "typing", "contextlib"])
def test_pip_takes_no_modules_out_of_the_folder_it_is_called_in(
    bench: Bench, module: str, tmp_path: Path
) -> None:
    container = bench.fresh(bench.plain)
    (tmp_path / f"{module}.py").write_text("raise SystemExit('not the real one')\n")
    wrapper = container.root / "opt" / "spark-build" / "bin" / "pip"
    env = container.guard()
    done = process.run([str(wrapper), "--version"], env=env, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pip ")


def _remove_pip(container: Container) -> None:
    for path in [*container.venv.glob("lib/*/site-packages/pip"), *container.venv.glob("bin/pip*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
