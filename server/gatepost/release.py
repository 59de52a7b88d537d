"""Which Gatepost this is."""

from importlib import metadata


def version() -> str:
    """The version that is running."""
    try:
        return metadata.version("gatepost")
    except metadata.PackageNotFoundError:
        return "0+source"
