"""What every mapping in a recipe has in common, and how its validators refuse."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from builder.document import Flaw, Refused


class Part(BaseModel):
    """A mapping whose keys are all known, and explained by their docstrings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def choose(self, *names: str) -> str:
        """The one of `names` that is given; Refused where none is, or several."""
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            listed = f"{', '.join(names[:-1])} and {names[-1]}"
            raise Refused(Flaw(message=f"needs exactly one of {listed}; it has {found}"))
        return given[0]


def refuse(flaws: list[Flaw]) -> None:
    """Raise Refused where there are flaws."""
    if flaws:
        raise Refused(*flaws)
