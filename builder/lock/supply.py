"""Where everything that a lock names comes from, handed through the stages as one value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.context import Context
from builder.http import Http
from builder.lock.store import Store
from builder.oci.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The network, registries, and the store of what was fetched; closed by `open_supply`."""

    context: Context
    http: Http
    registry: Registry
    store: Store


@contextmanager
def open_supply(
    context: Context, *, indexes: Mapping[str, str] | None = None, vendored: Sequence[Path] = ()
) -> Iterator[Supply]:
    """Connect lazily; `indexes` are package indexes by name, for the caller's credentials.

    Files in the folders `vendored` are taken before the network is asked.
    """
    with Http(context.environ, offline=context.offline, indexes=indexes) as http:
        registry = Registry(http, context.environ)
        yield Supply(
            context=context,
            http=http,
            registry=registry,
            store=Store(context.cache, vendored),
        )
