"""The version of Gatepost."""

from importlib import metadata


def version() -> str:
    """Return the running version."""
    try:
        return metadata.version("gatepost")
    except metadata.PackageNotFoundError:
        return "0+source"
