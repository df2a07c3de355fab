"""vLLM 0.13.0 as its makers publish it, in small: its wheel for CUDA 13, and its repository."""

from __future__ import annotations

from .standins.wheels import pack_wheel

TAG = "v0.13.0"
REPOSITORY = "vllm-project/vllm"
WHEEL_PATH = (
    "/72506c98349d6bcd32b4e33eec7b5513453c1502/"
    "vllm-0.13.0+cu130-cp38-abi3-manylinux_2_35_aarch64.whl"
)
WHEEL_URL = f"https://wheels.vllm.ai{WHEEL_PATH.replace('+', '%2B')}"

# Some of the real ones, and all that are tied to its torch.
_COMMON = (
    *("regex", "numpy", "requests>=2.26.0", "tqdm", "tiktoken>=0.6.0", "partial-json-parser"),
    "setuptools<81.0.0,>=77.0.3; python_version > '3.11'",
)
_CUDA = (
    *("numba==0.61.2", "torch==2.9.0", "torchaudio==2.9.0", "torchvision==0.24.0"),
    "xformers==0.0.33.post1; platform_system == 'Linux' and platform_machine == 'x86_64'",
)
_PYPROJECT = """\
[build-system]
requires = ["cmake>=3.26.1", "ninja", "packaging>=24.2", "setuptools>=77.0.3,<81.0.0",
  "setuptools-scm>=8.0", "torch == 2.9.0", "wheel", "jinja2"]
build-backend = "setuptools.build_meta"

[project]
name = "vllm"
requires-python = ">=3.10,<3.14"
dynamic = ["version", "dependencies", "optional-dependencies"]
"""
_USE_EXISTING_TORCH = """\
import glob

for file in [*glob.glob("requirements/**/*.txt", recursive=True), "pyproject.toml"]:
    with open(file) as lines:
        kept = [line for line in lines if "torch" not in line.lower()]
    with open(file, "w") as lines:
        lines.writelines(kept)
"""


def vllm_wheel() -> bytes:
    """The wheel of `WHEEL_URL`."""
    files = {"vllm/__init__.py": b"__version__ = '0.13.0'\n"}
    return pack_wheel(
        "vllm",
        "0.13.0+cu130",
        files,
        tag="cp38-abi3-manylinux_2_35_aarch64",
        requires=(*_COMMON, *_CUDA),
        entry_points="[console_scripts]\nvllm = vllm:main\n",
        python="<3.14,>=3.10",
    )[1]


def vllm_repository() -> dict[str, str]:
    """The files of the repository at `TAG`, as far as they say what is required."""
    return {
        "pyproject.toml": _PYPROJECT,
        "requirements/common.txt": "".join(f"{line}\n" for line in _COMMON),
        "requirements/cuda.txt": "\n".join(["-r common.txt", "", *_CUDA, ""]),
        "requirements/build.txt": "cmake>=3.26.1\nninja\ntorch==2.9.0\n",
        "use_existing_torch.py": _USE_EXISTING_TORCH,
    }


def torch_wheel(python: str) -> tuple[str, bytes]:
    """The torch of the index cu130 for `cpXY`, with some of what it requires."""
    version = b"__version__ = '2.9.0+cu130'\ncuda: str | None = '13.0'\n"
    return pack_wheel(
        "torch",
        "2.9.0+cu130",
        {"torch/__init__.py": b"", "torch/version.py": version},
        tag=f"{python}-{python}-manylinux_2_28_aarch64",
        requires=(
            *("filelock", "typing-extensions>=4.10.0", "sympy>=1.13.3", "networkx>=2.5.1"),
            *("jinja2", "fsspec>=0.8.5", 'triton==3.5.0; platform_system == "Linux"'),
            'nvidia-cuda-runtime==13.0.48; platform_system == "Linux"',
        ),
        python=">=3.10",
    )
