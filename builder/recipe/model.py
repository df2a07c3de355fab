"""What a recipe says: every key that one can write, with its meaning and its checks.

The docstrings are the texts of the JSON Schema that editors show. A check that looks at several
keys sits on the last of them, so that it runs, and is reported, beside every other problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from packaging.utils import canonicalize_name
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from builder.document import Flaw, Refused, nearest
from builder.recipe import fields
from builder.recipe.fields import find_repeats, find_secret, requirement_name
from builder.recipe.listed import combine
from builder.recipe.packages import Listed, Packages, admits, asked, listings, misplaced
from builder.recipe.part import Part, refuse
from builder.targets import load_targets, target_hint

PYTORCH_INDEX = "https://download.pytorch.org/whl/"
_PYTORCH_NAME = re.compile(r"cu\d{3}|cpu")


def _unique(texts: tuple[str, ...]) -> tuple[str, ...]:
    refuse(find_repeats(texts))
    return texts


def _unique_names(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Requirements or names, none of whose packages comes twice."""
    refuse(find_repeats([requirement_name(text) for text in texts]))
    return texts


def _known_targets(names: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [
        Flaw(message=f"no target is called `{name}`", hint=target_hint(name), at=(index,))
        for index, name in enumerate(names)
        if name not in load_targets()
    ]
    refuse(unknown + find_repeats(names))
    return names


def _no_secrets(values: Mapping[str, str]) -> Mapping[str, str]:
    refuse([flaw for name, value in values.items() for flaw in find_secret(name, value)])
    return values


def _target_schema() -> dict[str, object]:
    name = {"enum": list(load_targets())}
    return {"anyOf": [name, {"type": "array", "items": name, "minItems": 1, "uniqueItems": True}]}


Targets = Annotated[
    tuple[str, ...],
    fields.OneOrMore,
    Field(min_length=1),
    AfterValidator(_known_targets),
    WithJsonSchema(_target_schema()),
]
Requirements = Annotated[tuple[fields.Requirement, ...], AfterValidator(_unique_names)]
SystemPackages = Annotated[tuple[fields.SystemPackage, ...], AfterValidator(_unique)]


class Debian(Part):
    """A base laid out from Debian packages, each by hash; no registry is needed."""

    suite: fields.Suite
    """The release, such as trixie."""
    packages: Annotated[SystemPackages, Field(min_length=1)]
    """The packages wanted; what they depend on comes along."""
    mirror: fields.Url | None = None
    """Where the packages are fetched from, where not from the distribution's own mirror."""


class Base(Part):
    """What the image stands on: exactly one of image, debian and oci."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [key]} for key in ("image", "debian", "oci")]}
    )

    image: fields.ImageReference | None = None
    """An image in a registry; the lock holds its digest."""
    debian: Debian | None = None
    """Debian packages; the lock holds the hash of each."""
    oci: fields.Line | None = None
    """A local OCI layout, as a path relative to the recipe; the lock holds its digest."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.choose("image", "debian", "oci")
        return self


class Torch(Part):
    """Which PyTorch: a wheel of a chosen version, or the one that the base brings."""

    from_: Annotated[Literal["wheel", "base"], Field(alias="from")]
    """wheel: from a package index; base: the base's own, which nothing may replace."""
    version: fields.OneVersion | None = None
    """The version of the wheel."""
    index: fields.IndexName | None = None
    """A name under `indexes`, or one of PyTorch's own (cu130, cpu); else the default index."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.from_ == "wheel" and self.version is None:
            raise Refused(Flaw(message="is missing: `from: wheel` needs it", at=("version",)))
        if self.from_ == "base":
            extra = [key for key in ("version", "index") if getattr(self, key) is not None]
            message = "has no meaning with `from: base`: the torch is the base's"
            refuse([Flaw(message=message, at=(key,)) for key in extra])
        return self


class Source(Part):
    """One place that a package can come from: exactly one of wheel, index and git."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [key]} for key in ("wheel", "index", "git")]}
    )

    wheel: fields.WheelUrl | None = None
    """The URL of a wheel."""
    index: fields.IndexName | None = None
    """A package index, by its name under `indexes`."""
    git: fields.GitUrl | None = None
    """A repository that the package is built from."""
    ref: fields.GitRef | None = None
    """The tag, branch or commit there; the lock holds the commit."""
    subdirectory: fields.RepositoryPath | None = None
    """Where in the repository the package is, where not at its root."""
    requirements: tuple[fields.RepositoryPath, ...] = ()
    """Files there that list what it requires, where its pyproject.toml does not say it."""
    env: Annotated[Mapping[fields.EnvName, fields.Value], AfterValidator(_no_secrets)] = {}
    """Environment variables of that build."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.choose("wheel", "index", "git") == "git":
            if self.ref is None:
                raise Refused(Flaw(message="is missing: `git` needs it", at=("ref",)))
            return self
        keys = ("ref", "subdirectory", "requirements", "env")
        extra = [key for key in keys if getattr(self, key)]
        refuse([Flaw(message="belongs to `git` only", at=(key,)) for key in extra])
        return self


class Accept(Part):
    """A requirement that the base's own packages do not meet, and why that is fine."""

    requires: fields.Requirement
    """The requirement, as the package states it (`torch==2.11.0`)."""
    by: fields.PackageName | None = None
    """The package that states it; any, where not given."""
    reason: Annotated[fields.Text, Field(min_length=1)]
    """Why it may be left unmet; the lock repeats it."""


class Resolve(Part):
    """How versions are chosen; the caller's own uv and pip settings are kept out."""

    exclude_newer: fields.Time | None = None
    """Only files uploaded before this moment; a bare date is its first moment in UTC."""
    prerelease: Literal["disallow", "allow", "if-necessary", "explicit"] = "if-necessary"
    """Whether pre-releases may be chosen, in uv's words."""
    constraints: Requirements = ()
    """Limits on packages that are installed for other reasons."""
    overrides: Requirements = ()
    """Requirements that replace whatever other packages say."""


class File(Part):
    """One file of yours in the image."""

    source: Annotated[fields.LocalFile, Field(alias="from")]
    """A path relative to the recipe, in its folder or below."""
    to: fields.ImageFile
    """The file's absolute path in the image."""
    mode: fields.Mode = 0o644
    """Permission bits in octal; 0644 where not given."""


class Mount(Part):
    """A folder of the host that the running container sees."""

    host: fields.Line
    """The folder on the host."""
    to: fields.ImagePath
    """Where the container sees it."""
    read_only: bool = False
    """Whether the container may only read it."""


class Run(Part):
    """How the image is meant to be run."""

    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = ()
    """TCP ports that it listens on."""
    mounts: tuple[Mount, ...] = ()
    """Folders of the host."""


class Recipe(Part):
    """A container image or environment for NVIDIA Blackwell, in a few lines."""

    name: fields.ImageName
    """What the image is called."""
    description: fields.Text = ""
    """One line for people."""
    target: Targets
    """The GPU it is for, or a list of them: one lock and one image each."""
    base: Base
    """What the image stands on."""
    python: fields.PythonVersion | None = None
    """The Python version, X.Y; the base's own where not given, and equal to it where given."""
    indexes: Mapping[fields.IndexName, fields.Url] = {}
    """Package indexes by a name of your choice, for the packages that name one and no others."""
    resolve: Resolve = Resolve()
    """How versions are chosen."""
    wanted: Annotated[Packages, Field(alias="packages")] = ()
    """Python packages, as requirements (`numpy>=2`), or files that list them."""
    torch: Torch | None = None
    """Which PyTorch, if any."""
    accept: tuple[Accept, ...] = ()
    """Requirements that the base's torch does not meet and that may stay so, each with a reason."""
    build_after_torch: Requirements = ()
    """Packages that are compiled against the locked torch."""
    sources: Annotated[
        Mapping[fields.PackageName, Annotated[tuple[Source, ...], Field(min_length=1)]],
        Field(validate_default=True),
    ] = {}
    """Where a package comes from, where not from an index; the first source that works."""
    exclude: Annotated[
        tuple[fields.PackageName, ...], AfterValidator(_unique_names), Field(validate_default=True)
    ] = ()
    """Packages that are never installed, whatever asks for them."""
    system: SystemPackages = ()
    """Distribution packages beside the base's."""
    env: Annotated[Mapping[fields.EnvName, fields.Value], AfterValidator(_no_secrets)] = {}
    """Environment variables of the image."""
    labels: Annotated[Mapping[fields.LabelName, fields.Value], AfterValidator(_no_secrets)] = {}
    """Labels of the image."""
    files: tuple[File, ...] = ()
    """Files of yours in the image."""
    entrypoint: tuple[fields.Line, ...] = ()
    """The command that the container runs, word by word."""
    cmd: tuple[fields.Line, ...] = ()
    """Arguments of the entrypoint that `run` can replace, word by word."""
    workdir: fields.ImagePath | None = None
    """The folder that the command starts in."""
    user: fields.User | None = None
    """Whom the command runs as; the base's user where not given."""
    checks: Annotated[tuple[fields.Check, ...], AfterValidator(_unique)] = ()
    """What `verify` tries beside its own checks."""
    run: Run | None = None
    """How the image is meant to be run."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The Python packages wanted, as requirements, with what listed files ask for."""
        apart = {requirement_name(text) for text in (*self.exclude, *self.build_after_torch)}
        texts: list[str] = []
        for item in self.wanted:
            if isinstance(item, str):
                texts.append(item)
            elif item.listing is not None:
                listed = item.listing.requirements
                texts += [text for text in listed if requirement_name(text) not in apart]
        return combine(texts)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets, in the order given."""
        return self.target

    @property
    def uses_base_torch(self) -> bool:
        """Whether torch is the base's own, which nothing may replace."""
        return self.torch is not None and self.torch.from_ == "base"

    def index_url(self, name: str) -> str:
        """The URL of the index `name`, one of the recipe's or of PyTorch's own."""
        return self.indexes.get(name) or f"{PYTORCH_INDEX}{name}"

    @property
    def index_urls(self) -> dict[str, str]:
        """Every index that the recipe names, PyTorch's own among them, and its URL."""
        own = [] if self.torch is None or self.torch.index is None else [self.torch.index]
        return {name: self.index_url(name) for name in dict.fromkeys([*self.indexes, *own])}

    @field_validator("wanted", mode="after")
    @classmethod
    def _check_wanted(
        cls, wanted: tuple[str | Listed, ...], info: ValidationInfo
    ) -> tuple[str | Listed, ...]:
        python: str | None = info.data.get("python")
        flaws = [
            Flaw(message=f"{listing.source} is for Python {listing.requires_python}", at=(index,))
            for index, listing in listings(wanted)
            if python is not None and not admits(listing.requires_python, python)
        ]
        refuse(flaws)
        return wanted

    @field_validator("torch", mode="after")
    @classmethod
    def _check_torch(cls, torch: Torch | None, info: ValidationInfo) -> Torch | None:
        flaws = []
        if torch is not None and (place := dict(asked(info)).get("torch")):
            flaws.append(Flaw(message=f"{place} names torch too", hint="keep one of the two"))
        if torch is not None and torch.index is not None:
            flaws += _unknown_index(torch.index, info, "index")
        refuse(flaws)
        return torch

    @field_validator("accept", mode="after")
    @classmethod
    def _check_accept(cls, accept: tuple[Accept, ...], info: ValidationInfo) -> tuple[Accept, ...]:
        torch: Torch | None = info.data.get("torch")
        if accept and "torch" in info.data and (torch is None or torch.from_ != "base"):
            raise Refused(Flaw(message="has a meaning with `torch: {from: base}` only"))
        return accept

    @field_validator("build_after_torch", mode="after")
    @classmethod
    def _check_built(cls, built: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if built and info.data.get("torch", ...) is None:
            raise Refused(Flaw(message="needs `torch`: it says what to compile against"))
        packages = dict(asked(info, listed=False))
        flaws = [
            Flaw(message="is in `packages` too", hint="keep one of the two", at=(index,))
            for index, text in enumerate(built)
            if requirement_name(text) in packages
        ]
        refuse(flaws)
        return built

    @field_validator("sources", mode="after")
    @classmethod
    def _check_sources(
        cls, sources: Mapping[str, tuple[Source, ...]], info: ValidationInfo
    ) -> Mapping[str, tuple[Source, ...]]:
        flaws = _unused_indexes(sources, info)
        seen: dict[str, str] = {}
        for key, choices in sources.items():
            first = seen.setdefault(canonicalize_name(key), key)
            if first != key:
                flaws.append(Flaw(message=f"is the same package as `{first}`", at=(key,)))
            for number, source in enumerate(choices):
                if source.index is not None:
                    flaws += _unknown_index(source.index, info, key, number, "index")
        refuse(flaws)
        return sources

    @field_validator("exclude", mode="after")
    @classmethod
    def _check_exclude(cls, exclude: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        wanted = dict(_wanted(info))
        flaws = [
            Flaw(message=f"{place} asks for the same package", at=(index,))
            for index, name in enumerate(exclude)
            if (place := wanted.get(canonicalize_name(name)))
        ]
        refuse(flaws + misplaced(info, {*map(canonicalize_name, exclude), *wanted}))
        return exclude

    @field_validator("env", mode="after")
    @classmethod
    def _check_env(cls, env: Mapping[str, str]) -> Mapping[str, str]:
        if "PATH" in env:
            raise Refused(
                Flaw(
                    message="is set by spark-build: the environment first, then the base's own",
                    hint="give the full path of a program where it is called",
                    at=("PATH",),
                )
            )
        return env

    @field_validator("files", mode="after")
    @classmethod
    def _check_files(cls, files: tuple[File, ...]) -> tuple[File, ...]:
        places = [file.to for file in files]
        flaws = find_repeats(places, "is the place of two files") + [
            Flaw(message=f"`{above}` is a file here, not a folder", at=(index, "to"))
            for index, file in enumerate(files)
            for above in places
            if file.to.startswith(f"{above}/")
        ]
        refuse(flaws)
        return files

    @field_validator("entrypoint", mode="after")
    @classmethod
    def _check_entrypoint(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if words and not words[0].strip():
            raise Refused(Flaw(message="must be the name of a program", at=(0,)))
        return words


def _unknown_index(name: str, info: ValidationInfo, *at: str | int) -> list[Flaw]:
    indexes: Mapping[str, str] | None = info.data.get("indexes")
    if indexes is None or name in indexes or _PYTORCH_NAME.fullmatch(name):
        return []
    meant = nearest(name, indexes)
    hint = f"did you mean `{meant}`?" if meant else f"write `indexes: {{{name}: https://…}}`"
    return [Flaw(message=f"`indexes` has no entry `{name}`", hint=hint, at=at)]


def _unused_indexes(sources: Mapping[str, tuple[Source, ...]], info: ValidationInfo) -> list[Flaw]:
    """Indexes are asked only for the packages that name them, so one that none names is lost."""
    if "torch" not in info.data:  # it is wrong itself, and may have named one
        return []
    torch: Torch | None = info.data["torch"]
    named = {source.index for choices in sources.values() for source in choices}
    named.add(None if torch is None else torch.index)
    return [
        Flaw(
            message="nothing takes a package from this index",
            hint=f"name it where it is meant: `torch: {{…, index: {name}}}`, or under `sources`",
            at=("indexes", name),
            absolute=True,
        )
        for name in info.data.get("indexes", ())
        if name not in named
    ]


def _wanted(info: ValidationInfo) -> Iterator[tuple[str, str]]:
    """What the recipe itself asks for by name, and where it does."""
    yield from asked(info, listed=False)
    for index, text in enumerate(info.data.get("build_after_torch", ())):
        yield requirement_name(text), f"`build_after_torch[{index}]`"
    for key in info.data.get("sources", ()):
        yield canonicalize_name(key), f"`sources.{key}`"
    torch: Torch | None = info.data.get("torch")
    if torch is not None:
        yield "torch", "`torch`"
