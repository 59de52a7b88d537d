"""All tools of the pack `openapi`."""

from gatepost_packs.openapi import calling, listing, loading
from gatepost_packs.openapi.pack import pack

__all__ = ["calling", "listing", "loading", "pack"]
