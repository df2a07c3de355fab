"""The recipe that people write: read it, and hand on what the later stages ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from builder.document import Document, Where, parse_document, read_document, validate
from builder.errors import Problem
from builder.recipe.fields import canonical_requirement
from builder.recipe.model import (
    Accept,
    Base,
    Debian,
    File,
    Mount,
    Recipe,
    Resolve,
    Run,
    Source,
    Torch,
)
from builder.targets import Target

__all__ = [
    "Accept",
    "Base",
    "Debian",
    "File",
    "LoadedRecipe",
    "Mount",
    "Recipe",
    "Resolve",
    "Run",
    "Source",
    "Torch",
    "inputs",
    "load_recipe",
    "parse_recipe",
    "requirements",
    "schema",
    "unsupported",
]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_EXAMPLE = {
    "name": "quickstart",
    "target": "gb10",
    "base": {"debian": {"suite": "trixie", "packages": ["python3", "libstdc++6", "libgomp1"]}},
    "torch": {"from": "wheel", "version": "2.13.0"},
    "packages": ["numpy"],
    "checks": ["matmul", "import:numpy"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRecipe:
    """A recipe and the file it stands in; paths in it are relative to `folder`."""

    recipe: Recipe
    document: Document

    @property
    def path(self) -> Path:
        """The file, as the caller named it."""
        return self.document.path

    @property
    def folder(self) -> Path:
        """Where the recipe lies, its locks beside it."""
        return self.document.path.parent


def load_recipe(path: Path) -> LoadedRecipe:
    """The recipe in the file at `path`; RecipeError with every problem, file, line and field."""
    return _loaded(read_document(path))


def parse_recipe(text: str, path: Path) -> LoadedRecipe:
    """A recipe as `load_recipe` reads it, of a text that might stand in the file at `path`."""
    return _loaded(parse_document(text.encode(), path))


def _loaded(document: Document) -> LoadedRecipe:
    return LoadedRecipe(recipe=validate(Recipe, document), document=document)


def unsupported(loaded: LoadedRecipe) -> tuple[Problem, ...]:
    """What the recipe rightly asks for and this version cannot do, so that it is never ignored."""
    return tuple(
        loaded.document.problem(at, f"not supported by this version of spark-build: {what}")
        for at, what in _unsupported(loaded.recipe)
    )


def _unsupported(recipe: Recipe) -> Iterator[tuple[Where, str]]:
    if recipe.build_after_torch:
        yield ("build_after_torch",), "compiling packages against the locked torch"
    if recipe.system and recipe.base.debian is None:
        yield ("system",), "distribution packages on a base other than `debian`"
    if recipe.run is not None:
        yield ("run",), "settings for running the image"


def requirements(recipe: Recipe) -> tuple[str, ...]:
    """What is to be resolved: the packages and torch's pin, in one spelling, sorted, each once."""
    texts = {canonical_requirement(text) for text in recipe.packages}
    if recipe.torch is not None and recipe.torch.version is not None:
        texts.add(f"torch=={recipe.torch.version}")
    return tuple(sorted(texts))


def inputs(recipe: Recipe, target: Target) -> dict[str, Any]:
    """What a lock answers, as plain values in one spelling: a lock is stale when they differ.

    Keys without a value are left out, so that a later version's new keys leave old locks valid.
    """
    values: dict[str, Any] = {
        "platform": target.platform,
        "base": _plain(recipe.base),
        "python": recipe.python,
        "requirements": list(requirements(recipe)),
        "torch": _plain(recipe.torch) if recipe.torch else None,
        "accept": [_plain(accept) for accept in recipe.accept],
        "build_after_torch": sorted(map(canonical_requirement, recipe.build_after_torch)),
        "exclude": sorted(map(canonicalize_name, recipe.exclude)),
        "system": sorted(recipe.system),
        "indexes": dict(sorted(recipe.indexes.items())),
        "sources": {
            canonicalize_name(name): [_plain(source) for source in choices]
            for name, choices in sorted(recipe.sources.items())
        },
        "resolve": _resolve(recipe.resolve),
    }
    return {key: value for key, value in values.items() if value}


def _plain(part: Accept | Base | Torch | Source) -> dict[str, Any]:
    values = part.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if "debian" in values:
        values["debian"]["packages"].sort()
    return values


def _resolve(resolve: Resolve) -> dict[str, Any]:
    values = resolve.model_dump(mode="json", exclude_defaults=True)
    for key in ("constraints", "overrides"):
        if key in values:
            values[key] = sorted(map(canonical_requirement, values[key]))
    return values


def schema() -> dict[str, Any]:
    """The JSON Schema of recipes, for editors; the same on every run."""
    generated = _tidy(Recipe.model_json_schema(by_alias=True))
    return {"$schema": _DIALECT, "title": "spark-build recipe", **generated, "examples": [_EXAMPLE]}


def _tidy(value: Any) -> Any:
    """Pydantic's schema, without what is true of Python only: nulls, defaults, invented titles."""
    if isinstance(value, list):
        return [_tidy(item) for item in value if item != {"type": "null"}]
    if not isinstance(value, dict):
        return value
    tidy = {key: _tidy(item) for key, item in value.items() if key not in ("default", "title")}
    if len(only := tidy.get("anyOf", ())) == 1:
        tidy |= only[0]
        del tidy["anyOf"]
    if "patternProperties" in tidy:
        tidy["additionalProperties"] = False
    return tidy
