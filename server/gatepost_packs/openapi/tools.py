"""All tools of the pack `openapi`."""

from gatepost_packs.openapi import calling, loading, lookup
from gatepost_packs.openapi.pack import pack

__all__ = ["calling", "loading", "lookup", "pack"]
