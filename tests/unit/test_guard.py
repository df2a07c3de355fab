"""What keeps torch in a container: its files, its variables, and what its report says."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.errors import LockError
from builder.guard import guard_environment, guard_files, guard_programs, guarded_packages, report
from builder.guard.report import Installed
from builder.lock.model import Guard, Lock, LockedWheel, TorchIdentity
from tests.builders import NGC_TORCH, demo_lock, ngc_torch
from tests.conftest import Golden

SITE = "/usr/local/lib/python3.12/dist-packages"
TWICE = f"{NGC_TORCH} in {SITE})"
WHEEL = LockedWheel(
    name="Some.Package", version="1.0", url="https://index.example/s.whl", sha256="a" * 64, size=1
)
LOCK = demo_lock(
    WHEEL,
    python="3.12",
    torch=TorchIdentity(
        origin="base",
        version=NGC_TORCH,
        module=NGC_TORCH,
        cuda="13.0",
        folder=f"{SITE}/torch",
        sha256="c" * 64,
    ),
    guard=Guard(
        packages={"triton": "3.5.0", "torch": NGC_TORCH, "nvidia_nccl_cu13": "2.27.7"},
        constraints=("numpy<2.2", "scipy==1.16.1"),
    ),
)


def texts(lock: Lock) -> dict[str, str]:
    return {file.path.rpartition("/")[2]: file.text for file in guard_files(lock)}


def test_the_files_are_the_golden_ones(golden: Golden) -> None:
    whole = "".join(f"# {file.mode:04o} {file.path}\n{file.text}\n" for file in guard_files(LOCK))
    golden.check("guard.txt", whole)


def test_every_variable_names_a_file_and_every_file_stands_once() -> None:
    paths = [file.path for file in guard_files(LOCK)]
    assert len(set(paths)) == len(paths)
    named = {value for value in guard_environment(LOCK).values() if value.startswith("/")}
    assert named < set(paths)
    assert guard_programs(LOCK) == ("pip", "pip3", "pip3.12", "uv")


def test_nothing_is_written_where_there_is_no_torch() -> None:
    lock = replace(LOCK, torch=None)
    assert (guard_files(lock), guard_programs(lock)) == ((), ())
    assert (guard_environment(lock), guarded_packages(lock)) == ({}, {})


def test_versions_are_spelt_as_pip_compares_them() -> None:
    """PEP 440's normal form: `===` compares texts."""
    torch = TorchIdentity(origin="wheel", version="2.14.0a0+4fdf77b940.nv26.08")
    lock = replace(LOCK, torch=torch, guard=Guard())
    assert texts(lock)["constraints.txt"] == "torch===2.14.0a0+4fdf77b940.nv26.8\n"
    assert texts(lock)["notice"] == (
        "spark-build: torch 2.14.0a0+4fdf77b940.nv26.08 stays as the image has it; "
        "see /opt/spark-build/guard/README\n"
    )


@pytest.mark.parametrize(
    "guard",
    [
        Guard(packages={"triton": "3.5; x"}),
        Guard(packages={"triton": "3.5\n"}),
        Guard(packages={"triton\n--index-url https://index.example": "3.5"}),
        Guard(packages={"triton\n": "3.5"}),
        Guard(packages={"../x": "3.5"}),
        Guard(constraints=("numpy<2\n--index-url https://index.example",)),
        Guard(constraints=("--index-url https://index.example",)),
        Guard(constraints=("-r /etc/passwd",)),
        Guard(constraints=("numpy @ https://index.example/${TOKEN}/n.whl",)),
        Guard(constraints=("",)),
    ],
)
def test_a_lock_cannot_add_lines(guard: Guard) -> None:
    with pytest.raises(LockError, match="guard: "):
        guard_files(replace(LOCK, guard=guard))


def test_the_configurations_say_the_same_as_the_variables() -> None:
    found = texts(LOCK)
    assert found["pip.conf"] == "[global]\nconstraint = /opt/spark-build/guard/constraints.txt\n"
    overrides = found["uv.toml"].removeprefix("override-dependencies = ")
    assert json.loads(overrides) == found["override.txt"].splitlines()
    names = [line.partition(" ")[0] for line in found["override.txt"].splitlines()]
    assert names == found["exclude.txt"].splitlines() == ["torch", "nvidia-nccl-cu13", "triton"]


def test_the_report_is_for_an_older_python_too() -> None:
    """It runs under whatever Python a base has."""
    ast.parse(texts(LOCK)["report.py"], feature_version=(3, 8))


# ── the report ───────────────────────────────────────────────────────────────────────────────────


def dist(name: str, version: str, folder: str = SITE, requires: tuple[str, ...] = ()) -> Installed:
    return Installed(name, version, folder, requires)


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ([dist("torch", NGC_TORCH)], []),
        ([dist("torch", "2.10.0A0+b558c986e8-nv25.11")], []),
        ([], [f"torch is gone, the image was built with {NGC_TORCH}"]),
        (
            [dist("torch", "2.11.0", "/opt/venv"), dist("torch", NGC_TORCH)],
            [
                "torch was replaced: Python takes 2.11.0 from /opt/venv, the image was built with "
                + NGC_TORCH
            ],
        ),
        (
            [dist("torch", NGC_TORCH, "/opt/venv"), dist("torch", NGC_TORCH)],
            [f"torch was replaced: it is there 2 times ({NGC_TORCH} in /opt/venv, {TWICE}"],
        ),
    ],
)
def test_what_is_said_of_torch(installed: list[Installed], said: list[str]) -> None:
    assert list(report.judge("torch", NGC_TORCH, installed)) == said


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch that `import torch` would take, and nothing else of that name."""
    for name, data in ngc_torch().members().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path / "torch"


@pytest.mark.parametrize(
    ("folder", "module", "said"),
    [
        ("torch", NGC_TORCH, ""),
        (None, None, ""),
        ("torch", "2.10.0+cu130", f"says that it is {NGC_TORCH}, the image was built with 2.10.0"),
        ("elsewhere/torch", NGC_TORCH, "`import torch` takes"),
    ],
)
def test_what_is_said_of_the_import(
    imported: Path, folder: str | None, module: str | None, said: str
) -> None:
    place = None if folder is None else str(imported.parent / folder)
    lines = list(report.judge_import({"folder": place, "module": module}))
    assert said in "".join(lines)
    assert bool(lines) is bool(said)


def record(folder: Path, **changes: Any) -> Path:
    path = folder / "guard.json"
    guard = {
        "torch": {"origin": "base", "module": NGC_TORCH, "folder": str(folder / "torch")},
        "packages": {"torch": NGC_TORCH},
        "locked": {},
    }
    path.write_text(json.dumps({**guard, **changes}))
    return path


def test_all_is_well(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(record(imported.parent)) == 0
    assert capsys.readouterr() == ("", "")


def test_a_replaced_torch_is_named_with_the_way_back(
    imported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main(record(imported.parent, packages={"torch": "2.9.0", "triton": "3"})) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"spark-build: torch was replaced: Python takes {NGC_TORCH} from ")
    assert lines[1] == "spark-build: triton is gone, the image was built with 3"
    assert lines[2].startswith("spark-build: to go back: `pip uninstall`")
    report.main(record(imported.parent, torch={"origin": "wheel"}, packages={"torch": "2.9.0"}))
    assert "start the container anew" in capsys.readouterr().err


REQUIRES = (
    "Torch>=2.10",
    "torch ; sys_platform == 'never'",
    "torch==1 ; extra == 'old'",
    "torch<2.11",
    "triton>=3.6",
    "numpy<1",
    "not a requirement",
)


def unmet(monkeypatch: pytest.MonkeyPatch, *installed: Installed) -> list[str]:
    monkeypatch.setattr("sys.prefix", "/opt/venv")
    guard = {"packages": {"torch": NGC_TORCH, "triton": "3.5.0"}, "locked": {"known": "1.0"}}
    base = [dist("torch", NGC_TORCH), dist("triton", "3.5.0"), dist("old", "1", SITE, ("torch<1",))]
    return list(report.find_unmet(guard, [*installed, *base]))


def test_what_came_after_the_build_is_held_against_what_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pre-releases count, as they do for pip where one is installed."""
    new = dist("new", "2.0", "/opt/venv/lib", REQUIRES)
    assert unmet(monkeypatch, new) == [
        f"new 2.0 requires torch>=2.10, and {NGC_TORCH} stays: it may not work",
        "new 2.0 requires triton>=3.6, and 3.5.0 stays: it may not work",
    ]
    assert unmet(monkeypatch, dist("known", "1.0", "/opt/venv/lib", REQUIRES)) == []
    assert len(unmet(monkeypatch, dist("known", "1.1", "/opt/venv/lib", REQUIRES))) == 2


def test_without_anything_that_reads_requirements_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "_import", lambda *names: None)
    assert unmet(monkeypatch) == []
    [line] = unmet(monkeypatch, dist("new", "2.0", "/opt/venv/lib"))
    assert "there is neither packaging nor pip" in line
    assert list(report.judge("torch", "2.10.0A0", [dist("torch", "2.10.0a0")])) == []
