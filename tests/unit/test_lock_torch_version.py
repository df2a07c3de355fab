"""What `torch/version.py` says, told without running it, and the digest over a torch's files."""

from __future__ import annotations

import hashlib
import keyword
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import LockError
from builder.lock.base.torch_version import (
    TORCH_VERSION_MAX_BYTES,
    TorchVersion,
    is_torch_file,
    parse_torch_version,
    torch_digest,
)

CPU = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.10.0+cpu'
debug = False
cuda: Optional[str] = None
git_version = '449b1768410104d3ed79d3bcfe4ba1d65c7f22c0'
hip: Optional[str] = None
rocm: Optional[str] = None
xpu: Optional[str] = None
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CPU, TorchVersion("2.10.0+cpu", None)),
        (CPU.replace("cuda: Optional[str] = None", "cuda: Optional[str] = '13.0'"), ("", "13.0")),
        ("__version__ = '1.13.1'\ncuda = '11.7'\n", TorchVersion("1.13.1", "11.7")),
        ("__version__ = '2.0'\n", TorchVersion("2.0", None)),
        ("__version__ = '2.0'\ncuda: str\n", TorchVersion("2.0", None)),
        ("__version__ = cuda = '2.0'\n", TorchVersion("2.0", "2.0")),
        ("__version__ = '1'\n__version__ = '2'\n", TorchVersion("2", None)),
        ("'''\n__version__ = '1'\n'''\n__version__ = '2'\n", TorchVersion("2", None)),
        ("__version__ = '2\\d'\n", TorchVersion("2\\d", None)),
    ],
)
def test_says_version_and_cuda(text: str, found: tuple[str, str | None]) -> None:
    version = parse_torch_version(text)
    assert version == TorchVersion(found[0] or "2.10.0+cpu", found[1])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "__version__ = 2.0",
        "__version__ = None",
        "__version__ = open('/etc/passwd').read()",
        "__version__ = '2.0'\n__version__ = str(3)",
        "__version__ = f'2.0'",
        "if True:\n    __version__ = '2.0'",
        "x.__version__ = '2.0'",
        "__version__ = '2.0'\ncuda = 13.0",
        "__version__ = '2.0'\ncuda = '13' + '.0'",
        "__version__ = '2.0",
        "\0",
        "__version__ = '\ud800'",
        "-" * (TORCH_VERSION_MAX_BYTES - 1) + "1",
        "a" + ".b" * 8000,
        "(" * 16000,
        "__version__ = '2.0'\n" + "#" * TORCH_VERSION_MAX_BYTES,
    ],
    ids=range(17),
)
def test_refuses_what_is_not_said_plainly(text: str) -> None:
    with pytest.raises(LockError, match=r"torch/version\.py"):
        parse_torch_version(text)


_VERSIONS = st.text(st.characters(codec="utf-8"), max_size=30)


@given(_VERSIONS, st.none() | _VERSIONS, st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True)))
def test_reads_what_was_written(version: str, cuda: str | None, others: list[str]) -> None:
    lines = [f"{name}_ = 1" for name in others if not keyword.iskeyword(name)]
    text = "\n".join([*lines, f"__version__ = {version!r}", f"cuda: Optional[str] = {cuda!r}"])
    assert parse_torch_version(text) == TorchVersion(version, cuda)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(LockError):
        parse_torch_version(text)


@pytest.mark.parametrize(
    "path",
    [
        "torch/__init__.py",
        "torch/lib/libtorch.so",
        "torchgen/a/b.py",
        "functorch/x.py",
        "torch-2.10.0a0+x.dist-info/RECORD",
        "torch",
    ],
)
def test_files_of_torch(path: str) -> None:
    assert is_torch_file(path)


@pytest.mark.parametrize(
    "path",
    [
        "torch/__pycache__/x.cpython-312.pyc",
        "torch/__pycache__/x.nbi",
        "torch/x.pyc",
        "torchvision/__init__.py",
        "torch_tensorrt-2.0.dist-info/RECORD",
        "torchvision-1.dist-info/RECORD",
        "torch-2.0.egg-info/PKG-INFO",
        "numpy/torch/x.py",
    ],
)
def test_files_that_are_not_torchs(path: str) -> None:
    assert not is_torch_file(path)


def test_the_digest_is_over_sorted_lines() -> None:
    """The algorithm as its docstring has it, once by hand: others compute it too."""
    entries = {"torch/b": "22", "torch/a": "-> b", "other/c": "33", "torch/__pycache__/d": "44"}
    assert torch_digest(entries) == hashlib.sha256(b"torch/a\0-> b\ntorch/b\x0022\n").hexdigest()


def test_names_that_are_no_utf8_are_hashed_as_they_are_shown() -> None:
    raw = b"torch/\xff".decode("utf-8", "surrogateescape")
    assert torch_digest({raw: "1"}) == torch_digest({"torch/\\xff": "1"})


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text("0123456789abcdef")))
def test_the_digest_depends_on_torchs_entries_only(others: dict[str, str]) -> None:
    entries = {f"torch/{path}": value for path, value in others.items()}
    digest = torch_digest(entries)
    assert digest == torch_digest(dict(reversed(entries.items())))
    assert digest == torch_digest({"numpy/x": "1"} | entries)
    assert digest != torch_digest(entries | {"torch/new": "value"})
