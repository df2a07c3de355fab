"""What the tests with real tools share for a whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .bases import NgcBase, make_base
from .standins import StandIns, standing_in


@pytest.fixture(scope="session")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIns]:
    """The hosts that are played on loopback."""
    with standing_in(tmp_path_factory.mktemp("standins")) as hosts:
        yield hosts


@pytest.fixture(scope="session")
def ngc_base(tmp_path_factory: pytest.TempPathFactory, standins: StandIns) -> NgcBase:
    """The base like NGC's PyTorch, in the registry under the name that `bases.IMAGE` holds.

    The private `nvidia/internal` is the same image.
    """
    base = make_base(tmp_path_factory.mktemp("ngc") / "base")
    for repository, tag in (("nvidia/pytorch", "25.11-py3"), ("nvidia/internal", "1")):
        base.push(standins.registry_port, repository, tag)
    return base
