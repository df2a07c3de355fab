"""What packages say about themselves, as installers have written it over the years."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from builder.lock.base.metadata import (
    Metadata,
    parse_constraints,
    parse_egg_requires,
    parse_metadata,
    parse_scripts,
)

METADATA = """Metadata-Version: 2.4
Name: Torch_TensorRT
Version: 2.9.0a0
Requires-Dist: torch>=2.9
Requires-Dist: numpy (>=1.0) ;
   extra == 'all'
Provides-Extra: all
Classifier: Private
"""


def test_metadata() -> None:
    assert parse_metadata(METADATA) == Metadata(
        name="torch-tensorrt",
        version="2.9.0a0",
        requires=("torch>=2.9", "numpy (>=1.0) ; extra == 'all'"),
    )


@pytest.mark.parametrize(
    "text",
    ["", "Name: x", "Version: 1", "Name: \nVersion: 1", "Name: ../x\nVersion: 1", "no header"],
)
def test_what_names_no_package(text: str) -> None:
    assert parse_metadata(text) is None


@given(st.text())
def test_any_metadata_is_read_or_left(text: str) -> None:
    found = parse_metadata(f"Name: x\nVersion: 1\n{text}")
    assert found is None or found.name == "x"


def test_requires_of_an_egg() -> None:
    text = """
numpy>=1
# a comment

[test]
pytest

[:python_version < "3.8"]
typing_extensions

[all:os_name == "posix"]
a@ https://files.example/a.whl
"""
    found = parse_egg_requires(text)
    assert found == (
        "numpy>=1",
        'pytest ; extra == "test"',
        'typing_extensions ; (python_version < "3.8")',
        'a@ https://files.example/a.whl ; (os_name == "posix") and extra == "all"',
    )
    assert [Requirement(line).name for line in found] == [
        "numpy",
        "pytest",
        "typing_extensions",
        "a",
    ]


def test_console_scripts() -> None:
    text = """
    [console_scripts]
    torchrun = torch.distributed.run:main
    Cased = a:B.c [extra]

    [gui_scripts]
    window = a:b
    """
    assert parse_scripts(text) == {"torchrun": "torch.distributed.run:main", "Cased": "a:B.c"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "[console_scripts]\nx",
        "[console_scripts]\n../x = a:b",
        "[console_scripts]\n.. = a:b",
        "[console_scripts]\nx = a",
        "[console_scripts]\nx = a;b:c",
        "[console_scripts]\nx = a:",
        "[console_scripts]\nx =\n",
        "[gui_scripts]\nx = a:b",
    ],
)
def test_scripts_that_are_none(text: str) -> None:
    assert parse_scripts(text) == {}


@given(st.text())
def test_any_entry_points_are_read(text: str) -> None:
    assert all(":" in reference for reference in parse_scripts(text).values())


def test_constraints() -> None:
    text = """# what NVIDIA pins
torch==2.10.0a0+b558c986e8.nv25.11
numpy<=2.1 # not newer
--hash=sha256:00

a \\
  ==1
a@ https://files.example/a#egg=a
numpy<=2.1
"""
    assert parse_constraints(text) == (
        "torch==2.10.0a0+b558c986e8.nv25.11",
        "numpy<=2.1",
        "a ==1",
        "a@ https://files.example/a#egg=a",
    )


@given(st.text())
def test_constraints_have_no_blanks_and_no_comments(text: str) -> None:
    lines = parse_constraints(text)
    assert all(line == line.strip() and line and line[0] not in "-#" for line in lines)
    assert len(lines) == len(set(lines))


def test_scripts_that_could_stand_for_something_else_are_left_out() -> None:
    names = ["torchrun", "x.y-z_2+", "python", "python3", "python3.12", "a b", "-rf", ".wh.x"]
    names += ["$(id)", "a\x1bb", "a\0b", 'a"b', "a" * 129]
    text = "[console_scripts]\n" + "".join(f"{name} = m:f\n" for name in names)
    assert list(parse_scripts(text)) == ["torchrun", "x.y-z_2+"]
