"""What we promise is a sound file, and every shipped recipe is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import RecipeError
from builder.matrix import load_matrix
from builder.recipe import load_recipe, unsupported
from builder.resources import folder
from builder.targets import find_target

RECIPES = folder("recipes")
MATRIX = RECIPES.parent / "matrix.yaml"


def test_every_shipped_recipe_is_promised_for_its_targets() -> None:
    promised = {cell.recipe: cell.targets for cell in load_matrix(MATRIX).cells}
    shipped = {
        f"recipes/{path.name}": load_recipe(path).recipe.targets for path in RECIPES.glob("*.yaml")
    }
    assert promised == shipped
    for names in promised.values():
        assert all(find_target(name) for name in names)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: str(path.stem))
def test_a_shipped_recipe_is_exemplary(path: Path) -> None:
    loaded = load_recipe(path)
    assert loaded.recipe.name == path.stem
    assert loaded.recipe.description
    assert not unsupported(loaded)
    first = path.read_text(encoding="utf-8").splitlines()[0]
    schema = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / schema).is_file()


def test_a_broken_matrix_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text("cells:\n  - recipe: a.yaml\n    targets: []\n    engine: assemble\n")
    with pytest.raises(RecipeError) as caught:
        load_matrix(path)
    assert {(problem.line, problem.field) for problem in caught.value.problems} == {
        (3, "cells[0].targets"),
        (2, "cells[0].engines"),
        (4, "cells[0].engine"),
    }
