"""The combinations that the project promises, out of `matrix.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from builder.document import read_document, validate

Engine = Literal["assemble"]


class Cell(BaseModel):
    """A recipe, as a path relative to the file, with each of its targets and engines."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    engines: Annotated[tuple[Engine, ...], Field(min_length=1)]


class Matrix(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cells: Annotated[tuple[Cell, ...], Field(min_length=1)]


def load_matrix(path: Path) -> Matrix:
    """The matrix in the file at `path`; RecipeError with every problem, file, line and field."""
    return validate(Matrix, read_document(path))
