"""git: what it is asked, what it may see, and what becomes of its answers. No git is run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from builder.context import Context
from builder.errors import ExternalError, MissingError, OfflineError, ToolError
from builder.lock.git import LOCKED_REF, Git, git_environment, shown
from builder.lock.model import LockedGit
from builder.process import Completed

URL = "https://git.example/team/fast.git"
COMMIT, TAG = "c" * 40, "a" * 40
LOCKED = LockedGit(name="fast", url=URL, ref="v1", commit=COMMIT)


@dataclass
class FakeGit:
    """Answers each subcommand with a text, or fails with a message; keeps what it was asked."""

    answers: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    env: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        **settings: Any,
    ) -> Completed:
        assert timeout_seconds is not None
        self.env = env or {}
        words = list(argv[1:])
        while words[0] == "-c":
            del words[:2]
        self.asked.append(words)
        name = next(word for word in words if not word.startswith("--git-dir="))
        if name == "init":
            Path(words[-1]).mkdir()
            (Path(words[-1]) / "HEAD").touch()
        if name == "bundle":
            Path(words[-2]).write_bytes(b"# v2 git bundle\n")
        if name in self.failures:
            raise ToolError("git …", returncode=128, stderr=self.failures[name])
        return Completed(tuple(argv), 0, self.answers.get(name, ""), "")


WHOLE = {"rev-parse": f"{COMMIT}\n", "cat-file": "commit\n"}


def refused(context: Context, said: str) -> str:
    git = Git(context, FakeGit(failures={"ls-remote": said}))
    with pytest.raises(ExternalError) as caught:
        git.find_commit(URL, "v1")
    return caught.value.message


@pytest.mark.parametrize(
    ("ref", "listed", "commit"),
    [
        ("v1", f"{TAG}\trefs/tags/v1\n{COMMIT}\trefs/tags/v1^{{}}\n", COMMIT),
        ("v1", f"{COMMIT}\trefs/tags/v1\n", COMMIT),
        ("main", f"{COMMIT}\trefs/heads/main\n{TAG}\trefs/heads/x/refs/heads/main\n", COMMIT),
        ("both", f"{TAG}\trefs/heads/both\n{COMMIT}\trefs/tags/both\n", COMMIT),
        ("refs/pull/7/head", f"{COMMIT}\trefs/pull/7/head\n", COMMIT),
    ],
)
def test_a_ref_is_a_tag_then_a_branch(context: Context, ref: str, listed: str, commit: str) -> None:
    run = FakeGit(answers={"ls-remote": listed})
    assert Git(context, run).find_commit(URL, ref) == commit
    assert run.asked[0][:4] == ["ls-remote", "--quiet", "--", URL]


@pytest.mark.parametrize("ref", ["C" * 40, "c" * 64])
def test_a_whole_commit_is_taken_as_it_is(context: Context, ref: str) -> None:
    run = FakeGit()
    assert Git(context, run).find_commit(URL, ref) == ref.lower()
    assert run.asked == []


def test_a_ref_that_is_not_there_is_told(context: Context) -> None:
    git = Git(context, FakeGit(answers={"ls-remote": f"{COMMIT}\trefs/heads/x/refs/heads/v1\n"}))
    with pytest.raises(ExternalError, match=r"fast\.git: no tag or branch there is called `v1`$"):
        git.find_commit(URL, "v1")
    with pytest.raises(ExternalError, match="`abc1234`; a commit is named by all its 40 digits"):
        git.find_commit(URL, "abc1234")


def test_gits_own_words_are_the_reason_and_hold_no_secret(context: Context) -> None:
    said = (
        "warning: something else\nremote: Repository not found.\n"
        "fatal: repository 'https://user:secret@git.example/team/fast.git/?token=secret' not found"
    )
    message = refused(context, said)
    assert message == (
        f"{URL}: Repository not found.; repository 'https://git.example/team/fast.git/' not found"
    )
    asks = "fatal: could not read Username for 'https://x': terminal prompts disabled\n"
    assert "the server asks for credentials" in refused(context, asks)
    assert refused(context, "killed\n") == f"{URL}: killed"
    assert refused(context, "") == f"{URL}: git gives no reason"


def test_a_host_without_git_is_told_what_to_install(context: Context) -> None:
    def absent(*arguments: object, **more: object) -> Completed:
        raise MissingError("git: No such file or directory")

    with pytest.raises(MissingError) as caught:
        Git(context, absent).find_commit(URL, "v1")
    assert caught.value.hint == "install git (`apt-get install git`, `dnf install git`)"


def test_a_commit_is_fetched_once_alone_and_without_history(context: Context) -> None:
    run = FakeGit(answers=WHOLE)
    place = Git(context, run).fetch(URL, COMMIT)
    assert place.name == COMMIT
    assert place.parent.parent == context.cache / "git"
    init, fetch, *_ = run.asked
    assert init[:4] == ["init", "--quiet", "--bare", "--template="]
    assert fetch[1:5] == ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules"]
    assert fetch[5:] == ["--depth=1", "--", URL, f"+{COMMIT}:{LOCKED_REF}"]
    count = len(run.asked)
    assert Git(replace(context, offline=True), run).fetch(URL, COMMIT) == place
    assert len(run.asked) == count


def test_a_sha256_repository_is_made_for_a_sha256_commit(context: Context) -> None:
    commit = "d" * 64
    run = FakeGit(answers={**WHOLE, "rev-parse": commit})
    Git(context, run).fetch(URL, commit)
    assert "--object-format=sha256" in run.asked[0]


@pytest.mark.parametrize(
    ("said", "fetches"),
    [
        ("error: Server does not allow request for unadvertised object cc", 2),
        ("fatal: remote error: upload-pack: not our ref cc", 1),
        ("fatal: unable to access 'https://git.example/': Could not resolve host", 1),
    ],
)
def test_everything_is_fetched_only_where_the_server_gives_no_single_commit(
    context: Context, said: str, fetches: int
) -> None:
    run = FakeGit(failures={"fetch": said})
    with pytest.raises(ExternalError, match=r"^https://git\.example/team/fast\.git: ") as caught:
        Git(context, run).fetch(URL, COMMIT)
    assert not isinstance(caught.value, ToolError)
    assert sum("fetch" in words for words in run.asked) == fetches
    assert not list(context.cache.glob("git/*/*"))


@pytest.mark.parametrize(
    ("said", "there"),
    [
        (None, True),
        ("fatal: remote error: upload-pack: not our ref cc", False),
        ("error: Server does not allow request for unadvertised object cc", True),
    ],
)
def test_a_server_is_asked_for_a_commit_by_itself(
    context: Context, said: str | None, *, there: bool
) -> None:
    run = FakeGit(failures={} if said is None else {"fetch": said})
    assert Git(context, run).has_commit(URL, COMMIT) == there
    assert run.asked[-1][-3:] == ["--", URL, COMMIT]


def test_a_server_that_cannot_be_asked_is_no_answer(context: Context) -> None:
    run = FakeGit(failures={"fetch": "fatal: Could not resolve host: git.example"})
    with pytest.raises(ExternalError, match="Could not resolve host"):
        Git(context, run).has_commit(URL, COMMIT)


def test_another_object_than_a_commit_is_not_kept(context: Context) -> None:
    for answers in ({**WHOLE, "rev-parse": TAG}, {**WHOLE, "cat-file": "tag\n"}):
        with pytest.raises(ExternalError, match="is not the id of a commit there"):
            Git(context, FakeGit(answers=answers)).fetch(URL, COMMIT)
    assert not list(context.cache.glob("git/*/*"))


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (f"100644 blob {TAG}      12\ta.txt\0", "text"),
        (f"040000 tree {TAG}       -\ta.txt\0", None),
        ("", None),
    ],
)
def test_a_file_is_read_at_the_commit(context: Context, entry: str, text: str | None) -> None:
    run = FakeGit(answers={"ls-tree": entry, "cat-file": "text"})
    assert Git(context, run).read(context.cache, COMMIT, "a.txt") == text
    assert run.asked[0][-3:] == [COMMIT, "--", "a.txt"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (f"120000 blob {TAG}      12\ta.txt\0", "a.txt: is no plain file there"),
        (f"160000 commit {TAG}       -\ta.txt\0", "a.txt: is no plain file there"),
        (f"100644 blob {TAG} 9999999\ta.txt\0", "a.txt: is larger than 1 MiB"),
    ],
)
def test_links_submodules_and_large_files_are_not_read(
    context: Context, entry: str, message: str
) -> None:
    git = Git(context, FakeGit(answers={"ls-tree": entry}))
    with pytest.raises(ExternalError, match=message):
        git.read(context.cache, COMMIT, "a.txt")


def test_a_bundle_is_whole_or_not_there(context: Context, tmp_path: Path) -> None:
    path = tmp_path / "out" / "fast.bundle"
    with pytest.raises(ExternalError):
        Git(context, FakeGit(failures={"fetch": "fatal: gone"})).write_bundle(LOCKED, path)
    assert not path.exists()
    run = FakeGit(answers=WHOLE)
    Git(context, run).write_bundle(LOCKED, path)
    assert path.read_bytes() == b"# v2 git bundle\n"
    assert run.asked[-1][-1] == LOCKED_REF


def test_a_bundle_brings_the_commit_without_the_network(context: Context, tmp_path: Path) -> None:
    offline = replace(context, offline=True)
    run = FakeGit(answers=WHOLE)
    place = Git(offline, run).read_bundle(tmp_path / "fast.bundle", LOCKED)
    assert (place / "shallow").read_text() == f"{COMMIT}\n"
    assert Git(offline, run).fetch(URL, COMMIT) == place


@pytest.mark.parametrize(
    "run",
    [
        FakeGit(failures={"fetch": "error: did not send all necessary objects"}),
        FakeGit(answers={**WHOLE, "rev-parse": TAG}),
    ],
)
def test_a_bundle_of_something_else_is_refused(
    context: Context, tmp_path: Path, run: FakeGit
) -> None:
    path = tmp_path / "fast.bundle"
    with pytest.raises(ExternalError, match=f"fast.bundle: does not hold commit {COMMIT}"):
        Git(context, run).read_bundle(path, LOCKED)
    assert not list(context.cache.glob("git/*/*"))


def test_offline_nothing_is_asked(context: Context) -> None:
    run = FakeGit()
    git = Git(replace(context, offline=True), run)
    with pytest.raises(OfflineError):
        git.find_commit(URL, "v1")
    with pytest.raises(OfflineError):
        git.fetch(URL, COMMIT)
    assert run.asked == []


def test_git_sees_what_reaches_a_server_and_never_asks() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "SSH_AUTH_SOCK": "/run/agent",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "credential.helper",
        "GIT_CONFIG_VALUE_0": "store",
        "GIT_DIR": "/elsewhere",
        "GIT_INDEX_FILE": "/elsewhere/index",
        "GIT_TERMINAL_PROMPT": "1",
        "GIT_ALLOW_PROTOCOL": "ext",
        "HF_TOKEN": "secret",
    }
    assert git_environment(environ) == {
        **{key: environ[key] for key in ("PATH", "HOME", "SSH_AUTH_SOCK")},
        **{key: environ[key] for key in environ if key.startswith("GIT_CONFIG_")},
        "GIT_SSL_CAINFO": "/etc/ca.pem",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "https:ssh:git:file",
        "GIT_LITERAL_PATHSPECS": "1",
        "LC_ALL": "C",
    }
    own = git_environment({"SSL_CERT_FILE": "/a", "GIT_SSL_CAINFO": "/b", "SSL_CERT_DIR": "/c"})
    assert (own["GIT_SSL_CAINFO"], own["GIT_SSL_CAPATH"]) == ("/b", "/c")


def test_a_url_is_shown_without_what_may_be_a_secret() -> None:
    assert shown("https://git.example/x?token=1") == "https://git.example/x"
    assert shown("git@git.example:team/x.git") == "git@git.example:team/x.git"
    assert shown("ssh://git@git.example/x") == "ssh://git@git.example/x"
