"""Sources against real servers and by the real programs: git's own behind TLS, uv's index."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder import process
from builder.context import Context
from builder.errors import ExternalError, LockError, OfflineError
from builder.lock.git import LOCKED_REF, Git
from builder.lock.model import LockedGit
from builder.lock.sources import Choice, choose
from builder.lock.supply import open_supply
from builder.recipe import parse_recipe
from tests.builders import WheelText

from .standins.authority import Authority
from .standins.files import Files
from .standins.github import GitHub
from .standins.proxy import proxying
from .standins.server import Request, Response, Site, serving

pytestmark = [pytest.mark.real("git", "openssl")]

HOST, OLD_HOST, PRIVATE_HOST, FILES_HOST = "git.example", "old.example", "own.example", "f.example"
NAME = "team/fast"
URL = f"https://{HOST}/{NAME}"
WHEEL = "fast-1.5-py3-none-any.whl"
CANARY = "canary-7c1f"
FIRST = {
    "setup.py": "raise SystemExit('nothing here is run')\n",
    "requirements/common.txt": "numpy>=2\n",
    "requirements/cuda.txt": "-r common.txt\ntorch==2.9.0  # why\n",
}
PROJECT = "[project]\nname = 'fast'\nversion = '1.5'\ndependencies = ['torch==2.10.0']\n"
CUDA = "{git: 'https://git.example/team/fast', ref: v1.4, requirements: [requirements/cuda.txt]}"


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """`first` is the commit of the tag v1.4, `second` that of the annotated v1.5 and of main."""

    github: GitHub
    files: Files
    environ: Mapping[str, str]
    first: str
    second: str


def git(*arguments: str, folder: Path) -> str:
    who = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", "Nobody"), ("EMAIL", "nobody@example.org"))
    }
    alone = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    env = {"PATH": os.environ["PATH"], **who, **alone}
    return process.run(["git", *arguments], cwd=folder, env=env).stdout.strip()


def repository(folder: Path) -> tuple[GitHub, str, str]:
    github = GitHub(folder)
    first = github.add(NAME, FIRST, "v1.4")
    work, bare = folder / "work" / NAME, folder / f"{NAME}.git"
    (work / "pyproject.toml").write_text(PROJECT)
    (work / "link.txt").symlink_to("requirements/cuda.txt")
    git("add", ".", folder=work)
    git("commit", "--quiet", "--message=Static", folder=work)
    git("tag", "--annotate", "--message=Released", "v1.5", folder=work)
    git("push", "--quiet", str(bare), "main", "v1.5", folder=work)
    return github, first, git("rev-parse", "HEAD", folder=work)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("hosts")
    github, first, second = repository(folder / "repositories")
    files = Files()
    user = base64.b64encode(f"me:{CANARY}".encode()).decode()

    def old(request: Request) -> Response:
        """A server of protocol 0, which gives what its refs name and nothing else."""
        bare = folder / "repositories" / f"{NAME}.git"
        git("config", "uploadpack.allowAnySHA1InWant", "false", folder=bare)
        headers = {key: text for key, text in request.headers.items() if key != "git-protocol"}
        answer = github(replace(request, headers=headers))
        git("config", "uploadpack.allowAnySHA1InWant", "true", folder=bare)
        return answer

    def private(request: Request) -> Response:
        if request.headers.get("authorization") == f"Basic {user}":
            return github(request)
        return Response(status=401, headers={"WWW-Authenticate": 'Basic realm="own"'})

    sites: dict[str, Site] = {HOST: github, OLD_HOST: old, PRIVATE_HOST: private, FILES_HOST: files}
    authority = Authority.make(folder / "authority")
    with (
        serving(sites, authority.context(list(sites))) as server,
        proxying(dict.fromkeys(sites, server.port)) as proxy,
    ):
        address = f"http://127.0.0.1:{proxy.port}"
        (folder / "home").mkdir()
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "HTTPS_PROXY": address,
            "https_proxy": address,
            "SSL_CERT_FILE": str(authority.certificate),
            "UV_HTTP_RETRIES": "0",
        }
        yield Hosts(github=github, files=files, environ=environ, first=first, second=second)


@pytest.fixture
def context(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    for key in ("HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE"):  # httpx looks for them itself
        monkeypatch.setenv(key, hosts.environ[key])
    return Context(environ=hosts.environ, cache=tmp_path / "cache")


def chosen(context: Context, sources: str, *earlier: LockedGit, packages: str = "[fast]") -> Choice:
    text = (
        f"name: demo\ntarget: gb10\nbase: {{oci: ./base}}\npackages: {packages}\n"
        f"sources: {{fast: [{sources}]}}\n"
    )
    if "index:" in sources:
        text += f"indexes: {{own: 'https://{FILES_HOST}/simple'}}\n"
    loaded = parse_recipe(text, Path("demo.yaml"))
    with open_supply(context) as supply:
        (choice,) = choose(
            loaded,
            platform="linux/arm64",
            python="3.12",
            glibc="2.39",
            supply=supply,
            earlier=earlier,
        )
    return choice


def reason(context: Context, sources: str, packages: str = "[fast]") -> str:
    """Why the only source was refused."""
    with pytest.raises(LockError) as caught:
        chosen(context, sources, packages=packages)
    return caught.value.message.partition(" works:\n  ")[2].partition(": ")[2]


def test_a_wheel_that_is_gone_gives_way_to_the_repository(context: Context, hosts: Hosts) -> None:
    wheel = f"https://{FILES_HOST}/{WHEEL}"
    choice = chosen(context, f"{{wheel: '{wheel}'}}, {CUDA}", packages="[fast==1.5]")
    assert choice.git == LockedGit(
        name="fast",
        url=URL,
        ref="v1.4",
        commit=hosts.first,
        version="1.5",
        requires=("torch==2.9.0", "numpy>=2"),
    )
    assert choice.chosen.source == f"git {URL}@v1.4"
    assert [(item.source, item.reason) for item in choice.chosen.refused] == [
        (f"wheel {wheel}", "the server answered 404 Not Found")
    ]


@pytest.mark.parametrize("ref", ["v1.5", "main", "refs/heads/main", "HEAD"])
def test_tags_and_branches_lead_to_their_commit(context: Context, hosts: Hosts, ref: str) -> None:
    choice = chosen(context, f"{{git: '{URL}', ref: {ref}}}")
    assert choice.git is not None
    assert (choice.git.commit, choice.git.version) == (hosts.second, "1.5")
    assert choice.git.requires == ("torch==2.10.0",)


def test_an_earlier_commit_stays(context: Context, hosts: Hosts) -> None:
    earlier = LockedGit(name="fast", url=URL, ref="main", commit=hosts.first)
    source = f"{{git: '{URL}', ref: main, requirements: [requirements/common.txt]}}"
    choice = chosen(context, source, earlier)
    assert choice.git is not None
    assert (choice.git.commit, choice.git.requires) == (hosts.first, ("numpy>=2",))


def test_what_is_fetched_is_one_commit_without_history_and_hooks(
    context: Context, hosts: Hosts
) -> None:
    place = Git(context).fetch(URL, hosts.second)
    assert git("rev-list", "--all", folder=place) == hosts.second
    assert not (place / "hooks").exists()
    assert git("fsck", "--full", folder=place) == ""


def test_a_server_that_gives_refs_only_has_its_older_commits_too(
    context: Context, hosts: Hosts
) -> None:
    work = hosts.github.folder / "work" / NAME
    git("tag", "--delete", "v1.4", folder=work)
    git("push", "--quiet", "--delete", f"../../../{NAME}.git", "v1.4", folder=work)
    try:
        place = Git(context).fetch(f"https://{OLD_HOST}/{NAME}", hosts.first)
    finally:
        git("tag", "v1.4", hosts.first, folder=work)
        git("push", "--quiet", f"../../../{NAME}.git", "v1.4", folder=work)
    assert git("rev-list", "--all", folder=place) == hosts.first


def test_what_is_not_there_is_refused_in_gits_words(context: Context) -> None:
    assert reason(context, f"{{git: '{URL}', ref: v9}}") == "no tag or branch there is called `v9`"
    assert reason(context, f"{{git: '{URL}', ref: {'e' * 40}}}").endswith(f"not our ref {'e' * 40}")
    absent = reason(context, f"{{git: 'https://{HOST}/team/none', ref: v1}}")
    assert absent == f"repository 'https://{HOST}/team/none/' not found"
    unknown = reason(context, "{git: 'https://nowhere.invalid/x', ref: v1}")
    assert unknown.startswith("unable to access 'https://nowhere.invalid/x/'")
    file = f"{{git: '{URL}', ref: v1.4, requirements: [none.txt]}}"
    assert reason(context, file) == "none.txt: there is no such file"
    link = f"{{git: '{URL}', ref: v1.5, subdirectory: requirements, requirements: [link.txt]}}"
    assert reason(context, link) == "link.txt: is no plain file there"


def test_a_server_that_is_not_trusted_is_refused(context: Context) -> None:
    environ = {key: value for key, value in context.environ.items() if key != "SSL_CERT_FILE"}
    strict = replace(context, environ=environ)
    assert "certificate" in reason(strict, f"{{git: '{URL}', ref: v1.5}}")


def test_credentials_come_from_gits_helpers_and_are_in_no_message(
    context: Context, hosts: Hosts, tmp_path: Path
) -> None:
    url = f"https://{PRIVATE_HOST}/{NAME}"
    asks = "the server asks for credentials, as some do where there is no such repository"
    assert reason(context, f"{{git: '{url}', ref: v1.5}}") == asks
    (tmp_path / ".gitconfig").write_text("[credential]\nhelper = store\n")
    (tmp_path / ".git-credentials").write_text(f"https://me:{CANARY}@{PRIVATE_HOST}\n")
    signed = replace(context, environ={**context.environ, "HOME": str(tmp_path)})
    choice = chosen(signed, f"{{git: '{url}', ref: v1.5}}")
    assert choice.git is not None
    assert choice.git.commit == hosts.second
    assert CANARY not in repr(choice)
    assert not any(
        CANARY.encode() in path.read_bytes() for path in context.cache.rglob("*") if path.is_file()
    )
    failed = reason(signed, f"{{git: 'https://{PRIVATE_HOST}/team/none', ref: v1.5}}")
    assert CANARY not in failed


def test_no_setting_of_the_caller_makes_a_fetch_start_a_program(
    context: Context, tmp_path: Path
) -> None:
    mark = tmp_path / "started"
    config = f'[url "ext::touch {mark} "]\ninsteadOf = {URL}\n'
    (tmp_path / ".gitconfig").write_text(config)
    crossed = replace(context, environ={**context.environ, "HOME": str(tmp_path)})
    assert reason(crossed, f"{{git: '{URL}', ref: v1.5}}") == "transport 'ext' not allowed"
    assert not mark.exists()


def locked(commit: str) -> LockedGit:
    return LockedGit(name="fast", url=URL, ref="v1.5", commit=commit)


def test_a_bundle_holds_all_that_a_build_needs(
    context: Context, hosts: Hosts, tmp_path: Path
) -> None:
    """By the three commands that `write_bundle` states, without any code of ours."""
    path = tmp_path / "fast.bundle"
    Git(context).write_bundle(locked(hosts.second), path)
    work = tmp_path / "work"
    git("init", "--quiet", str(work), folder=tmp_path)
    (work / ".git" / "shallow").write_text(f"{hosts.second}\n")
    git("fetch", "--quiet", str(path), LOCKED_REF, folder=work)
    git("checkout", "--quiet", hosts.second, folder=work)
    assert (work / "pyproject.toml").read_text() == PROJECT
    assert git("status", "--porcelain", folder=work) == ""
    again = tmp_path / "again.bundle"
    Git(replace(context, cache=tmp_path / "other")).write_bundle(locked(hosts.second), again)
    assert again.read_bytes() == path.read_bytes()


def test_a_bundle_takes_the_servers_place(context: Context, hosts: Hosts, tmp_path: Path) -> None:
    path = tmp_path / "fast.bundle"
    Git(context).write_bundle(locked(hosts.second), path)
    environ = {"PATH": os.environ["PATH"]}
    alone = Context(environ=environ, cache=tmp_path / "alone", offline=True)
    with pytest.raises(OfflineError):
        Git(alone).write_bundle(locked(hosts.second), tmp_path / "copy")
    place = Git(alone).read_bundle(path, locked(hosts.second))
    assert Git(alone).read(place, hosts.second, "pyproject.toml") == PROJECT
    Git(alone).write_bundle(locked(hosts.second), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("host", [HOST, OLD_HOST])
def test_a_server_is_asked_for_a_commit_without_its_files(
    context: Context, hosts: Hosts, host: str
) -> None:
    git = Git(context)
    assert git.has_commit(f"https://{host}/{NAME}", hosts.second)
    # One that gives out refs only cannot be asked, and is believed to have it.
    assert git.has_commit(f"https://{host}/{NAME}", "e" * 40) == (host == OLD_HOST)


def test_a_bundle_that_is_not_whole_is_refused(
    context: Context, hosts: Hosts, tmp_path: Path
) -> None:
    path = tmp_path / "fast.bundle"
    Git(context).write_bundle(locked(hosts.second), path)
    alone = replace(context, cache=tmp_path / "alone")
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[-40] ^= 1
    for data in (whole[:-30], bytes(damaged), b"", whole[:60]):
        path.write_bytes(data)
        with pytest.raises(ExternalError, match="does not hold commit"):
            Git(alone).read_bundle(path, locked(hosts.second))
    path.write_bytes(whole)
    with pytest.raises(ExternalError, match="does not hold commit"):
        Git(alone).read_bundle(path, locked(hosts.first))
    assert not list((tmp_path / "alone").glob("git/*/*"))


def test_an_index_is_asked_by_the_real_uv(context: Context, hosts: Hosts, tmp_path: Path) -> None:
    wheel = WheelText(name="fast", version="1.5", files={"fast.py": b""}).zipped()
    hosts.files.add_index("/simple", {WHEEL: wheel})
    assert chosen(context, "{index: own}", packages="[fast==1.5]").index == "own"
    none = reason(context, "{index: own}", packages="[fast==1.6]")
    assert none == "there is no version of fast==1.6"
    hosts.files.statuses["/simple/fast/"] = 404
    try:
        fresh = replace(context, environ={**context.environ, "UV_CACHE_DIR": str(tmp_path / "uv")})
        gone = reason(fresh, "{index: own}", packages="[fast==1.5]")
    finally:
        del hosts.files.statuses["/simple/fast/"]
    assert gone == "fast was not found in the package registry"
