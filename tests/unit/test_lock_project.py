"""What a source tree says of itself: the static part counts, the rest is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from builder.errors import ExternalError
from builder.lock.project import Project, read_project

PROJECT = '[project]\nname = "Fast.Thing"\nversion = "1.5"\nrequires-python = ">=3.10"\n'


def read(files: Mapping[str, str], *, folder: str = "", listed: Sequence[str] = ()) -> Project:
    return read_project(files.get, folder=folder, files=listed)


def refusal(files: Mapping[str, str], **more: Sequence[str]) -> str:
    with pytest.raises(ExternalError) as caught:
        read(files, listed=more.get("listed", ())).requires_with(more.get("extras", ()))
    return caught.value.message


def test_a_static_project_states_everything() -> None:
    text = f"{PROJECT}dependencies = ['torch == 2.9.0', 'Ray[x]; python_version<\"3.12\"']\n"
    project = read({"python/pyproject.toml": text}, folder="python", listed=["ignored.txt"])
    assert project == Project(
        name="fast-thing",
        version="1.5",
        requires_python=">=3.10",
        requires=("torch==2.9.0", 'ray[x]; python_version < "3.12"'),
        extras={},
    )


def test_a_project_without_dependencies_has_none() -> None:
    assert read({"pyproject.toml": PROJECT}).requires == ()


def test_the_extras_asked_for_come_along_with_those_they_name() -> None:
    text = (
        f"{PROJECT}dependencies = ['a']\n[project.optional-dependencies]\n"
        "all_of_it = ['b', 'fast-thing[audio,all-of-it]']\nAudio = ['c', 'a']\nother = ['d']\n"
    )
    project = read({"pyproject.toml": text})
    assert project.requires_with(["all-of-it"]) == ("a", "b", "c")
    assert project.requires_with([]) == ("a",)
    with pytest.raises(ExternalError, match="it has no extra `video`"):
        project.requires_with(["video"])


DYNAMIC = f"{PROJECT}dynamic = ['dependencies', 'optional-dependencies']\n"


def test_what_is_computed_is_read_from_the_files_that_the_recipe_names() -> None:
    files = {
        "pyproject.toml": DYNAMIC,
        "requirements/common.txt": "numpy\n",
        "requirements/cuda.txt": "-r common.txt\n--extra-index-url https://x.example\ntorch==2.9\n",
    }
    assert read(files, listed=["requirements/cuda.txt"]).requires == ("torch==2.9", "numpy")


@pytest.mark.parametrize(
    ("files", "requires"),
    [
        (
            {
                "pyproject.toml": DYNAMIC
                + "[tool.setuptools.dynamic]\ndependencies = {file = ['a.txt', 'b.txt']}\n",
                "a.txt": "one\n",
                "b.txt": "two\n",
            },
            ("one", "two"),
        ),
        (
            {
                "pyproject.toml": "[tool.setuptools.dynamic]\ndependencies = {file = 'a.txt'}\n",
                "a.txt": "one\n",
            },
            ("one",),
        ),
        ({"setup.cfg": "[options]\ninstall_requires =\n  one>=1\n  two%x==1\n"}, None),
        ({"setup.cfg": "[options]\ninstall_requires =\n  one>=1\n  two\n"}, ("one>=1", "two")),
        ({"setup.cfg": "[options]\ninstall_requires = one; two\n"}, ("one", "two")),
        (
            {"setup.cfg": "[options]\ninstall_requires = file: a.txt,\n b.txt\n", "a.txt": "x"},
            None,
        ),
        (
            {"setup.cfg": "[options]\ninstall_requires = file: a.txt\n", "a.txt": "x"},
            ("x",),
        ),
    ],
)
def test_setuptools_own_words_are_static_too(
    files: Mapping[str, str], requires: tuple[str, ...] | None
) -> None:
    if requires is None:
        assert refusal(files)
    else:
        assert read(files).requires == requires


@pytest.mark.parametrize(
    "files",
    [{}, {"pyproject.toml": DYNAMIC}, {"setup.py": "raise SystemExit"}, {"setup.cfg": "[x]\n"}],
)
def test_what_only_a_build_knows_is_not_guessed(files: Mapping[str, str]) -> None:
    assert read(files).requires is None
    assert refusal(files) == (
        "its requirements are known only by running its build; name the files that list them "
        "under `requirements`"
    )


def test_an_extra_that_only_a_build_knows_is_not_guessed() -> None:
    files = {"pyproject.toml": DYNAMIC, "r.txt": "numpy"}
    message = refusal(files, listed=["r.txt"], extras=["audio"])
    assert message.startswith("what its extra `audio` requires is known only by running its build")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[project\n", "pyproject.toml: is no TOML: "),
        ("project = 1\n", "pyproject.toml: `project` is not a table"),
        ("[project]\nname = 1\n", "pyproject.toml: `name` is not text"),
        ("[project]\nname = 'a'\ndependencies = 'b'\n", "`dependencies` is not a list of texts"),
        ("[project]\nname = 'a'\ndependencies = ['b c']\n", "`b c` is not a requirement"),
        ("[project]\nname = 'a'\ndependencies = ['b @ https://x.example/b']\n", "`b` comes from"),
    ],
)
def test_a_project_file_that_cannot_be_read_is_told(text: str, message: str) -> None:
    assert message in refusal({"pyproject.toml": text})


def test_a_listing_that_cannot_be_read_is_told() -> None:
    assert refusal({}, listed=["r/a.txt"]) == "r/a.txt: there is no such file"
    assert refusal({"a.txt": "b c\n-e ."}, listed=["a.txt"]) == (
        "a.txt:1: `b c` is not a requirement; a.txt:2: names a file or a URL"
    )
    outside = refusal({"a.txt": "-r ../x.txt"}, listed=["a.txt"])
    assert outside == "a.txt:1: ../x.txt: there is no such file"
    assert "no section headers" in refusal({"setup.cfg": "x = 1\n"})
