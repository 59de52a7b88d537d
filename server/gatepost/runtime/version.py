"""The version of Gatepost."""

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the running version; the files of the distribution are read once."""
    try:
        return metadata.version("gatepost")
    except metadata.PackageNotFoundError:
        return "0+source"
