"""Build the problems of a configuration from their ids, hints and sentences."""

from collections.abc import Mapping
from typing import Literal

from gatepost_authz.config import Problem


def finding(hints: Mapping[str, str], id_: str, setting: str, message: str) -> Problem:
    """Return the problem with this id; a W in the id makes it a warning."""
    level: Literal["error", "warning"] = "warning" if ".W" in id_ else "error"
    return Problem(id_, message, hints[id_], level, setting)
