"""Resolving: what uv is asked, what it may see, and what becomes of each of its answers."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomli_w

from builder import process
from builder.context import Context
from builder.errors import (
    BuilderError,
    ExternalError,
    LockError,
    MissingError,
    OfflineError,
    ToolError,
)
from builder.http import Http
from builder.lock.model import LockedWheel
from builder.lock.wheels import Request, Upgrade, resolve, uv_environment, uv_version
from builder.process import Completed

REQUEST = Request(
    requirements=("numpy>=2", "torch==2.9.0"), platform="linux/arm64", python="3.13", glibc="2.41"
)
SHA256 = "a" * 64


def wheel(filename: str, **changes: Any) -> dict[str, Any]:
    entry = {
        "url": f"https://files.example/{filename}",
        "size": 1000,
        "hashes": {"sha256": SHA256},
        **changes,
    }
    return {key: value for key, value in entry.items() if value is not None}


def package(
    name: str, *wheels: dict[str, Any], version: str = "1.0", **more: Any
) -> dict[str, Any]:
    found = {"wheels": list(wheels)} if wheels else {}
    return {"name": name, "version": version, **found, **more}


def pylock(*packages: dict[str, Any]) -> str:
    return tomli_w.dumps({"lock-version": "1.0", "created-by": "uv", "packages": list(packages)})


NUMPY = package("numpy", wheel("numpy-1.0-cp313-cp313-manylinux_2_28_aarch64.whl"))


@dataclass
class Uv:
    """Stands in for uv: leaves `answer` as the lock, or fails with what it `says`."""

    answer: str | None = None
    says: str | None = None
    argv: list[str] = field(default_factory=list)
    env: Mapping[str, str] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        check: bool = True,
        timeout_seconds: float | None = None,
    ) -> Completed:
        assert cwd is not None
        assert env is not None
        self.argv, self.env = list(argv), env
        self.files = {
            path.name: tomllib.loads(path.read_text()) for path in cwd.iterdir() if path.is_file()
        }
        if self.says is not None:
            raise ToolError("uv … ended with status 1", returncode=1, stderr=self.says)
        if self.answer is not None:
            (cwd / "pylock.toml").write_text(self.answer)
        return Completed(tuple(argv), 0, "", "")


def http_of(sizes: Mapping[str, int] | None = None) -> Http:
    """A server that answers HEAD with a size, and nothing else."""

    def answer(request: httpx.Request) -> httpx.Response:
        size = (sizes or {}).get(str(request.url))
        if request.method != "HEAD" or size is None:
            return httpx.Response(404)
        return httpx.Response(200, headers={"Content-Length": str(size)})

    return Http({}, transport=httpx.MockTransport(answer), sleep=lambda seconds: None)


def run(
    context: Context,
    uv: Uv,
    request: Request = REQUEST,
    sizes: Mapping[str, int] | None = None,
    **more: Any,
) -> tuple[LockedWheel, ...]:
    with http_of(sizes) as http:
        return resolve(request, context=context, http=http, run=uv, **more)


def test_uv_is_asked_for_the_target_and_for_wheels_only(context: Context) -> None:
    uv = Uv(pylock(NUMPY))
    run(context, uv)
    assert Path(uv.argv[0]).name == "uv"
    assert uv.argv[1:] == [
        *("pip", "compile", "pyproject.toml", "--config-file", "uv.toml"),
        *("--format", "pylock.toml", "--no-header", "--quiet"),
        *("--python-platform", "aarch64-manylinux_2_40", "--python-version", "3.13"),
        *("--only-binary", ":all:", "--output-file", "pylock.toml"),
    ]
    assert uv.files["pyproject.toml"] == {
        "project": {
            "name": "spark-build-recipe",
            "version": "0",
            "requires-python": "==3.13.*",
            "dependencies": ["numpy>=2", "torch==2.9.0"],
        }
    }
    assert uv.files["uv.toml"] == {"exclude-dependencies": []}
    assert "pylock.toml" not in uv.files
    assert list((context.cache / "scratch").iterdir()) == []


def test_indexes_pins_and_settings_reach_uv(context: Context) -> None:
    uv = Uv(pylock(NUMPY))
    request = replace(
        REQUEST,
        exclude=("flash-attn",),
        indexes={"ours": "https://index.example/simple", "cu130": "https://torch.example/cu130"},
        pinned={"torch": "cu130"},
        settings={"exclude-newer": "2026-01-01T00:00:00Z", "prerelease": "disallow"},
    )
    run(context, uv, request)
    assert uv.files["pyproject.toml"]["tool"]["uv"] == {
        "index": [
            {"name": "cu130", "url": "https://torch.example/cu130", "explicit": True},
            {"name": "ours", "url": "https://index.example/simple", "explicit": True},
        ],
        "sources": {"torch": {"index": "cu130"}},
    }
    assert uv.files["uv.toml"] == {
        "exclude-dependencies": ["flash-attn"],
        "exclude-newer": "2026-01-01T00:00:00Z",
        "prerelease": "disallow",
    }


@pytest.mark.parametrize(
    ("upgrade", "flags"),
    [
        (Upgrade(), []),
        (Upgrade(every=True), ["--upgrade"]),
        (
            Upgrade(packages=("numpy", "torch")),
            ["--upgrade-package", "numpy", "--upgrade-package", "torch"],
        ),
    ],
)
def test_earlier_versions_are_preferred_and_upgrades_named(
    context: Context, upgrade: Upgrade, flags: list[str]
) -> None:
    uv = Uv(pylock(NUMPY))
    earlier = LockedWheel(
        name="numpy", version="0.9", url="https://files.example/n.whl", sha256="b" * 64, size=9
    )
    run(context, uv, earlier=[earlier], upgrade=upgrade)
    assert [flag for flag in uv.argv if "upgrade" in flag or flag in flags] == flags
    assert uv.files["pylock.toml"]["packages"] == [
        {
            "name": "numpy",
            "version": "0.9",
            "wheels": [{"url": "https://files.example/n.whl", "hashes": {"sha256": "b" * 64}}],
        }
    ]
    assert bool(upgrade) == bool(flags)


def test_offline_is_handed_on(context: Context) -> None:
    uv = Uv(pylock(NUMPY))
    run(replace(context, offline=True), uv)
    assert uv.argv[-1] == "--offline"


def test_no_requirements_need_no_uv(context: Context) -> None:
    assert run(context, Uv(), replace(REQUEST, requirements=())) == ()


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


def test_only_what_reaches_the_network_passes(context: Context) -> None:
    """NGC sets PIP_CONSTRAINT, CI sets UV_*: neither may change what is resolved."""
    uv = Uv(pylock(NUMPY))
    run(replace(context, environ={**PASSED, **KEPT_OUT}), uv)
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


def test_the_best_wheel_of_each_package_is_locked_in_name_order(context: Context) -> None:
    torch = package(
        "torch",
        wheel("torch-2.9.0+cu130-cp313-cp313-win_amd64.whl"),
        wheel("torch-2.9.0+cu130-cp312-cp312-manylinux_2_28_aarch64.whl"),
        wheel("torch-2.9.0+cu130-cp313-cp313-manylinux_2_28_x86_64.whl"),
        wheel("torch-2.9.0+cu130-py3-none-any.whl"),
        wheel("torch-2.9.0%2Bcu130-cp313-cp313-manylinux_2_28_aarch64.whl"),
        wheel("torch-2.9.0+cu130-cp310-abi3-manylinux_2_28_aarch64.whl"),
        version="2.9.0+cu130",
    )
    elsewhere = package(
        "colorama", wheel("colorama-1.0-py3-none-any.whl"), marker="sys_platform == 'win32'"
    )
    found = run(context, Uv(pylock(torch, elsewhere, NUMPY)))
    assert found == (
        LockedWheel(
            name="numpy",
            version="1.0",
            url="https://files.example/numpy-1.0-cp313-cp313-manylinux_2_28_aarch64.whl",
            sha256=SHA256,
            size=1000,
        ),
        LockedWheel(
            name="torch",
            version="2.9.0+cu130",
            url="https://files.example/torch-2.9.0%2Bcu130-cp313-cp313-manylinux_2_28_aarch64.whl",
            sha256=SHA256,
            size=1000,
        ),
    )


def test_a_size_comes_from_the_index_else_from_before_else_from_the_server(
    context: Context,
) -> None:
    urls = {f"https://files.example/{name}-1.0-py3-none-any.whl": name for name in "abc"}
    packages = [
        package("a", wheel("a-1.0-py3-none-any.whl", size=11)),
        package("b", wheel("b-1.0-py3-none-any.whl", size=None, hashes={"sha256": "b" * 64})),
        package("c", wheel("c-1.0-py3-none-any.whl", size=None, hashes={"sha256": "c" * 64})),
    ]
    earlier = LockedWheel(name="b", version="1.0", url="u", sha256="b" * 64, size=22)
    sizes = {next(url for url, name in urls.items() if name == "c"): 33}
    found = run(context, Uv(pylock(*packages)), earlier=[earlier], sizes=sizes)
    assert [entry.size for entry in found] == [11, 22, 33]


def test_credentials_of_an_index_do_not_get_into_the_lock(context: Context) -> None:
    url = "https://me:hush@files.example/numpy-1.0-py3-none-any.whl"
    entry = package("numpy", wheel("x", url=url))
    [found] = run(context, Uv(pylock(entry)))
    assert found.url == "https://files.example/numpy-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    "entry",
    [
        package(
            "numpy",
            sdist={"url": "https://files.example/numpy-1.0.tar.gz", "hashes": {"sha256": SHA256}},
        ),
        package("numpy", wheel("numpy-1.0-cp312-cp312-manylinux_2_28_aarch64.whl")),
        package("numpy", wheel("numpy-1.0-cp313-cp313-manylinux_2_99_aarch64.whl")),
        package(
            "numpy",
            wheel("numpy-1.0-cp313-cp313-win_amd64.whl"),
            sdist={"url": "https://files.example/numpy-1.0.tar.gz", "hashes": {"sha256": SHA256}},
        ),
        package("numpy", directory={"path": "."}),
        package("numpy", wheel("numpy-1.0-py3-none-any.whl", hashes={"md5": "a"})),
        package(
            "numpy",
            wheel("numpy-1.0-py3-none-any.whl", url=None, path="numpy-1.0-py3-none-any.whl"),
        ),
    ],
    ids=["sdist", "python", "glibc", "sdist-too", "directory", "md5", "path"],
)
def test_a_package_without_a_wheel_for_the_target_is_refused(
    context: Context, entry: dict[str, Any]
) -> None:
    with pytest.raises(LockError, match="numpy"):
        run(context, Uv(pylock(entry)))


@pytest.mark.parametrize("answer", ["", "not toml [", 'lock-version = "7.0"', "packages = 7"])
def test_an_answer_that_is_no_lock_is_an_error_of_uvs(context: Context, answer: str) -> None:
    with pytest.raises(ExternalError, match="uv wrote a lock that cannot be read"):
        run(context, Uv(answer))


NO_SOLUTION = """\
warning: something
  x No solution found when resolving dependencies:
  ╰─▶ Because there is no version of numpy>=99 and you require numpy>=99, we can conclude …
"""


@pytest.mark.parametrize(
    ("says", "offline", "kind"),
    [
        (NO_SOLUTION, False, LockError),
        (NO_SOLUTION, True, LockError),
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
    says: str,
    kind: type[BuilderError],
    *,
    offline: bool,
) -> None:
    with pytest.raises(BuilderError) as caught:
        run(replace(context, offline=offline), Uv(says=says))
    assert type(caught.value) is kind
    assert "warning:" not in caught.value.message
    if says:
        assert says.splitlines()[-1].strip() in caught.value.message
    assert list((context.cache / "scratch").iterdir()) == []


def test_a_host_without_uv_is_told_what_to_install(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> str:
        raise FileNotFoundError("/usr/bin/uv")

    monkeypatch.setattr("uv.find_uv_bin", absent)
    with pytest.raises(MissingError, match="uv is not installed") as caught:
        run(context, Uv())
    assert "pip install uv" in (caught.value.hint or "")


def test_the_version_is_the_one_that_uv_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(argv: Sequence[str], **settings: object) -> Completed:
        assert argv[1:] == ["--version"]
        return Completed(tuple(argv), 0, "uv 0.9.8 (85c5d3228 2025-11-07)\n", "")

    monkeypatch.setattr(process, "run", say)
    assert uv_version() == "0.9.8"
