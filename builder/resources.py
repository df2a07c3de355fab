"""Where the files that are data lie: beside the package in a checkout, inside it in a wheel.

`containerfiles/` and `recipes/` are top-level folders of the project; the wheel carries copies of
them inside the package (`force-include` in pyproject.toml).
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The folder `containerfiles` or `recipes`, wherever this installation keeps it."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def package_file(name: str) -> Path:
    """A data file inside the package, such as `targets.yaml`."""
    return _PACKAGE / name
