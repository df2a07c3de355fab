"""Running uv: what it may see of the caller's surroundings, and what its failures become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from builder import process
from builder.context import Context
from builder.errors import BuilderError, ExternalError, MissingError, OfflineError
from builder.lock.uv import (
    Answer,
    Question,
    UnsatisfiableError,
    compile_lock,
    uv_environment,
    uv_version,
)
from builder.process import Completed
from tests.fake_uv import NO_SOLUTION, Uv, package, pylock, wheel

QUESTION = Question(dependencies=("numpy>=2",), platform="linux/arm64", python="3.13", glibc="2.41")
NUMPY = package("numpy", wheel("numpy-1.0-cp313-cp313-manylinux_2_28_aarch64.whl"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def run(context: Context, uv: Uv, folder: Path) -> Answer:
    return compile_lock(QUESTION, folder, context=context, run=uv)


PASSED = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "HTTPS_PROXY": "http://proxy.example:3128",
    "no_proxy": "localhost",
    "SSL_CERT_FILE": "/etc/ca.pem",
    "NETRC": "/home/me/netrc",
    "UV_INDEX_OURS_USERNAME": "me",
    "UV_INDEX_OURS_PASSWORD": "hush",
    "UV_CACHE_DIR": "/cache",
    "UV_SYSTEM_CERTS": "1",
    "UV_DEFAULT_INDEX": "https://index.example/simple",
}
KEPT_OUT = {
    "UV_INDEX": "https://more.example/simple",
    "UV_EXTRA_INDEX_URL": "https://more.example/simple",
    "UV_FIND_LINKS": "/wheels",
    "UV_INDEX_STRATEGY": "unsafe-best-match",
    "UV_PRERELEASE": "allow",
    "UV_RESOLUTION": "lowest",
    "UV_EXCLUDE_NEWER": "2020-01-01",
    "UV_CONSTRAINT": "/c.txt",
    "UV_OVERRIDE": "/o.txt",
    "UV_BUILD_CONSTRAINT": "/c.txt",
    "UV_CONFIG_FILE": "/uv.toml",
    "UV_NO_CONFIG": "1",
    "UV_NO_INDEX": "1",
    "UV_NO_BINARY": "1",
    "UV_TORCH_BACKEND": "cpu",
    "UV_PYTHON": "3.9",
    "UV_PYTHON_PLATFORM": "windows",
    "UV_CUSTOM_COMPILE_COMMAND": "x",
    "UV_FORK_STRATEGY": "fewest",
    "UV_OFFLINE": "1",
    "PIP_INDEX_URL": "https://other.example/simple",
    "PIP_EXTRA_INDEX_URL": "https://more.example/simple",
    "PIP_CONSTRAINT": "/etc/pip/constraint.txt",
    "PIP_REQUIRE_HASHES": "1",
    "VIRTUAL_ENV": "/venv",
    "CONDA_PREFIX": "/conda",
    "PYTHONPATH": "/lib",
    "AWS_SECRET_ACCESS_KEY": "hush",
}
OURS = {"UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}


def test_only_what_reaches_the_network_passes(context: Context, folder: Path) -> None:
    """NGC sets PIP_CONSTRAINT, CI sets UV_*: neither may change what is resolved."""
    uv = Uv(pylock(NUMPY))
    run(replace(context, environ={**PASSED, **KEPT_OUT}), uv, folder)
    assert uv.env == {**PASSED, **OURS}


def test_our_own_settings_cannot_be_taken_over() -> None:
    hostile = {"UV_PYTHON_DOWNLOADS": "automatic", "UV_NO_PROGRESS": "0", "NO_COLOR": ""}
    assert uv_environment(hostile) == OURS


def write_config(home: Path, text: str) -> Path:
    path = home / ".config" / "uv" / "uv.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return home


OTHER = 'index-strategy = "unsafe-best-match"\n[[index]]\nname = "x"\nurl = "https://x.example"\n'


@pytest.mark.parametrize(
    ("config", "pip", "mirror"),
    [
        ("", None, None),
        ("", "https://pip.example/simple", "https://pip.example/simple"),
        ('index-url = "https://uv.example/simple"', None, "https://uv.example/simple"),
        (f"{OTHER}default = true\nfurther = 1\n", "https://pip.example", "https://x.example"),
        (OTHER, "https://pip.example", "https://pip.example"),
        ("not toml [", "https://pip.example", "https://pip.example"),
        ('[pip]\nindex-url = "https://uv.example/simple"', None, "https://uv.example/simple"),
        ("pip = 7", None, None),
        ("index = 7", None, None),
        ("index = [7, {default = true}]", None, None),
    ],
)
def test_a_mirror_comes_from_the_users_uv_or_pip(
    tmp_path: Path, config: str, pip: str | None, mirror: str | None
) -> None:
    environ = {"HOME": str(write_config(tmp_path, config))}
    environ |= {"PIP_INDEX_URL": pip} if pip else {}
    assert uv_environment(environ).get("UV_DEFAULT_INDEX") == mirror


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_uvs_own_variable_goes_first(tmp_path: Path, name: str) -> None:
    home = write_config(tmp_path, 'index-url = "https://uv.example/simple"')
    environ = {
        "HOME": str(home),
        name: "https://own.example",
        "PIP_INDEX_URL": "https://pip.example",
    }
    found = uv_environment(environ)
    assert {key: value for key, value in found.items() if "INDEX" in key} == {
        name: "https://own.example"
    }


def test_the_configuration_is_looked_for_where_xdg_says(tmp_path: Path) -> None:
    write_config(tmp_path, 'index-url = "https://uv.example/simple"')
    environ = {"HOME": "/nowhere", "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    assert uv_environment(environ)["UV_DEFAULT_INDEX"] == "https://uv.example/simple"


@pytest.mark.parametrize("answer", ["", "not toml [", 'lock-version = "7.0"', "packages = 7"])
def test_an_answer_that_is_no_lock_is_an_error_of_uvs(
    context: Context, folder: Path, answer: str
) -> None:
    with pytest.raises(ExternalError, match="uv wrote a lock that cannot be read"):
        run(context, Uv(answer), folder)


@pytest.mark.parametrize(
    ("says", "offline", "kind"),
    [
        (NO_SOLUTION, False, UnsatisfiableError),
        (NO_SOLUTION, True, UnsatisfiableError),
        ("error: Failed to fetch: `https://index.example/simple/numpy/`", False, ExternalError),
        (
            "error: Network connectivity is disabled, but numpy is needed\n  (network)",
            True,
            OfflineError,
        ),
        ("error: numpy was not found in the cache\n", True, OfflineError),
        ("error: numpy was not found in the cache\n", False, ExternalError),
        ("", False, ExternalError),
    ],
)
def test_each_failure_of_uv_is_told_by_its_kind(
    context: Context,
    folder: Path,
    says: str,
    kind: type[BuilderError],
    *,
    offline: bool,
) -> None:
    with pytest.raises(BuilderError) as caught:
        run(replace(context, offline=offline), Uv(says=says), folder)
    assert type(caught.value) is kind
    assert "warning:" not in caught.value.message
    assert "error:" not in caught.value.message
    if says:
        assert says.splitlines()[-1].strip().removeprefix("error: ") in caught.value.message


COMPILED = """\
error: No solution found when resolving dependencies
  cause: Because old-one==4.8 has no usable wheels and spark-build-recipe depends on
         old-one==4.8, we can conclude that your requirements are unsatisfiable.

hint: Wheels are required for `old-one` because building from source is disabled for all packages \
(i.e., with `--no-build`)
"""
TAGS = """\
error: No solution found when resolving dependencies
  cause: Because all versions of video have no wheels with a matching platform tag and tri==2.0.0 \
has no wheels with a matching Python ABI tag (e.g., `cp313`), we can conclude …

hint: Wheels are available for `video` (v0.6.0) on the following platforms: `win_amd64`

hint: You require CPython 3.13 (`cp313`), but we only found wheels for `tri` (v2.0.0) with the \
following Python ABI tags: `cp310`

hint: You require CPython 3.13 (`cp313`), but we only found wheels for `video` (v0.2.0) with the \
following Python ABI tags: `cp37m`

hint: Pre-releases are available for `other` in the requested range
"""


@pytest.mark.parametrize(
    ("says", "subjects"), [(COMPILED, ["old-one==4.8"]), (TAGS, ["video", "tri==2.0.0"])]
)
def test_a_package_without_a_wheel_is_named_with_what_can_be_done(
    context: Context, folder: Path, says: str, subjects: list[str]
) -> None:
    with pytest.raises(UnsatisfiableError) as caught:
        run(context, Uv(says=says), folder)
    hints = (caught.value.hint or "").splitlines()
    place = "has no wheel for CPython 3.13 on aarch64 with glibc 2.41: "
    assert [hint.partition(place)[0] for hint in hints] == [f"{name} " for name in subjects]
    assert all("`sources`" in hint and "`exclude`" in hint for hint in hints)


def test_uvs_hints_are_sentences_and_none_is_about_its_options(
    context: Context, folder: Path
) -> None:
    messages = []
    for says in (COMPILED, TAGS):
        with pytest.raises(UnsatisfiableError) as caught:
            run(context, Uv(says=says), folder)
        messages.append(caught.value.message)
    assert not any(word in text for text in messages for word in ("hint:", "--no-build", "\n\n"))
    assert messages[0].endswith("unsatisfiable.")
    assert "\n  Wheels are available for `video` (v0.6.0) on the following" in messages[1]


def test_a_host_without_uv_is_told_what_to_install(
    context: Context, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> str:
        raise FileNotFoundError("/usr/bin/uv")

    monkeypatch.setattr("uv.find_uv_bin", absent)
    with pytest.raises(MissingError, match="uv is not installed") as caught:
        run(context, Uv(), folder)
    assert "pip install uv" in (caught.value.hint or "")


def test_the_version_is_the_one_that_uv_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(argv: Sequence[str], **settings: object) -> Completed:
        assert argv[1:] == ["--version"]
        return Completed(tuple(argv), 0, "uv 0.9.8 (85c5d3228 2025-11-07)\n", "")

    monkeypatch.setattr(process, "run", say)
    assert uv_version() == "0.9.8"
