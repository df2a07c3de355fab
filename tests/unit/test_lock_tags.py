"""Tags of bases: which are of one kind, and which of those are newer."""

from __future__ import annotations

import pytest

from builder.lock.changes.tags import newer_tags, parse_tag

PYTORCH = ("25.10-py3", "25.11-py3", "26.01-py3", "26.08-py3", "26.08-py3-igpu", "26.09.post1-py3")
CUDA = (
    *("12.9.1-base-ubuntu24.04", "13.0.2-base-ubuntu24.04", "13.0.2-devel-ubuntu24.04"),
    *("13.3.1-base-ubuntu24.04", "13.3.1-base-ubuntu26.04", "13.10.0-base-ubuntu24.04"),
    *("14.0.0-base-ubuntu24.04", "13.9-base-ubuntu24.04", "latest"),
)
DEEP_LEARNING = (
    *("25.11-cuda13.0-devel-ubuntu24.04", "26.08-cuda13.4-devel-ubuntu24.04"),
    *("26.09-cuda14.0-devel-ubuntu24.04", "26.08-cuda12.9-devel-ubuntu24.04"),
    *("26.05-cuda_multi-devel-ubuntu24.04",),
)


@pytest.mark.parametrize(
    ("current", "tags", "repository", "newer"),
    [
        ("25.11-py3", PYTORCH, "nvidia/pytorch", ["26.08-py3", "26.01-py3"]),
        ("26.08-py3", PYTORCH, "nvidia/pytorch", []),
        (
            "13.0.2-base-ubuntu24.04",
            CUDA,
            "nvidia/cuda",
            ["13.10.0-base-ubuntu24.04", "13.3.1-base-ubuntu24.04"],
        ),
        (
            "25.11-cuda13.0-devel-ubuntu24.04",
            DEEP_LEARNING,
            "nvidia/cuda-dl-base",
            ["26.08-cuda13.4-devel-ubuntu24.04"],
        ),
        ("v0.20.0", ("v0.25.1", "v0.9.0", "0.26.0", "nightly"), "vllm/openai", ["v0.25.1"]),
        ("24.04", ("26.04", "noble", "24.04"), "library/ubuntu", ["26.04"]),
        ("latest", ("1.0", "2.0"), "library/any", []),
    ],
)
def test_newer_tags(current: str, tags: tuple[str, ...], repository: str, newer: list[str]) -> None:
    assert list(newer_tags(current, tags, repository, cuda_major=13)) == newer


def test_the_parts_of_a_tag() -> None:
    tag = parse_tag("26.08-cuda13.4-devel-ubuntu24.04", "nvidia/cuda-dl-base")
    assert tag is not None
    assert (tag.release, tag.cuda, tag.kind[2]) == ((26, 8), (13, 4), "-cuda-devel-ubuntu24.04")
    assert parse_tag("py3", "nvidia/pytorch") is None
