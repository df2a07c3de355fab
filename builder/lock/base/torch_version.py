"""What `torch/version.py` says of a torch, and one digest over all the files of one.

The lock reads both out of a base's layers or a wheel; verification computes the digest anew.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from builder.errors import LockError

TORCH_VERSION_FILE = "torch/version.py"
TORCH_VERSION_MAX_BYTES = 16 << 10
"""It has some 300 bytes."""

_TORCH_FOLDERS = ("torch", "torchgen", "functorch")


class TorchVersion(NamedTuple):
    """`module` is `torch.__version__`, `cuda` is `torch.version.cuda`, X.Y or None without CUDA."""

    module: str
    cuda: str | None


def parse_torch_version(text: str) -> TorchVersion:
    """Read `torch/version.py`, as tools/generate_torch_version.py of PyTorch writes it.

    The text is parsed and never run: its two names must be assigned literals, and a name's last
    assignment counts, as in Python. Raises LockError for any other text.
    """
    assigned = dict(_assignments(_parse(text)))
    version, cuda = assigned.get("__version__"), assigned.get("cuda", ast.Constant(None))
    if not isinstance(version, ast.Constant) or not isinstance(version.value, str):
        raise LockError(f"{TORCH_VERSION_FILE} does not say what torch.__version__ is")
    if not isinstance(cuda, ast.Constant) or not isinstance(cuda.value, str | None):
        raise LockError(f"{TORCH_VERSION_FILE} does not say what torch.version.cuda is")
    return TorchVersion(version.value, cuda.value)


def torch_digest(entries: Mapping[str, str]) -> str:
    r"""One sha256, in hex, over all the files of a torch.

    `entries` are the files and links below a package folder (`site-packages`): from its path
    relative to that folder, with `/` between parts, to the sha256 of a file in hex, or to `-> `
    and a symbolic link's target as it is written. Of these count what lies below `torch/`,
    `torchgen/`, `functorch/` and any `torch-*.dist-info/` (or a link of such a name), without
    `__pycache__` folders and `.pyc` files, which appear when torch is imported; others may be
    given, and are left out.

    For each, in the order of the paths' bytes, `path`, a zero byte, the value and a newline are
    hashed, all as UTF-8. A byte of a name that is no UTF-8 is written `\xNN` (Python's error
    handler `backslashreplace`). Modes, owners and times do not count: they do not change what
    Python imports.
    """
    hasher = hashlib.sha256()
    counted = {_encoded(path): value for path, value in entries.items() if is_torch_file(path)}
    for path in sorted(counted):
        hasher.update(b"%s\0%s\n" % (path, _encoded(counted[path])))
    return hasher.hexdigest()


def is_torch_file(path: str) -> bool:
    """Whether a path, relative to a package folder, is one that `torch_digest` counts."""
    top, *below = path.split("/")
    if "__pycache__" in below or path.endswith(".pyc"):
        return False
    return top in _TORCH_FOLDERS or (top.startswith("torch-") and top.endswith(".dist-info"))


def _encoded(text: str) -> bytes:
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return shown.encode()


def _parse(text: str) -> ast.Module:
    if len(text) > TORCH_VERSION_MAX_BYTES:
        raise LockError(f"{TORCH_VERSION_FILE} has more than {TORCH_VERSION_MAX_BYTES} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the parser finds odd is nobody's business here
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise LockError(f"{TORCH_VERSION_FILE} is not Python that can be read") from error


def _assignments(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The names that the module's own lines give a value, in order; `cuda: str` gives none."""
    for node in module.body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and node.value is not None:
                yield target.id, node.value
