"""A whole project in a folder: recipe, base, wheels and a lock, all made here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.lock.model import OciBase, plain
from builder.lock.pylock import write_lock
from builder.oci.image import read_layout
from builder.recipe import inputs, load_recipe
from builder.targets import find_target
from tests.builders import WheelText, base_layout, demo_lock, locked

_RECIPE = """\
name: demo
description: a greeting
target: {target}
base: {{oci: ./base}}
packages: {packages}
exclude: {exclude}
env: {{GREETING: 'a "quoted" $value'}}
entrypoint: [hello]
{more}"""

WHEELS = (
    WheelText(
        name="greet",
        files={"greet/__init__.py": b"def main():\n    print('hello')\n" * 60},
        entry_points="[console_scripts]\nhello = greet:main\n",
    ),
    WheelText(name="data", version="2.1", files={"data/table.csv": b"1,2,3\n" * 500}),
)


@dataclass(frozen=True, kw_only=True)
class Project:
    """The recipe `demo.yaml` in `folder`, with its base and its wheels."""

    folder: Path
    values: Mapping[str, str] = field(
        default_factory=lambda: {
            "target": "gb10",
            "packages": "[greet, data]",
            "exclude": "[]",
            "more": "",
        }
    )

    @property
    def recipe(self) -> Path:
        return self.folder / "demo.yaml"

    @property
    def lock(self) -> Path:
        return self.folder / "pylock.demo-gb10.toml"

    def write_recipe(self, **values: str) -> None:
        text = _RECIPE.format(**{**self.values, **values})
        self.recipe.write_text(text, encoding="utf-8")

    def write_lock(self) -> None:
        """A lock that answers the recipe as it stands."""
        target = find_target("gb10")
        image = read_layout(self.folder / "base", target.platform)
        lock = demo_lock(
            *sorted(map(locked, WHEELS), key=lambda wheel: wheel.name),
            base=OciBase(path="./base", digest=image.digest),
            inputs=plain(inputs(load_recipe(self.recipe).recipe, target)),
        )
        self.lock.write_text(write_lock(lock), encoding="utf-8")

    def stock(self, cache: Path) -> None:
        """Put the wheels where a run would have fetched them to."""
        for wheel in WHEELS:
            path = cache / "files" / locked(wheel).sha256[:2] / locked(wheel).sha256
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wheel.zipped())


def make_project(folder: Path) -> Project:
    """A project that builds as it is, once its wheels are in the cache."""
    project = Project(folder=folder)
    base_layout(folder / "base")
    project.write_recipe()
    project.write_lock()
    return project
