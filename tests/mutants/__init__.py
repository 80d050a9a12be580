"""Bugs that a careless maintainer might put into drivers and servers, and the tests that find them.

Each says which text of which file says what instead, and which test fails then: with the mutant,
and not without. So a mutant whose place is changed or moved is noticed, and adapted with it.
"""

from tests.mutants import (
    autorecovering,
    blocking,
    commanding,
    degrading,
    encrypting,
    evicting,
    guarding,
    journaling,
    leading,
    maintaining,
    metering,
    operating,
    reading,
    recycling,
    remembering,
    repairing,
    securing,
    serving,
    sinking,
    sourcing,
    standing_by,
    storing,
)
from tests.mutants.mutant import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "autorecovering",
    "blocking",
    "commanding",
    "degrading",
    "encrypting",
    "evicting",
    "guarding",
    "journaling",
    "leading",
    "maintaining",
    "metering",
    "operating",
    "reading",
    "recycling",
    "remembering",
    "repairing",
    "securing",
    "serving",
    "sinking",
    "sourcing",
    "standing_by",
    "storing",
]
