"""Recipes: what is good is read, what is not is named with its line and field, all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.document import parse_document, validate
from builder.errors import Problem, RecipeError
from builder.recipe import (
    LoadedRecipe,
    Recipe,
    inputs,
    load_recipe,
    requirements,
    schema,
    unsupported,
)
from builder.recipe.fields import pinned_version
from builder.targets import find_target
from tests.conftest import Golden

DOCS = Path(__file__).resolve().parents[2] / "docs"

SMALL = "name: demo\ntarget: gb10\nbase: {debian: {suite: trixie, packages: [python3]}}\n"

FULL = """\
name: vllm-serve
description: >
  OpenAI-compatible
  vLLM server
target: [gb10, thor]
base:
  image: registry.example/nvidia/cuda:13.0.2-base-ubuntu24.04
python: 3.10
indexes: {ours: https://index.example/simple}
resolve:
  exclude_newer: 2026-11-01
  prerelease: allow
  constraints: [numpy<3]
  overrides: [numpy==2.0]
torch: {from: wheel, version: 2.9.0, index: cu130}
packages: [vllm==0.13.0, transformers]
sources:
  vllm:
    - wheel: https://wheels.example/vllm-0.13.0%2Bcu130-cp38-abi3-manylinux_2_35_aarch64.whl
    - index: ours
    - git: https://git.example/vllm
      ref: v0.13.0
      env: {MAX_JOBS: 4}
build_after_torch: [deepspeed==0.19.8]
exclude: [flash-attn]
system: [git, libnuma1]
env: {HF_HOME: /data/hf, GREETING: 'say "$HOME" # \\ ünï `x` ${{ y }}'}
labels: {org.example.team: yes}
files: [{from: ./serve.py, to: /opt/app/serve.py, mode: 0755}]
entrypoint: [vllm, serve]
cmd: [--help]
workdir: /opt/app
user: 1000:1000
checks: [matmul, libcudart, "import:vllm.engine"]
run: {ports: [8000], mounts: [{host: ~/.cache, to: /data/hf, read_only: true}]}
"""


def load(text: str, path: Path = Path("recipe.yaml")) -> LoadedRecipe:
    document = parse_document(text.encode(), path)
    return LoadedRecipe(recipe=validate(Recipe, document), document=document)


def problems_of(text: str, path: Path = Path("recipe.yaml")) -> tuple[Problem, ...]:
    with pytest.raises(RecipeError) as caught:
        load(text, path)
    return caught.value.problems


@pytest.fixture
def full(tmp_path: Path) -> LoadedRecipe:
    (tmp_path / "serve.py").touch()
    (tmp_path / "recipe.yaml").write_text(FULL, encoding="utf-8")
    return load_recipe(tmp_path / "recipe.yaml")


def test_every_key_is_read(full: LoadedRecipe) -> None:
    recipe = full.recipe
    assert recipe.description == "OpenAI-compatible vLLM server"
    assert recipe.targets == ("gb10", "thor")
    assert recipe.base.image == "registry.example/nvidia/cuda:13.0.2-base-ubuntu24.04"
    assert recipe.python == "3.10"
    assert recipe.resolve.exclude_newer == "2026-11-01T00:00:00Z"
    assert recipe.torch is not None
    assert (recipe.torch.from_, recipe.torch.version) == ("wheel", "2.9.0")
    assert [source.ref for source in recipe.sources["vllm"]] == [None, None, "v0.13.0"]
    assert recipe.sources["vllm"][2].env == {"MAX_JOBS": "4"}
    assert recipe.env["GREETING"] == 'say "$HOME" # \\ ünï `x` ${{ y }}'
    assert recipe.labels == {"org.example.team": "yes"}
    (file,) = recipe.files
    assert (file.source, file.to, file.mode) == ("serve.py", "/opt/app/serve.py", 0o755)
    assert recipe.run is not None
    assert recipe.run.ports == (8000,)
    assert recipe.run.mounts[0].read_only
    assert full.path == full.folder / "recipe.yaml"


def test_the_smallest_recipe_has_defaults() -> None:
    recipe = load(SMALL).recipe
    assert recipe.targets == ("gb10",)
    assert (recipe.python, recipe.torch, recipe.packages, recipe.env) == (None, None, (), {})
    assert recipe.resolve.prerelease == "if-necessary"


def test_indexes_have_names_of_ours_and_of_pytorch(full: LoadedRecipe) -> None:
    assert full.recipe.index_url("ours") == "https://index.example/simple"
    assert full.recipe.index_url("cu130") == "https://download.pytorch.org/whl/cu130"
    mirrored = load(
        SMALL + "indexes: {cu130: https://index.example/cu130}\n"
        "torch: {from: wheel, version: 2.13.0, index: cu130}\n"
    )
    assert mirrored.recipe.index_url("cu130") == "https://index.example/cu130"


# Each: what stands in the recipe beside or instead of SMALL's keys, and its one problem.
REFUSED: list[tuple[str, str, str]] = [
    # unknown and missing
    ("pakages: [numpy]", "pakages", "unknown key"),
    ("torch: {from: wheel, version: 2.9.0, indx: cu130}", "torch.indx", "unknown key"),
    ("torch: {version: 2.9.0}", "torch.from", "is missing"),
    ("torch: {from: wheel}", "torch.version", "is missing: `from: wheel` needs it"),
    ("packages:", "packages", "has no value"),
    # shapes
    ("packages: numpy", "packages", "expected a list, found text"),
    ("env: [A=b]", "env", "expected a mapping (`key: value`), found a list"),
    ("torch: {from: wheels, version: 2.9.0}", "torch.from", "expected 'wheel' or 'base'"),
    ("run: {ports: [70000]}", "run.ports[0]", "must be less than or equal to 65535"),
    ("run: {ports: [http]}", "run.ports[0]", "expected a whole number, found 'http'"),
    ("python: '3'", "python", "must be a Python version such as 3.12"),
    ("torch: {from: wheel, version: '>=2.9'}", "torch.version", "must be one version"),
    # what would be in the lock for all to read
    ("indexes: {a: 'https://index.example/simple?token=x'}", "indexes.a", "may hold a secret"),
    ("indexes: {a: 'https://user:pa/ss@index.example/'}", "indexes.a", "must be a URL"),
    # requirements
    ("packages: [./wheels/x.whl]", "packages[0]", "is not a requirement"),
    ("packages: ['x @ https://index.example/x.whl']", "packages[0]", "names a URL"),
    ("packages: [numpy, NumPy>=2]", "packages[1]", "`numpy` stands here twice"),
    ("packages: [a_b, a.b]", "packages[1]", "`a-b` stands here twice"),
    ("packages: [numpy =]", "packages[0]", "is not a requirement"),
    ("exclude: [numpy>2]", "exclude[0]", "must be a package's name, without a version"),
    ("resolve: {constraints: [a, a<2]}", "resolve.constraints[1]", "`a` stands here twice"),
    ("resolve: {exclude_newer: 2026-02-31}", "resolve.exclude_newer", "must be a date"),
    ("resolve: {exclude_newer: 1 week}", "resolve.exclude_newer", "must be a date"),
    ("resolve: {prerelease: perhaps}", "resolve.prerelease", "expected 'disallow'"),
    # keys that exclude each other
    ("packages: [x]\nexclude: [X]", "exclude[0]", "`packages[0]` asks for the same package"),
    ("torch: {from: wheel, version: 2.9.0}\nexclude: [torch]", "exclude[0]", "`torch` asks for"),
    ("packages: [torch]\ntorch: {from: base}", "torch", "`packages[0]` names torch too"),
    ("torch: {from: base, version: 2.9.0}", "torch.version", "has no meaning with `from: base`"),
    ("torch: {from: base, index: cu130}", "torch.index", "has no meaning with `from: base`"),
    (
        "torch: {from: wheel, version: 2.9.0, index: ours}",
        "torch.index",
        "`indexes` has no entry `ours`",
    ),
    ("indexes: {ours: https://index.example/}", "indexes.ours", "nothing takes a package from"),
    ("build_after_torch: [deepspeed]", "build_after_torch", "needs `torch`"),
    (
        "torch: {from: base}\npackages: [x]\nbuild_after_torch: [X==1]",
        "build_after_torch[0]",
        "is in `packages` too",
    ),
    ("sources: {x: [{index: ours}]}", "sources.x[0].index", "`indexes` has no entry `ours`"),
    ("sources: {x: [{}]}", "sources.x[0]", "it has none of them"),
    (
        "sources: {x: [{wheel: https://index.example/x.whl, git: https://git.example/x}]}",
        "sources.x[0]",
        "it has wheel and git",
    ),
    ("sources: {x: [{git: https://git.example/x}]}", "sources.x[0].ref", "is missing"),
    (
        "sources: {x: [{wheel: https://index.example/x.whl, ref: main}]}",
        "sources.x[0].ref",
        "belongs to `git` only",
    ),
    ("sources: {x: []}", "sources.x", "must hold at least one item"),
    (
        "sources: {x: [{index: cpu, subdirectory: python}]}",
        "sources.x[0].subdirectory",
        "belongs to `git` only",
    ),
    (
        "sources: {x: [{git: https://git.example/x, ref: main, subdirectory: ../y}]}",
        "sources.x[0].subdirectory",
        "must be a path inside the repository",
    ),
    (
        "accept: [{requires: torch==2.11.0, reason: why}]",
        "accept",
        "with `torch: {from: base}` only",
    ),
    ("torch: {from: base}\naccept: [{requires: torch}]", "accept[0].reason", "is missing"),
    (
        "sources: {x: [{index: cpu}], X: [{index: cpu}]}",
        "sources.X",
        "is the same package as `x`",
    ),
    ("sources: {x: [{wheel: https://index.example/x.zip}]}", "sources.x[0].wheel", "a .whl file"),
    # what is rendered
    ('env: {A: "one\\ntwo"}', "env.A", "holds a line break"),
    ('env: {A: "one\\ttwo"}', "env.A", "holds the character U+0009"),
    ('labels: {a: "\\u2028"}', "labels.a", "holds a line break"),
    ('entrypoint: ["a\\nb"]', "entrypoint[0]", "holds a line break"),
    ('entrypoint: [""]', "entrypoint[0]", "must be the name of a program"),
    ("env: {1A: b}", "env.1A", "must be letters, digits and _"),
    ("env: {PATH: /x}", "env.PATH", "is set by spark-build"),
    ("labels: {'a b': c}", "labels.a b", "must be letters and digits"),
    ("workdir: app", "workdir", "must be an absolute path in the image"),
    ("workdir: /app/../etc", "workdir", "must be a plain path"),
    ("workdir: //app", "workdir", "must be a plain path"),
    ("workdir: '/a b'", "workdir", "may hold letters, digits and . _ + @ = , - / only"),
    ("workdir: /proc/self", "workdir", "lies in /proc, which belongs to the kernel"),
    ("workdir: /opt/venv", "workdir", "lies in /opt/venv, which belongs to spark-build"),
    ("workdir: /opt/.wh.app", "workdir", "begins with .wh."),
    ("user: '0 ; x'", "user", "must be USER or USER:GROUP"),
    ("checks: [sdpa]", "checks[0]", "must be `matmul`, `libcudart` or `import:NAME`"),
    ("system: [Git]", "system[0]", "must be a distribution package's name"),
    # secrets
    ("env: {HF_TOKEN: x}", "env.HF_TOKEN", "looks like a secret"),
    ("env: {OPENAI_API_KEY: x}", "env.OPENAI_API_KEY", "looks like a secret"),
    ("env: {PGPASSWORD: x}", "env.PGPASSWORD", "looks like a secret"),
    ("env: {AWS_SECRET_ACCESS_KEY: x}", "env.AWS_SECRET_ACCESS_KEY", "looks like a secret"),
    ("env: {PROXY: 'http://me:hush@proxy.example'}", "env.PROXY", "a URL with a user or password"),
    ("indexes: {a: 'https://hush@index.example/'}", "indexes.a", "a URL with a user or password"),
    # files
    ("files: [{from: ../x, to: /x}]", "files[0].from", "must be a path relative to the recipe's"),
    ("files: [{from: /etc/passwd, to: /x}]", "files[0].from", "must be a path relative"),
    ("files: [{from: a, to: /x, mode: 4755}]", "files[0].mode", "must be three octal digits"),
    ("files: [{from: a, to: /}]", "files[0].to", "must be the path of a file"),
    ("files: [{from: a, to: /opt/venv/bin/python}]", "files[0].to", "belongs to spark-build"),
    ("files: [{from: a, to: /x}, {from: a, to: /x}]", "files[1]", "is the place of two files"),
    ("files: [{from: a, to: /x}, {from: a, to: /x/y}]", "files[1].to", "`/x` is a file here"),
]


@pytest.mark.parametrize(("text", "field", "message"), REFUSED)
def test_what_is_refused_is_named(text: str, field: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    path = tmp_path / "recipe.yaml"
    found = problems_of(SMALL + text + "\n", path)
    first = len(SMALL.splitlines()) + 1
    lines = range(first, first + len(text.splitlines()))
    assert [problem.field for problem in found] == [field]
    (problem,) = found
    assert message in problem.message
    assert (problem.file, problem.line in lines) == (str(path), True)
    assert "hush" not in str(found)


HEADS: list[tuple[str, int, str, str]] = [
    ("target: gb10\nbase: {oci: ./x}\n", 1, "name", "is missing"),
    ("name: a.b\ntarget: gb10\nbase: {oci: x}\n", 1, "name", "must be at most 63 lower-case"),
    ("name: a\ntarget: gb01\nbase: {oci: x}\n", 2, "target", "no target is called `gb01`"),
    ("name: a\ntarget: [thor, thor]\nbase: {oci: x}\n", 2, "target[1]", "stands here twice"),
    ("name: a\ntarget: []\nbase: {oci: x}\n", 2, "target", "must hold at least one item"),
    ("name: a\ntarget: gb10\nbase: {}\n", 3, "base", "needs exactly one of image, debian and oci"),
    ("name: a\ntarget: gb10\nbase: {oci: x, image: y}\n", 3, "base", "it has image and oci"),
    ("name: a\ntarget: gb10\nbase: {image: 'Not An Image'}\n", 3, "base.image", "image reference"),
    (
        "name: a\ntarget: gb10\nbase:\n  debian:\n    suite: trixie\n    packages: []\n",
        6,
        "base.debian.packages",
        "must hold at least one item",
    ),
    (
        "name: a\ntarget: gb10\nbase:\n  debian:\n    suit: trixie\n    packages: [a, 'b=1']\n",
        5,
        "base.debian.suit",
        "unknown key",
    ),
]


@pytest.mark.parametrize(("text", "line", "field", "message"), HEADS)
def test_the_required_keys_are_checked(text: str, line: int, field: str, message: str) -> None:
    found = {problem.field: problem for problem in problems_of(text)}
    assert found[field].line == line
    assert message in found[field].message


def test_all_problems_come_at_once() -> None:
    text = (
        "name: A\n"
        "target: [gb01, gb10]\n"
        "base: {debian: {suite: trixie, packages: [python3]}}\n"
        "torch: {from: wheel, version: 2.13.0, index: nowhere}\n"
        "packages: [torch, numpy]\n"
        "exclude: [numpy]\n"
        "env: {HF_TOKEN: hush, API_KEY: hush}\n"
        "wrokdir: /x\n"
        "checks:\n"
    )
    found = problems_of(text)
    assert [(problem.line, problem.field) for problem in found] == [
        (1, "name"),
        (2, "target[0]"),
        (4, "torch"),
        (4, "torch.index"),
        (6, "exclude[0]"),
        (7, "env.HF_TOKEN"),
        (7, "env.API_KEY"),
        (8, "wrokdir"),
        (9, "checks"),
    ]
    error = RecipeError(found)
    assert error.exit_code == 2
    assert "did you mean `workdir` instead of `wrokdir`?" in (error.hint or "")


@pytest.mark.parametrize(
    "line",
    [
        "env: {HF_TOKEN: ''}",
        "env: {MAX_TOKENS: 5, TOKENIZERS_PARALLELISM: false, TIKTOKEN_CACHE_DIR: /x}",
        "env: {DB_PASSWORD_FILE: /run/secrets/db, HF_TOKEN_PATH: /data/token}",
        "env: {PROXY: 'http://proxy.example:3128', AT: 'a@b.example'}",
        "sources: {x: [{git: 'ssh://git@git.example/x', ref: main}]}",
        "packages: ['x[b,a]>=1 ; python_version > \"3\"']",
    ],
)
def test_what_only_looks_suspicious_passes(line: str) -> None:
    assert load(SMALL + line).recipe.name == "demo"


def test_files_are_looked_for_in_the_recipes_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside").touch()
    (inside / "folder").mkdir()
    (inside / "link").symlink_to("../outside")
    (inside / "loop").symlink_to("loop")
    (inside / "good").touch()
    names = ["good", "absent", "folder", "link", "loop"]
    files = "".join(f"  - {{from: {name}, to: /{name}}}\n" for name in names)
    found = problems_of(f"{SMALL}files:\n{files}", inside / "recipe.yaml")
    assert [(problem.line, problem.field) for problem in found] == [
        (6, "files[1].from"),
        (7, "files[2].from"),
        (8, "files[3].from"),
        (9, "files[4].from"),
    ]
    words = [problem.message for problem in found]
    assert "there is no file" in words[0]
    assert "is a folder" in words[1]
    assert "leads out of" in words[2]


def test_what_this_version_cannot_do_is_said(full: LoadedRecipe) -> None:
    found = unsupported(full)
    assert [(problem.line, problem.field) for problem in found] == [
        (24, "build_after_torch"),
        (26, "system"),
        (35, "run"),
    ]
    assert all("not supported by this version" in problem.message for problem in found)
    assert unsupported(load(SMALL + "system: [git]\nchecks: [matmul]\n")) == ()


@pytest.mark.parametrize(
    "text",
    [
        "torch: {from: base}\n",
        "sources: {x: [{git: 'https://git.example/x', ref: main, subdirectory: python}]}\n",
        "torch: {from: base}\naccept: [{requires: torch==2.11.0, reason: an API that is there}]\n",
    ],
)
def test_torch_of_the_base_and_sources_are_supported(text: str) -> None:
    assert unsupported(load(SMALL + text)) == ()
    image = SMALL.replace("{debian: {suite: trixie, packages: [python3]}}", "{image: cuda:13.0}")
    assert unsupported(load(image + text)) == ()


def test_requirements_have_one_spelling() -> None:
    text = SMALL + "packages: ['B_b [z,a] >=1,<2', a]\ntorch: {from: wheel, version: 2.13}\n"
    assert requirements(load(text).recipe) == ("a", "b-b[a,z]<2,>=1", "torch==2.13")


def test_inputs_are_what_a_resolution_depends_on(full: LoadedRecipe) -> None:
    assert inputs(full.recipe, find_target("gb10")) == {
        "platform": "linux/arm64",
        "base": {"image": "registry.example/nvidia/cuda:13.0.2-base-ubuntu24.04"},
        "python": "3.10",
        "requirements": ["torch==2.9.0", "transformers", "vllm==0.13.0"],
        "torch": {"from": "wheel", "version": "2.9.0", "index": "cu130"},
        "build_after_torch": ["deepspeed==0.19.8"],
        "exclude": ["flash-attn"],
        "system": ["git", "libnuma1"],
        "indexes": {"ours": "https://index.example/simple"},
        "sources": {
            "vllm": [
                {
                    "wheel": "https://wheels.example/"
                    "vllm-0.13.0%2Bcu130-cp38-abi3-manylinux_2_35_aarch64.whl"
                },
                {"index": "ours"},
                {"git": "https://git.example/vllm", "ref": "v0.13.0", "env": {"MAX_JOBS": "4"}},
            ]
        },
        "resolve": {
            "exclude_newer": "2026-11-01T00:00:00Z",
            "prerelease": "allow",
            "constraints": ["numpy<3"],
            "overrides": ["numpy==2.0"],
        },
    }


def test_inputs_do_not_change_with_order_spelling_and_what_is_only_shown() -> None:
    target = find_target("gb10")
    base = "target: gb10\nbase: {debian: {suite: trixie, packages: [python3, git]}}\n"
    one = load(f"name: one\n{base}packages: [Numpy, rich>=1]\nexclude: [A_b, c]\n").recipe
    two = load(
        "name: two\ntarget: [gb10, thor]\n"
        "base: {debian: {packages: [git, python3], suite: trixie}}\n"
        "packages: ['rich >= 1', numpy]\nexclude: [c, a-B]\nenv: {A: b}\ndescription: x\n"
        "entrypoint: [x]\nlabels: {a: b}\nresolve: {prerelease: if-necessary}\n"
    ).recipe
    assert inputs(one, target) == inputs(two, target)
    assert inputs(one, target) != inputs(one, find_target("rtx-pro-x86"))


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        ("2026-11-01", "2026-11-01T00:00:00Z"),
        ("2026-11-01T12:00:00Z", "2026-11-01T12:00:00Z"),
        ("2026-11-01T00:30:00+02:00", "2026-10-31T22:30:00Z"),
    ],
)
def test_a_moment_is_kept_in_utc(given_: str, kept: str) -> None:
    recipe = load(f"{SMALL}resolve: {{exclude_newer: '{given_}'}}\n").recipe
    assert recipe.resolve.exclude_newer == kept


NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True)
LINES = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=20)


@given(
    st.lists(NAMES, unique_by=canonicalize_name, max_size=5),
    st.dictionaries(st.from_regex(r"[A-OQ-Z][A-Z]{0,2}", fullmatch=True), LINES, max_size=4),
    st.lists(LINES.filter(str.strip), max_size=4),
)
def test_what_is_written_is_what_is_read(
    packages: list[str], env: dict[str, str], entrypoint: list[str]
) -> None:
    value: dict[str, Any] = {
        "name": "x",
        "target": "gb10",
        "base": {"oci": "layout"},
        "packages": packages,
        "env": env,
        "entrypoint": entrypoint,
    }
    recipe = load(yaml.safe_dump(value, allow_unicode=True, default_style='"')).recipe
    assert recipe.packages == tuple(packages)
    assert recipe.env == env
    assert recipe.entrypoint == tuple(entrypoint)
    assert [canonicalize_name(Requirement(text).name) for text in requirements(recipe)] == sorted(
        canonicalize_name(name) for name in packages
    )
    plain = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    again = load(json.dumps(plain, ensure_ascii=False)).recipe
    assert again == recipe


VALUES = st.recursive(
    st.text(max_size=8) | st.none() | st.integers() | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["from", "index", "git"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(Recipe.model_fields)), VALUES, max_size=8))
def test_any_values_give_a_recipe_or_a_recipe_error(value: dict[str, Any]) -> None:
    try:
        load(yaml.safe_dump(value, allow_unicode=True))
    except RecipeError as error:
        problems = error.problems
    else:
        problems = ()
    assert all(problem.file == "recipe.yaml" for problem in problems)


def test_the_schema_in_docs_is_the_generated_one(request: pytest.FixtureRequest) -> None:
    update: bool = request.config.getoption("--update-golden")
    text = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
    Golden(DOCS, update=update).check("recipe.schema.json", text)


def test_the_schema_closes_every_mapping_and_explains_every_key() -> None:
    generated = schema()
    parts = [generated, *generated["$defs"].values()]
    for part in parts:
        assert part["additionalProperties"] is False
        assert part["description"]
        for key, item in part["properties"].items():
            assert item.get("description"), key
    keys = {field.alias or name for name, field in Recipe.model_fields.items()}
    assert set(generated["properties"]) == keys
    assert generated["properties"]["target"]["anyOf"][0]["enum"][0] == "gb10"
    (example,) = generated["examples"]
    assert load(yaml.safe_dump(example)).recipe.name == "quickstart"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("vllm==0.13.0+cu130", "0.13.0+cu130"),
        ("vllm[audio]==0.13.0; sys_platform == 'linux'", "0.13.0"),
        ("vllm>=0.12,==0.13.0", "0.13.0"),
        ("vllm==0.13.*", None),
        ("vllm>=0.13.0", None),
        ("vllm", None),
    ],
)
def test_a_pin_is_what_one_version_satisfies(text: str, version: str | None) -> None:
    assert pinned_version(Requirement(text)) == version
