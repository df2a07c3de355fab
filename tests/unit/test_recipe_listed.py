"""Packages out of files that people have: found, combined, and every problem named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.document import parse_document, validate
from builder.errors import Problem, RecipeError
from builder.recipe import Recipe, inputs, requirements
from builder.recipe.listed import combine, list_pyproject, list_requirements
from builder.targets import find_target

HEAD = "name: demo\ntarget: gb10\nbase: {debian: {suite: trixie, packages: [python3]}}\n"

PYPROJECT = """\
[project]
name = "My.Demo"
requires-python = ">=3.11"
dependencies = ["numpy>=2", "Rich", "my-demo[fast]; sys_platform == 'linux'"]

[project.optional-dependencies]
fast = ["orjson ; python_version < '3.14' or extra == 'x'"]
Train = ["accelerate", "my_demo[fast,all]"]
all = ["My-Demo[train]", "peft"]

[dependency-groups]
dev = [{include-group = "Test"}, "ruff"]
test = ["pytest>=8", "my-demo[fast]"]

[tool.uv.sources]
numpy = {index = "ours"}
other = {git = "https://git.example/other"}
"""


def recipe_of(folder: Path, text: str) -> Recipe:
    document = parse_document((HEAD + text).encode(), folder / "recipe.yaml")
    return validate(Recipe, document)


def problems_of(folder: Path, text: str) -> tuple[Problem, ...]:
    with pytest.raises(RecipeError) as caught:
        recipe_of(folder, text)
    return caught.value.problems


def refusal(folder: Path, text: str, **chosen: list[str]) -> list[str]:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        list_pyproject(folder, "pyproject.toml", **chosen)
    return [str(problem) for problem in caught.value.problems]


def test_a_requirements_file_stands_in_the_list(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text("Numpy >= 2  # arrays\n-r more/base.txt\n")
    (tmp_path / "more" / "base.txt").write_text("rich\n-r ../tail.txt\n")
    (tmp_path / "tail.txt").write_text("pygments\n")
    recipe = recipe_of(tmp_path, "packages: [einops, {requirements: ./requirements.txt}, scipy]\n")
    assert recipe.packages == ("einops", "numpy>=2", "rich", "pygments", "scipy")
    assert requirements(recipe) == ("einops", "numpy>=2", "pygments", "rich", "scipy")


def test_a_file_may_lie_above_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\ndependencies = ['rich']\n")
    recipe = recipe_of(tmp_path / "recipes", "packages: [{pyproject: ../pyproject.toml}]\n")
    assert recipe.packages == ("rich",)


def test_a_changed_file_is_a_changed_recipe(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    target = find_target("gb10")
    file.write_text("rich\n")
    one = inputs(recipe_of(tmp_path, "packages: [{requirements: requirements.txt}]\n"), target)
    same = inputs(recipe_of(tmp_path, "packages: [rich]\n"), target)
    file.write_text("rich>=14\n")
    two = inputs(recipe_of(tmp_path, "packages: [{requirements: requirements.txt}]\n"), target)
    assert one == same
    assert two["requirements"] == ["rich>=14"]


def test_a_project_gives_its_dependencies_extras_and_groups(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    plain = list_pyproject(tmp_path, "pyproject.toml")
    own = 'orjson; sys_platform == "linux" and (python_version < "3.14" or extra == "x")'
    assert plain.requirements == ("numpy>=2", "rich", own)
    assert plain.requires_python == ">=3.11"
    assert plain.placed == {"numpy", "other"}
    train = list_pyproject(tmp_path, "pyproject.toml", extras=["train"]).requirements
    bare = 'orjson; python_version < "3.14" or extra == "x"'
    assert train == (*plain.requirements, "accelerate", "peft", bare)
    dev = list_pyproject(tmp_path, "pyproject.toml", groups=["DEV"]).requirements
    assert dev == (*plain.requirements, "pytest>=8", bare, "ruff")


def test_groups_need_no_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[dependency-groups]\ndev = ['ruff']\n")
    assert list_pyproject(tmp_path, "pyproject.toml", groups=["dev"]).requirements == ("ruff",)
    assert refusal(tmp_path, "[dependency-groups]\ndev = ['ruff']\n") == [
        "pyproject.toml: has no table [project]"
    ]


# Each: a pyproject.toml, what is asked of it, and its one problem.
REFUSED: list[tuple[str, dict[str, list[str]], str]] = [
    ("[project\n", {}, "pyproject.toml: is not valid TOML"),
    ("x = " + "[" * 5000, {}, "pyproject.toml: is not valid TOML: nested too deep"),
    ("[project]\ndependencies = 'numpy'\n", {}, "project.dependencies: Input should be a valid"),
    ("[project]\ndependencies = ['numpy', 'a b']\n", {}, "pyproject.toml:2: project.dependencies"),
    (
        "[project]\ndependencies = [\n  'x @ https://index.example/x.whl',\n]\n",
        {},
        "pyproject.toml:3: project.dependencies: `x` comes from a URL",
    ),
    ("[project]\ndynamic = ['dependencies']\n", {}, "dependencies are dynamic"),
    (
        "[project]\ndynamic = ['optional-dependencies']\n",
        {"extras": ["x"]},
        "optional-dependencies are dynamic",
    ),
    ("[project]\nname = 'x'\n", {"extras": ["y"]}, "has no extra `y`"),
    ("[project]\nname = 'x'\ndependencies = ['X[y]']\n", {}, "has no extra `y`"),
    ("[project]\nname = 'x'\n", {"groups": ["dev"]}, "has no dependency group `dev`"),
    (
        "[dependency-groups]\na = [{include-group = 'b'}]\nb = [{include-group = 'a'}]\n",
        {"groups": ["a"]},
        "dependency-groups.a: a circle of groups: ",
    ),
    ("[dependency-groups]\na = ['a b']\n", {"groups": ["a"]}, "dependency-groups.a: "),
]


@pytest.mark.parametrize(("text", "chosen", "message"), REFUSED)
def test_what_is_wrong_in_a_project_is_named(
    text: str, chosen: dict[str, list[str]], message: str, tmp_path: Path
) -> None:
    [problem] = refusal(tmp_path, text, **chosen)
    assert message in problem
    assert problem.startswith("pyproject.toml")


def test_the_nearest_name_is_offered(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    found = problems_of(tmp_path, "packages: [{pyproject: pyproject.toml, extras: [trian]}]\n")
    assert [problem.hint for problem in found] == ["did you mean `train`?"]


def test_problems_name_the_file_its_line_and_the_recipes_field(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("rich\n\na b\n-e .\n")
    found = problems_of(tmp_path, "packages:\n  - rich\n  - {requirements: requirements.txt}\n")
    assert [(problem.line, problem.field) for problem in found] == [(6, "packages[1]")] * 2
    assert "requirements.txt:3: `a b` is not a requirement" in found[0].message
    assert "requirements.txt:4: names a file or a URL" in found[1].message


@pytest.mark.parametrize(
    ("item", "field", "message"),
    [
        ("{requirements: absent.txt}", "packages[0]", "absent.txt: No such file"),
        ("{requirements: folder}", "packages[0]", "folder: is not a regular file"),
        ("{requirements: pipe}", "packages[0]", "pipe: is not a regular file"),
        ("{requirements: latin1}", "packages[0]", "latin1: is not UTF-8"),
        ("{requirements: large}", "packages[0]", "large: is larger than 1 MiB"),
        ("{requirements: outside}", "packages[0]", "/etc/hostname: must be a path relative"),
        ("{requirements: /etc/hosts}", "packages[0].requirements", "must be a path relative"),
        ("{requirements: ''}", "packages[0].requirements", "must be a path relative"),
        ("{requirements: a, pyproject: b}", "packages[0]", "needs exactly one of requirements and"),
        ("{extras: [a]}", "packages[0]", "it has none of them"),
        ("{requirements: good, groups: [x]}", "packages[0].groups", "belongs to `pyproject` only"),
        ("{requirments: good}", "packages[0].requirments", "unknown key"),
        ("[good]", "packages[0]", "expected text, found a list"),
    ],
)
def test_what_cannot_be_listed_is_refused(
    item: str, field: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin1").write_bytes(b"# \xe9\n")
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"\n")
    (tmp_path / "outside").write_text("-r /etc/hostname\n")
    (tmp_path / "good").write_text("rich\n")
    found = problems_of(tmp_path, f"packages: [{item}]\n")
    assert any(problem.field == field and message in problem.message for problem in found), found
    assert {problem.line for problem in found} == {4}


def test_what_several_files_ask_for_has_to_hold_together(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("numpy>=2\nfastapi[standard]\nrich; python_version < '3.9'\n")
    (tmp_path / "b.txt").write_text("NumPy<3\nfastapi[all]>=0.100\nrich>=14\n")
    text = "packages: [numpy, {requirements: a.txt}, {requirements: b.txt}]\n"
    assert recipe_of(tmp_path, text).packages == (
        "numpy<3,>=2",
        "fastapi[all,standard]>=0.100",
        'rich; python_version < "3.9"',
        "rich>=14",
    )


def test_excluded_packages_and_those_compiled_later_leave_the_list(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("Flash_Attn>=2.8\nrich\ndeepspeed\n")
    recipe = recipe_of(
        tmp_path,
        "torch: {from: wheel, version: 2.13.0}\n"
        "packages: [{requirements: requirements.txt}]\n"
        "build_after_torch: [deepspeed==0.19.8]\n"
        "exclude: [flash-attn]\n",
    )
    assert recipe.packages == ("rich",)


def test_torch_is_named_in_one_place_only(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("rich\ntorch>=2\n")
    lines = "packages: [numpy, {requirements: requirements.txt}]\ntorch: {from: base}\n"
    [problem] = problems_of(tmp_path, lines)
    assert (problem.line, problem.field) == (5, "torch")
    assert problem.message == "`packages[1]` (requirements.txt) names torch too"


def test_a_projects_own_place_for_a_package_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    listed = "packages: [{pyproject: pyproject.toml}]\n"
    [problem] = problems_of(tmp_path, listed)
    assert (problem.line, problem.field) == (4, "packages[0]")
    assert "pyproject.toml takes `numpy` from a place of its own" in problem.message
    for settled in ("sources: {numpy: [{index: cpu}]}\n", "exclude: [NumPy]\n"):
        assert recipe_of(tmp_path, listed + settled).packages


@pytest.mark.parametrize(("python", "good"), [("3.11", True), ("3.10", False), ("3.14", True)])
def test_the_projects_python_is_the_recipes(python: str, *, good: bool, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[project]\nname = 'x'\nrequires-python = '>=3.11,!=3.14.0'\n"
    )
    text = f"python: '{python}'\npackages: [{{pyproject: pyproject.toml}}]\n"
    if good:
        assert recipe_of(tmp_path, text).packages == ()
    else:
        [problem] = problems_of(tmp_path, text)
        assert problem.field == "packages[0]"
        assert problem.message == "pyproject.toml is for Python >=3.11,!=3.14.0"


def test_a_recipe_that_lies_nowhere_lists_nothing() -> None:
    value = {
        "name": "x",
        "target": "gb10",
        "base": {"oci": "x"},
        "packages": ["rich", {"requirements": "requirements.txt"}],
    }
    assert Recipe.model_validate(value).packages == ("rich",)


NAMES = st.sampled_from(["a", "A", "b-c", "B_c"])
PARTS = st.sampled_from(["", ">=1", "<3", "[x]", "[y]>=2", "; python_version < '3.9'"])


@given(st.lists(st.tuples(NAMES, PARTS).map("".join), max_size=8))
def test_nothing_that_is_asked_for_is_lost(texts: list[str]) -> None:
    found = [Requirement(text) for text in combine(texts)]
    keys = [(canonicalize_name(item.name), str(item.marker)) for item in found]
    assert len(keys) == len(set(keys))
    for asked in map(Requirement, texts):
        [joined] = [
            item
            for item, key in zip(found, keys, strict=True)
            if key == (canonicalize_name(asked.name), str(asked.marker))
        ]
        assert asked.extras <= joined.extras
        assert {*asked.specifier} <= {*joined.specifier}


@given(
    text=st.text(max_size=40),
    head=st.sampled_from(["", "[project]\n", "[dependency-groups]\na = "]),
)
def test_any_text_gives_a_listing_or_a_recipe_error(
    text: str, head: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "any").write_bytes((head + text).encode(errors="surrogatepass"))
    problems: list[Problem] = []
    for read in (list_requirements, list_pyproject):
        try:
            read(folder, "any")
        except RecipeError as error:
            problems += error.problems
    assert {problem.file for problem in problems} <= {"any"}


def test_groups_that_double_at_every_step_are_read_once(tmp_path: Path) -> None:
    twice = "[{include-group = 'g%d'}, {include-group = 'g%d'}]"
    steps = "".join(f"g{n} = {twice % (n + 1, n + 1)}\n" for n in range(2000))
    (tmp_path / "pyproject.toml").write_text(f"[dependency-groups]\n{steps}g2000 = ['six']\n")
    assert list_pyproject(tmp_path, "pyproject.toml", groups=["g0"]).requirements == ("six",)


def test_extras_that_double_at_every_step_are_refused(tmp_path: Path) -> None:
    both = "['p[e%d]; python_version > \"3\"', 'p[e%d]; python_version > \"2\"']"
    steps = "".join(f"e{n} = {both % (n + 1, n + 1)}\n" for n in range(30))
    head = "[project]\nname = 'p'\n[project.optional-dependencies]\n"
    (tmp_path / "pyproject.toml").write_text(f"{head}{steps}e30 = ['six']\n")
    with pytest.raises(RecipeError, match="in more than 64 ways"):
        list_pyproject(tmp_path, "pyproject.toml", extras=["e0"])


def test_a_byte_order_mark_is_no_part_of_a_project(tmp_path: Path) -> None:
    text = "\ufeff[project]\nname = 'p'\ndependencies = ['six']\n"
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    assert list_pyproject(tmp_path, "pyproject.toml").requirements == ("six",)
