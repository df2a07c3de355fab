"""Stand-ins of the hosts that a test cannot reach, on loopback, under their real names.

A run that gets `StandIns.environ` believes that it talks to nvcr.io, github.com and the rest: a
proxy leads these names to one server here, whose certificate is signed by an authority of this
session. Every other host is reached as before.
"""

from __future__ import annotations

from .network import StandIns, standing_in

__all__ = ["StandIns", "standing_in"]
