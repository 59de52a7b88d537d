"""What a limit takes from a tenant's relay: one of a bucket, one place of a slot."""

import msgspec

PLACE_WAIT_S = 1.0
"""When it is worth asking again for a place; nobody knows when one becomes free."""
LEASE_S = 10.0
"""After so long without a word from a process, the places that it took are free."""
WITHIN = 1e-9
"""A difference that only comes from adding fractions up."""


class Spending(msgspec.Struct, frozen=True, gc=False):
    """One to be taken from a token bucket that gains *rate* a second and holds *burst*."""

    bucket: str
    rate: float
    burst: float


class Slot(msgspec.Struct, frozen=True, gc=False):
    """One place to be taken of the *most* that may be in use at once."""

    name: str
    most: int


class Denial(msgspec.Struct, frozen=True, gc=False):
    """
    What was asked for is not there, and nothing was taken.

    ``at`` counts through the spendings and then the slots, to the one that makes one wait longest.
    """

    at: int
    wait_s: float
