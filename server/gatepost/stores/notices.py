"""What another system is still to be told: kept until it has been, whoever tells it."""

from typing import Protocol

import msgspec


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """
    One message on its way out.

    Times are seconds since the epoch. Nothing in `body` is secret, and nobody is named there.
    """

    id: str
    """The receiver's: the same for each attempt."""
    about: str
    """What it tells of; of one thing they go out in the order of `place`."""
    place: int
    """A step of what it tells of, or microseconds since the epoch."""
    body: bytes
    made_at: float
    due_at: float
    """When somebody may take it; until then whoever took it last tries, or pauses."""
    expires_at: float
    """When it is not worth telling any more."""
    tries: int = 0
    """How often it was taken."""
    holder: str = ""
    """Who took it last."""


class Notices(Protocol):
    """What is still to be told of one tenant."""

    async def add(self, notice: Notice) -> bool:
        """Keep one, durably; False when one with that id is there, which stays."""

    async def remove(self, taken: Notice) -> bool:
        """It is done with; False when somebody else has taken it meanwhile, and nothing changed."""

    async def put_off(self, taken: Notice, until: float) -> bool:
        """Let nobody take it until then; False as in `remove`."""

    async def shed(self, most: int) -> list[str]:
        """Drop the oldest beyond the *most* newest; the ids of those that this call dropped."""
