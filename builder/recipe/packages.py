"""The key `packages`: requirements, and files of the user's that list them."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Annotated, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    PrivateAttr,
    Tag,
    ValidationInfo,
    model_validator,
)

from builder.document import Flaw
from builder.errors import RecipeError
from builder.recipe import fields
from builder.recipe.fields import find_repeats, requirement_name
from builder.recipe.listed import Listing, list_pyproject, list_requirements
from builder.recipe.part import Part, refuse


class Listed(Part):
    """Packages that a file of yours lists: exactly one of requirements and pyproject.

    What `exclude` and `build_after_torch` name is left out of them.
    """

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [key]} for key in ("requirements", "pyproject")]}
    )

    requirements: fields.ListedFile | None = None
    """A requirements.txt, as a path relative to the recipe."""
    pyproject: fields.ListedFile | None = None
    """A pyproject.toml, as a path relative to the recipe: its project's dependencies."""
    extras: tuple[fields.PackageName, ...] = ()
    """Extras of that project, whose dependencies come along."""
    groups: tuple[fields.PackageName, ...] = ()
    """Dependency groups of that project, which come along."""

    _listing: Listing | None = PrivateAttr(default=None)

    @property
    def listing(self) -> Listing | None:
        """What the file lists; None where it is not known which folder the recipe lies in."""
        return self._listing

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        if self.choose("requirements", "pyproject") == "requirements":
            extra = [key for key in ("extras", "groups") if getattr(self, key)]
            refuse([Flaw(message="belongs to `pyproject` only", at=(key,)) for key in extra])
        folder: Path | None = (info.context or {}).get("folder")
        if folder is not None:
            self._listing = self._read(folder)
        return self

    def _read(self, folder: Path) -> Listing | None:
        try:
            if self.requirements is not None:
                return list_requirements(folder, self.requirements)
            if self.pyproject is not None:
                return list_pyproject(
                    folder, self.pyproject, extras=self.extras, groups=self.groups
                )
        except RecipeError as error:
            refuse([Flaw(message=str(item), hint=item.hint) for item in error.problems])
        return None


def _package_kind(value: object) -> str:
    return "file" if isinstance(value, dict | Listed) else "text"


def _unique_packages(items: tuple[str | Listed, ...]) -> tuple[str | Listed, ...]:
    names = [
        requirement_name(item) if isinstance(item, str) else f"packages[{index}]"
        for index, item in enumerate(items)
    ]
    refuse(find_repeats(names))
    return items


_Package = Annotated[
    Annotated[fields.Requirement, Tag("text")] | Annotated[Listed, Tag("file")],
    Discriminator(_package_kind),
]
Packages = Annotated[tuple[_Package, ...], AfterValidator(_unique_packages)]


def asked(info: ValidationInfo, *, listed: bool = True) -> Iterator[tuple[str, str]]:
    """What `packages` asks for by name, and where it does; with what its files list."""
    items: tuple[str | Listed, ...] = info.data.get("wanted", ())
    for index, listing in listings(items if listed else ()):
        for text in listing.requirements:
            yield requirement_name(text), f"`packages[{index}]` ({listing.source})"
    for index, item in enumerate(items):
        if isinstance(item, str):
            yield requirement_name(item), f"`packages[{index}]`"


def listings(items: tuple[str | Listed, ...]) -> Iterator[tuple[int, Listing]]:
    """What each listed file among the items lists, and the item's index."""
    for index, item in enumerate(items):
        if isinstance(item, Listed) and item.listing is not None:
            yield index, item.listing


def admits(specifiers: str | None, python: str) -> bool:
    """Whether some release of Python X.Y is one of those meant."""
    try:
        known = SpecifierSet(specifiers or "")
    except InvalidSpecifier:
        return False
    return any(known.contains(f"{python}.{patch}") for patch in (0, 99))


def misplaced(info: ValidationInfo, settled: Container[str]) -> list[Flaw]:
    """Packages that a project of the user's takes from a place that the recipe does not name.

    `settled` are those of which the recipe says where they come from, or that they stay out.
    """
    return [
        Flaw(
            message=f"{listing.source} takes `{name}` from a place of its own ([tool.uv.sources])",
            hint="say under `sources` where it comes from here, or `exclude` it",
            at=("packages", index),
            absolute=True,
        )
        for index, listing in listings(info.data.get("wanted", ()))
        for name in sorted(listing.placed & {*map(requirement_name, listing.requirements)})
        if name not in settled
    ]
