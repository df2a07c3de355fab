"""Sources in order: what gives way to the next one, what is an error, what the lock says of it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder.context import Context
from builder.errors import LockError, MissingError, OfflineError, ToolError
from builder.http import Http
from builder.lock.model import ChosenSource, LockedGit, Refusal
from builder.lock.sources import Choice, choose
from builder.lock.store import Store
from builder.lock.supply import Supply
from builder.lock.wheels import KEEP, Upgrade
from builder.oci.registry import Registry
from builder.process import Completed
from builder.progress import Progress
from builder.recipe import LoadedRecipe, parse_recipe

WHEEL = "fast-1.5%2Bcu130-cp38-abi3-manylinux_2_35_aarch64.whl"
WHEEL_URL = f"https://files.example/{WHEEL}"
GIT_URL = "https://git.example/team/fast"
COMMIT, NEWER = "c" * 40, "d" * 40
PROJECT = "[project]\nname = 'fast'\nversion = '1.5'\ndependencies = ['torch==2.9.0']\n"
GIT_WORDS = f"git {GIT_URL}@v1.5"
GONE = Refusal(source=f"wheel {WHEEL_URL}", reason="the server answered 404 Not Found")

WHEEL_SOURCE = f"{{wheel: '{WHEEL_URL}'}}"
INDEX_SOURCE = "{index: nightly}"
GIT_SOURCE = f"{{git: '{GIT_URL}', ref: v1.5}}"
OTHER = Choice(
    name="other-one", chosen=ChosenSource(name="other-one", source="index other"), index="other"
)

Answer = Callable[[httpx.Request], httpx.Response]


def there(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"Content-Length": "1000"})


def gone(request: httpx.Request) -> httpx.Response:
    return httpx.Response(404)


@dataclass
class Programs:
    """Stands in for uv, which says `says` where it fails, and for git with one commit's `files`."""

    says: str | None = None
    files: Mapping[str, str] = field(default_factory=lambda: {"pyproject.toml": PROJECT})
    tip: str = COMMIT
    git: bool = True
    started: list[str] = field(default_factory=list)
    project: dict[str, Any] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)

    def __call__(
        self, argv: Sequence[str], *, cwd: Path | None = None, **settings: Any
    ) -> Completed:
        if Path(argv[0]).name == "uv":
            assert cwd is not None
            return Completed(tuple(argv), 0, self._uv(list(argv), cwd), "")
        if not self.git:
            raise MissingError("git: No such file or directory")
        return Completed(tuple(argv), 0, self._git(list(argv)), "")

    def _uv(self, argv: list[str], folder: Path) -> str:
        self.started.append("uv")
        self.argv = argv
        self.project = tomllib.loads((folder / "pyproject.toml").read_text())
        if self.says is not None:
            raise ToolError("uv … ended with status 1", returncode=1, stderr=self.says)
        (folder / "pylock.toml").write_text(
            'lock-version = "1.0"\ncreated-by = "uv"\npackages = []\n'
        )
        return ""

    def _git(self, argv: list[str]) -> str:
        name = next(word for word in argv[1:] if "=" not in word and word != "-c")
        self.started.append(name)
        match name:
            case "init":
                Path(argv[-1]).mkdir()
                (Path(argv[-1]) / "HEAD").touch()
            case "fetch":
                self.fetched = argv[-1].removeprefix("+").partition(":")[0]
            case "ls-remote":
                return f"{self.tip}\trefs/tags/v1.5\n"
            case "rev-parse":
                return self.fetched
            case "ls-tree":
                return self._entry(argv[-1])
            case "cat-file":
                return "commit" if argv[-2] == "-t" else self.files[argv[-1]]
        return ""

    def _entry(self, path: str) -> str:
        if path in self.files:
            return f"100644 blob {path} 100\t{path}\0"
        below = any(name.startswith(f"{path}/") for name in self.files)
        return f"040000 tree {path} -\t{path}\0" if below else ""


def recipe(*sources: str, packages: str = "[fast==1.5]", more: str = "") -> LoadedRecipe:
    text = (
        "name: demo\ntarget: gb10\nbase: {oci: ./base}\n"
        f"indexes: {{nightly: https://index.example/nightly, other: https://index.example/other}}\n"
        f"packages: {packages}\n"
        f"sources:\n  fast: [{', '.join(sources)}]\n  Other_One: [{{index: other}}]\n{more}"
    )
    if INDEX_SOURCE not in sources:
        text = text.replace("nightly: https://index.example/nightly, ", "")
    return parse_recipe(text, Path("demo.yaml"))


def choices(
    context: Context,
    loaded: LoadedRecipe,
    *,
    server: Answer = there,
    run: Programs | None = None,
    platform: str = "linux/arm64",
    earlier: Sequence[LockedGit] = (),
    upgrade: Upgrade = KEEP,
) -> tuple[Choice, ...]:
    transport = httpx.MockTransport(server)
    with Http({}, transport=transport, sleep=lambda seconds: None) as http:
        registry, store = Registry(http, {}), Store(context.cache)
        return choose(
            loaded,
            platform=platform,
            python="3.12",
            glibc="2.39",
            supply=Supply(context=context, http=http, registry=registry, store=store),
            settings={"prerelease": "allow"},
            earlier=earlier,
            upgrade=upgrade,
            run=run or Programs(),
        )


def chosen(context: Context, loaded: LoadedRecipe, **more: Any) -> Choice:
    """What was chosen for `fast`, of both packages."""
    fast, other = choices(context, loaded, **more)
    assert (fast.name, other) == ("fast", OTHER)
    return fast


def failure(context: Context, loaded: LoadedRecipe, **more: Any) -> LockError:
    with pytest.raises(LockError) as caught:
        chosen(context, loaded, **more)
    return caught.value


def test_the_first_source_that_works_is_taken(context: Context) -> None:
    run = Programs()
    choice = chosen(context, recipe(WHEEL_SOURCE, INDEX_SOURCE, GIT_SOURCE), run=run)
    assert choice == Choice(
        name="fast",
        chosen=ChosenSource(name="fast", source=f"wheel {WHEEL_URL}"),
        wheel=WHEEL_URL,
    )
    assert run.started == ["uv"]  # for the other package


def test_a_wheel_that_is_gone_gives_way_and_the_reason_is_kept(context: Context) -> None:
    choice = chosen(context, recipe(WHEEL_SOURCE, GIT_SOURCE), server=gone)
    assert choice == Choice(
        name="fast",
        chosen=ChosenSource(name="fast", source=GIT_WORDS, refused=(GONE,)),
        git=LockedGit(
            name="fast",
            url=GIT_URL,
            ref="v1.5",
            commit=COMMIT,
            version="1.5",
            requires=("torch==2.9.0",),
        ),
    )


def test_the_run_says_what_it_passes_over(context: Context) -> None:
    notes: list[str] = []

    class Noting(Progress):
        def note(self, text: str) -> None:
            notes.append(text)

    context = replace(context, progress=Noting())
    chosen(context, recipe(WHEEL_SOURCE, GIT_SOURCE), server=gone)
    assert notes == [f"fast: not wheel {WHEEL_URL}: the server answered 404 Not Found"]


def refuse_connection(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("[Errno -2] Name or service not known")


def fail_handshake(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("certificate verify failed (_ssl.c:1006)")


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (gone, "the server answered 404 Not Found"),
        (lambda request: httpx.Response(403), "the server answered 403 Forbidden"),
        (lambda request: httpx.Response(410), "the server answered 410 Gone"),
        (lambda request: httpx.Response(503), "the server answered 503 Service Unavailable"),
        (
            refuse_connection,
            "the server cannot be reached: [Errno -2] Name or service not known",
        ),
        (fail_handshake, "the server cannot be reached: certificate verify failed"),
        (
            lambda request: httpx.Response(200),
            "the server does not say how large the file is",
        ),
    ],
)
def test_every_way_of_not_being_there_has_its_words(
    context: Context, server: Answer, reason: str
) -> None:
    choice = chosen(context, recipe(WHEEL_SOURCE, INDEX_SOURCE), server=server)
    assert choice.index == "nightly"
    assert [refusal.reason for refusal in choice.chosen.refused] == [reason]


def test_an_index_is_asked_for_the_one_package_alone(context: Context) -> None:
    run = Programs()
    loaded = parse_recipe(
        "name: demo\ntarget: gb10\nbase: {oci: ./base}\npackages: ['fast[audio]==1.5', x]\n"
        "sources: {fast: [{index: cu130}]}\n",
        Path("demo.yaml"),
    )
    (choice,) = choices(context, loaded, run=run)
    assert (choice.index, choice.chosen.source) == ("cu130", "index cu130")
    assert run.project["project"]["dependencies"] == ["fast[audio]==1.5"]
    index = {"name": "cu130", "url": "https://download.pytorch.org/whl/cu130", "explicit": True}
    assert run.project["tool"]["uv"]["index"] == [index]
    assert run.project["tool"]["uv"]["sources"] == {"fast": {"index": "cu130"}}
    assert "--no-deps" in run.argv


NO_VERSION = (
    "error: No solution found when resolving dependencies\n"
    "  cause: Because there is no version of fast==1.5 and spark-build-recipe depends on fast==1.5,"
    " we can conclude that your requirements are unsatisfiable.\n"
)
WRAPPED = (
    "  x No solution found when resolving dependencies:\n"
    "  ╰─▶ Because there is no version of\n      fast==1.5 and your project depends on\n"
    "      fast==1.5, we can conclude that your project's requirements are unsatisfiable.\n"
)
UNREACHABLE = (
    "error: Request failed after 3 retries in 4.1s\n"
    "  cause: Failed to fetch: https://user:secret@index.example/simple/fast/?token=secret\n"
    "  cause: dns error for https://user:secret@index.example/simple/fast/?token=secret\n"
)


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (NO_VERSION, "there is no version of fast==1.5"),
        (WRAPPED, "there is no version of fast==1.5"),
        (UNREACHABLE, "dns error for https://index.example/simple/fast/"),
        ("error: broken", "uv could not resolve the recipe: broken"),
    ],
)
def test_an_index_is_refused_in_uvs_own_words(context: Context, says: str, reason: str) -> None:
    error = failure(context, recipe(WHEEL_SOURCE), run=Programs(says=says))
    assert error.message == (
        f"demo.yaml:8: sources.Other_One: no source of other-one works:\n  index other: {reason}"
    )


def test_no_source_that_works_is_an_error_with_every_reason(context: Context) -> None:
    error = failure(context, recipe(WHEEL_SOURCE, GIT_SOURCE), server=gone, run=Programs(files={}))
    assert error.message == (
        "demo.yaml:7: sources.fast: no source of fast works:\n"
        f"  wheel {WHEEL_URL}: the server answered 404 Not Found\n"
        f"  {GIT_WORDS}: its requirements are known only by running its build; name the files "
        "that list them under `requirements`"
    )
    assert error.hint == "correct one of them, or add one that has the package"


def wheel_source(filename: str) -> str:
    return f"{{wheel: 'https://files.example/{filename}'}}"


@pytest.mark.parametrize(
    ("filename", "message"),
    [
        ("fast.whl", "fast.whl is not the name of a wheel"),
        ("slow-1.5-py3-none-any.whl", "slow-1.5-py3-none-any.whl is a wheel of slow, not of fast"),
        ("fast-1.6-py3-none-any.whl", "fast-1.6-py3-none-any.whl is not what `fast==1.5` asks for"),
        (
            "fast-1.5-cp38-abi3-manylinux_2_35_x86_64.whl",
            "does not run on linux/arm64 with Python 3.12 and glibc 2.39",
        ),
        ("fast-1.5-cp311-cp311-manylinux_2_35_aarch64.whl", "does not run on linux/arm64"),
        ("fast-1.5-cp38-abi3-manylinux_2_40_aarch64.whl", "does not run on linux/arm64"),
    ],
)
def test_a_wheel_that_contradicts_the_recipe_is_an_error_wherever_it_stands(
    context: Context, filename: str, message: str
) -> None:
    for sources in ((wheel_source(filename),), (WHEEL_SOURCE, wheel_source(filename))):
        error = failure(context, recipe(*sources))
        assert error.message.startswith(f"demo.yaml:7: sources.fast[{len(sources) - 1}].wheel: ")
        assert message in error.message


@pytest.mark.parametrize(
    ("project", "message"),
    [
        ("[project]\nname = 'slow'\n", "what is there is slow, not fast"),
        ("[project]\nname = 'fast'\nversion = '1.6'\n", "fast 1.6 is not what `fast==1.5` asks"),
        ("[project]\nname = 'fast'\nversion = 'x'\n", "`x` is not a version (PEP 440)"),
        (
            "[project]\nname = 'fast'\nrequires-python = '>=3.13'\n",
            "fast requires Python >=3.13, the base has 3.12",
        ),
    ],
)
def test_a_repository_that_contradicts_the_recipe_is_an_error(
    context: Context, project: str, message: str
) -> None:
    run = Programs(files={"pyproject.toml": project})
    error = failure(context, recipe(GIT_SOURCE), run=run)
    assert error.message.startswith(f"demo.yaml:7: sources.fast[0]: {message}")


@pytest.mark.parametrize(
    ("packages", "version"), [("[fast==1.5+cu130]", "1.5+cu130"), ("[fast==1.*]", None)]
)
def test_a_version_that_the_repository_does_not_state_is_the_pinned_one(
    context: Context, packages: str, version: str | None
) -> None:
    run = Programs(files={"pyproject.toml": "[project]\nname = 'fast'\ndynamic = ['version']\n"})
    choice = chosen(context, recipe(GIT_SOURCE, packages=packages), run=run)
    assert choice.git is not None
    assert choice.git.version == version


def test_folder_files_and_extras_of_a_repository(context: Context) -> None:
    project = PROJECT + "[project.optional-dependencies]\naudio = ['sound']\n"
    run = Programs(files={"python/pyproject.toml": project})
    source = f"{{git: '{GIT_URL}', ref: v1.5, subdirectory: python/}}"
    choice = chosen(context, recipe(source, packages="['fast[audio]']"), run=run)
    assert choice.git is not None
    assert (choice.git.subdirectory, choice.git.requires) == ("python", ("torch==2.9.0", "sound"))
    run = Programs(files={"setup.py": "", "requirements/cuda.txt": "torch==2.9.0\n"})
    source = f"{{git: '{GIT_URL}', ref: v1.5, requirements: [requirements/cuda.txt]}}"
    choice = chosen(replace(context, cache=context.cache / "2"), recipe(source), run=run)
    assert choice.git is not None
    assert (choice.git.version, choice.git.requires) == ("1.5", ("torch==2.9.0",))
    source = f"{{git: '{GIT_URL}', ref: v1.5, subdirectory: none}}"
    assert "there is no folder `none` at cccccccccccc" in failure(context, recipe(source)).message


def locked(**changes: Any) -> LockedGit:
    return replace(LockedGit(name="fast", url=GIT_URL, ref="v1.5", commit=COMMIT), **changes)


@pytest.mark.parametrize(
    ("earlier", "upgrade", "commit"),
    [
        (locked(), KEEP, COMMIT),
        (locked(), Upgrade(packages=("other",)), COMMIT),
        (locked(), Upgrade(packages=("Fast",)), NEWER),
        (locked(), Upgrade(every=True), NEWER),
        (locked(ref="v1.4"), KEEP, NEWER),
        (locked(url="https://git.example/fork/fast"), KEEP, NEWER),
        (locked(name="slow"), KEEP, NEWER),
    ],
)
def test_a_ref_stays_at_its_commit_until_it_is_upgraded(
    context: Context, earlier: LockedGit, upgrade: Upgrade, commit: str
) -> None:
    run = Programs(tip=NEWER)
    choice = chosen(context, recipe(GIT_SOURCE), run=run, earlier=[earlier], upgrade=upgrade)
    assert choice.git is not None
    assert choice.git.commit == commit
    assert ("ls-remote" in run.started) == (commit == NEWER)


def test_sources_are_tried_anew_from_the_first_one(context: Context) -> None:
    choice = chosen(context, recipe(WHEEL_SOURCE, GIT_SOURCE), earlier=[locked()])
    assert choice.wheel == WHEEL_URL


def test_without_git_the_next_source_is_tried(context: Context) -> None:
    choice = chosen(context, recipe(GIT_SOURCE, WHEEL_SOURCE), run=Programs(git=False))
    refusal = Refusal(source=GIT_WORDS, reason="git is not installed on this host")
    assert choice.wheel == WHEEL_URL
    assert choice.chosen.refused == (refusal,)


def test_without_git_a_repository_as_the_last_source_is_an_error(context: Context) -> None:
    with pytest.raises(MissingError) as caught:
        chosen(context, recipe(WHEEL_SOURCE, GIT_SOURCE), server=gone, run=Programs(git=False))
    assert caught.value.hint is not None
    assert "install git" in caught.value.hint


def test_offline_nothing_is_chosen(context: Context) -> None:
    run = Programs()
    offline = replace(context, offline=True)
    with pytest.raises(OfflineError, match=r"sources\.fast: would have to be looked for"):
        chosen(offline, recipe(WHEEL_SOURCE), run=run)
    assert run.started == []
    bare = parse_recipe("name: demo\ntarget: gb10\nbase: {oci: ./base}\n", Path("demo.yaml"))
    assert choices(offline, bare) == ()


@pytest.mark.parametrize("source", [WHEEL_SOURCE, INDEX_SOURCE, GIT_SOURCE])
def test_a_package_that_has_a_source_is_wanted_where_nothing_else_asks_for_it(
    context: Context, source: str
) -> None:
    choice = chosen(context, recipe(source, packages="[x]"))
    assert [bool(choice.wheel), bool(choice.index), bool(choice.git)] == [
        source is kind for kind in (WHEEL_SOURCE, INDEX_SOURCE, GIT_SOURCE)
    ]


def test_a_package_for_other_targets_has_no_choice(context: Context) -> None:
    loaded = recipe(WHEEL_SOURCE, packages="['fast==1.5; platform_machine == \"aarch64\"']")
    assert chosen(context, loaded).wheel == WHEEL_URL
    assert choices(context, loaded, platform="linux/amd64") == (OTHER,)


def test_a_package_that_is_compiled_against_torch_is_held_to_its_requirement(
    context: Context,
) -> None:
    more = "torch: {from: wheel, version: 2.9.0}\nbuild_after_torch: [fast==1.6]\n"
    error = failure(context, recipe(WHEEL_SOURCE, packages="[x]", more=more))
    assert "is not what `fast==1.6` asks for" in error.message
