"""An estimate of an update: its terms, and their errors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from paceline.planner.card import Overhead
from paceline.planner.costs import Guess
from paceline.planner.prediction import Terms

#: Families whose workers compute parts of the model: measurements correct all their terms, not only what is besides.
DIVIDED = ("stages", "parts")


@dataclass(frozen=True)
class Estimate:
    """The terms of an update, and how sure they are."""

    terms: Terms
    #: The error of computing and updating: half a 90% interval, as a logarithm.
    own: float
    #: The error of everything else.
    rest: float = 0.0
    bytes: float = 0.0
    staleness: float = 0.0

    @property
    def error(self) -> float:
        """The error of the whole, to which each part adds by its share."""
        return error_of(Guess(self.terms.own, self.own), Guess(self.terms.rest, self.rest))

    def corrected(self, by: Overhead) -> Estimate:
        """Return the same, corrected by plans of its family that were measured."""
        if not by.error:
            return self
        if by.family in DIVIDED:
            return replace(self, terms=self.terms.scaled(by.factor), own=by.error, rest=by.error)
        terms = self.terms
        more = (terms.exchange * by.factor, terms.wait * by.factor, terms.between * by.factor)
        return replace(self, terms=Terms(terms.compute, terms.update, *more), rest=by.error)


def error_of(*parts: Guess) -> float:
    """Return the error of a sum, to which each part adds by its share."""
    whole = sum(part.seconds for part in parts)
    return math.sqrt(sum((part.error * part.seconds) ** 2 for part in parts)) / max(whole, 1e-12)
