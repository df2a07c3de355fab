"""Bumping: which pins move, how far, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.errors import LockError
from builder.lock.changes.bump import Query, propose, propose_base, with_base
from builder.lock.changes.edit import Change, apply
from builder.lock.model import LockedWheel
from builder.lock.wheels import Request
from builder.oci.reference import Reference
from builder.oci.registry import RemoteImage
from builder.recipe import LoadedRecipe, load_recipe, requirements
from builder.targets import find_target

GB10 = find_target("gb10")
DEBIAN = "base: {debian: {suite: trixie, packages: [python3]}}\n"
NGC = "base: {image: 'nvcr.io/nvidia/pytorch:25.11-py3'}\n"

Load = Callable[..., LoadedRecipe]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def read(text: str, *, base: str = DEBIAN) -> LoadedRecipe:
        path = tmp_path / "recipe.yaml"
        path.write_text(f"name: demo\ntarget: gb10\n{base}{text}")
        return load_recipe(path)

    return read


@dataclass
class Index:
    """Stands in for a resolver over an index of `versions` without dependencies."""

    versions: Mapping[str, Sequence[str]]
    asked: list[Request] = field(default_factory=list)

    def __call__(self, request: Request) -> tuple[LockedWheel, ...]:
        self.asked.append(request)
        limits = [Requirement(text) for text in request.settings["constraint-dependencies"]]
        wanted = [Requirement(text) for text in request.requirements]
        return tuple(self._wheel(item, limits) for item in wanted if self._applies(item))

    def _applies(self, item: Requirement) -> bool:
        return item.marker is None or item.marker.evaluate({"platform_machine": "aarch64"})

    def _wheel(self, item: Requirement, limits: Sequence[Requirement]) -> LockedWheel:
        specifier = item.specifier
        for limit in limits:
            specifier &= limit.specifier if limit.name == item.name else SpecifierSet()
        found = sorted(specifier.filter(self.versions[item.name]), key=Version)
        if not found:
            raise LockError(f"no {item.name}{specifier}")
        return LockedWheel(name=item.name, version=str(found[-1]), url="", sha256="0" * 64, size=1)


VERSIONS = {
    "torch": ("2.9.0", "2.13.0", "2.14.0rc1"),
    "vllm": ("0.13.0", "0.32.0", "0.33.0"),
    "numpy": ("2.0", "2.4"),
    "transformers": ("4.57.1", "5.0.0"),
}


def query(loaded: LoadedRecipe, index: Index, **settings: object) -> Query:
    request = Request(
        requirements=requirements(loaded.recipe),
        platform="linux/arm64",
        python="3.13",
        glibc="2.41",
        settings={"prerelease": "if-necessary", **settings},
    )
    return Query(request=request, resolve=index)


def moves(changes: Sequence[Change]) -> list[tuple[str, str, str]]:
    return [(change.field, change.old, change.new) for change in changes]


def test_exact_pins_move_and_ranges_stay(load: Load) -> None:
    loaded = load(
        "torch: {from: wheel, version: '2.9'}\n"
        "packages:\n"
        "  - Transformers[torch] == 4.57.1 ; python_version >= '3.10'\n"
        "  - vllm==0.13.0\n"
        "  - numpy>=2,<3\n"
    )
    index = Index({**VERSIONS, "torch": ("2.9", "2.13.0")})
    changes = propose(loaded, [query(loaded, index)])
    assert moves(changes) == [
        ("torch.version", "2.9", "2.13.0"),
        (
            "packages[0]",
            "Transformers[torch] == 4.57.1 ; python_version >= '3.10'",
            "Transformers[torch] == 5.0.0 ; python_version >= '3.10'",
        ),
        ("packages[1]", "vllm==0.13.0", "vllm==0.33.0"),
    ]
    assert [change.line for change in changes] == [4, 6, 7]
    assert {change.reason for change in changes} == {
        "the newest that resolves with the rest of the recipe"
    }
    assert set(index.asked[0].requirements) == {
        'transformers[torch]>=4.57.1; python_version >= "3.10"',
        "vllm>=0.13.0",
        "numpy<3,>=2",
        "torch>=2.9",
    }


@pytest.mark.parametrize(
    "packages",
    ["[vllm]", "[vllm~=0.13.0]", "['vllm==0.13.*']", "['vllm===0.13.0']", "['vllm==0.13.0,!=1']"],
)
def test_what_is_no_exact_pin_asks_nothing(load: Load, packages: str) -> None:
    loaded, index = load(f"packages: {packages}\n"), Index(VERSIONS)
    assert propose(loaded, [query(loaded, index)]) == ()
    assert index.asked == []


def test_a_name_that_ends_as_the_version_does(load: Load) -> None:
    loaded = load("packages: ['foo-2 (==2)']\n")
    changes = propose(loaded, [query(loaded, Index({"foo-2": ("2", "3")}))])
    assert moves(changes) == [("packages[0]", "foo-2 (==2)", "foo-2 (==3)")]


def test_what_a_source_pins_stays_and_takes_part(load: Load) -> None:
    loaded = load(
        "packages: [vllm==0.13.0, numpy==2.0, transformers==4.57.1]\n"
        "indexes: {ours: 'https://index.example/simple'}\n"
        "sources:\n"
        "  vllm: [{wheel: 'https://wheels.example/vllm-0.13.0-py3-none-any.whl'}]\n"
        "  transformers: [{git: 'https://git.example/t', ref: v4.57.1}]\n"
        "  numpy: [{index: ours}]\n"
    )
    index = Index(VERSIONS)
    assert moves(propose(loaded, [query(loaded, index)])) == [
        ("packages[1]", "numpy==2.0", "numpy==2.4")
    ]
    assert "vllm==0.13.0" in index.asked[0].requirements


def test_a_local_part_moves_along_only_where_the_pin_has_one(load: Load) -> None:
    loaded = load("packages: [vllm==0.13.0+cu130, numpy==2.0]\n")
    index = Index({"vllm": ("0.13.0+cu130", "0.19.0+cu130"), "numpy": ("2.0", "2.4+local")})
    assert moves(propose(loaded, [query(loaded, index)])) == [
        ("packages[0]", "vllm==0.13.0+cu130", "vllm==0.19.0+cu130"),
        ("packages[1]", "numpy==2.0", "numpy==2.4"),
    ]
    assert "vllm>=0.13.0" in index.asked[0].requirements


def test_what_an_audit_refused_is_left_out_and_named(load: Load) -> None:
    loaded, index = load("packages: [vllm==0.13.0]\n"), Index(VERSIONS)
    given = query(loaded, index, **{"constraint-dependencies": ["numpy<3"]})
    refused = {"VLLM": {"0.33.0"}, "triton": {"3.7"}}
    [change] = propose(loaded, [given], not_admitted=refused)
    assert change.new == "vllm==0.32.0"
    assert change.reason.endswith("with the rest of the recipe; not admitted: 0.33.0")
    limits = index.asked[0].settings["constraint-dependencies"]
    assert limits == ["numpy<3", "triton!=3.7", "vllm!=0.33.0"]


def test_the_present_version_may_always_stay(load: Load) -> None:
    loaded, index = load("packages: [vllm==0.33]\n"), Index(VERSIONS)
    assert propose(loaded, [query(loaded, index)], not_admitted={"vllm": {"0.33.0"}}) == ()


def test_several_targets_agree_on_the_lowest(load: Load) -> None:
    loaded = load("packages: [vllm==0.13.0, numpy==2.0]\n")
    lagging = Index({**VERSIONS, "vllm": ("0.13.0", "0.20.0")})
    leading = Index({**VERSIONS, "vllm": ("0.13.0", "0.20.0", "0.33.0")})
    changes = propose(loaded, [query(loaded, leading), query(loaded, lagging)])
    assert moves(changes) == [
        ("packages[0]", "vllm==0.13.0", "vllm==0.20.0"),
        ("packages[1]", "numpy==2.0", "numpy==2.4"),
    ]
    assert changes[0].reason.endswith("the rest of the recipe, for every target")
    assert "vllm<=0.20.0,>=0.13.0" in leading.asked[1].requirements


def test_builds_of_one_version_agree(load: Load) -> None:
    loaded = load("torch: {from: wheel, version: 2.9.0}\n")
    indexes = [Index({"torch": ("2.9.0", text)}) for text in ("2.13.0+cu130", "2.13.0")]
    changes = propose(loaded, [query(loaded, index) for index in indexes])
    assert moves(changes) == [("torch.version", "2.9.0", "2.13.0")]


def test_a_package_of_another_platform_stays(load: Load) -> None:
    loaded = load("packages: [\"vllm==0.13.0; platform_machine == 'x86_64'\", numpy==2.0]\n")
    [change] = propose(loaded, [query(loaded, Index(VERSIONS))])
    assert change.field == "packages[1]"


def test_what_is_proposed_can_be_applied_and_loads(load: Load) -> None:
    loaded = load("torch: {from: wheel, version: 2.9.0} # ours\npackages: [vllm==0.13.0]\n")
    changes = propose(loaded, [query(loaded, Index(VERSIONS))])
    text = loaded.path.read_text()
    loaded.path.write_text(apply(text, changes))
    moved = load_recipe(loaded.path).recipe
    assert requirements(moved) == ("torch==2.13.0", "vllm==0.33.0")


@dataclass
class Images:
    """Stands in for a registry: tags with the environment of their images, by platform."""

    environments: Mapping[str, Mapping[str, str]]
    absent: frozenset[tuple[str, str]] = frozenset()
    config: bytes | None = None
    asked: list[str] = field(default_factory=list)

    def tags(self, reference: Reference) -> tuple[str, ...]:
        return tuple(self.environments)

    def image(self, reference: Reference, platform: str) -> RemoteImage:
        assert reference.tag is not None
        self.asked.append(reference.tag)
        if (reference.tag, platform) in self.absent:
            raise LockError(f"{reference}: holds no image for {platform}")
        entries = [f"{key}={value}" for key, value in self.environments[reference.tag].items()]
        config = json.dumps({"config": {"Env": entries}}).encode()
        return RemoteImage(
            reference=reference,
            index=f"sha256:{'e' * 64}",
            digest=f"sha256:{'d' * 64}",
            manifest=b"",
            config=config if self.config is None else self.config,
            layers=(),
        )


PYTORCH = {
    "25.11-py3": {"CUDA_VERSION": "13.0.2.006"},
    "26.08-py3": {"CUDA_VERSION": "13.4.0", "PYTORCH_VERSION": "2.14.0a0+4fdf77b"},
    "27.01-py3": {"CUDA_VERSION": "14.0.1", "PYTORCH_VERSION": "2.16.0a0+1234567"},
    "27.02-py3-igpu": {},
}


def test_the_base_moves_within_its_cuda(load: Load) -> None:
    loaded, images = load("", base=NGC), Images(PYTORCH)
    change = propose_base(loaded, [GB10], images)
    assert change == Change(
        at=("base", "image"),
        line=3,
        old="nvcr.io/nvidia/pytorch:25.11-py3",
        new="nvcr.io/nvidia/pytorch:26.08-py3",
        reason="the newest tag of its kind with CUDA 13",
    )
    assert images.asked == ["27.01-py3", "26.08-py3"]
    assert with_base(loaded, change).recipe.base.image == change.new
    assert loaded.recipe.base.image == change.old


def test_the_torch_of_the_new_base_is_told(load: Load) -> None:
    loaded = load("torch: {from: base}\n", base=NGC)
    change = propose_base(loaded, [GB10], Images(PYTORCH))
    assert change is not None
    assert change.reason == (
        "the newest tag of its kind with CUDA 13; its torch is 2.14.0a0+4fdf77b940.nv26.08, "
        "that of the present one is 2.10.0a0+b558c986e8.nv25.11"
    )


def test_a_tag_without_the_platform_or_not_admitted_is_passed_over(load: Load) -> None:
    loaded = load("", base=NGC)
    tags = ("25.11-py3", "26.01-py3", "26.02-py3", "26.03-py3")
    absent = frozenset({("26.03-py3", "linux/arm64")})
    images = Images({tag: {} for tag in tags}, absent=absent)
    change = propose_base(loaded, [GB10], images, not_admitted={"26.02-py3"})
    assert change is not None
    assert change.new.endswith(":26.01-py3")


def test_a_digest_moves_with_its_tag(load: Load) -> None:
    pinned = f"base: {{image: 'nvcr.io/nvidia/pytorch:25.11-py3@sha256:{'a' * 64}'}}\n"
    change = propose_base(load("", base=pinned), [GB10], Images(PYTORCH))
    assert change is not None
    assert change.new == f"nvcr.io/nvidia/pytorch:26.08-py3@sha256:{'e' * 64}"


@pytest.mark.parametrize(
    "base",
    [DEBIAN, "base: {image: nvcr.io/nvidia/pytorch}\n", "base: {image: 'a.example/b:latest'}\n"],
)
def test_a_base_without_a_release_stays(load: Load, base: str) -> None:
    assert propose_base(load("", base=base), [GB10], Images(PYTORCH)) is None


@pytest.mark.parametrize("config", [b'{"config": "x"}', b'{"config": {"Env": [1]}}', b"[]"])
def test_an_odd_config_says_nothing(load: Load, config: bytes) -> None:
    change = propose_base(load("", base=NGC), [GB10], Images(PYTORCH, config=config))
    assert change is not None
    assert change.new.endswith(":27.01-py3")
