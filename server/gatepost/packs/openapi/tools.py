"""All tools of the pack `openapi`."""

from gatepost.packs.openapi import calling, listing, loading
from gatepost.packs.openapi.pack import pack

__all__ = ["calling", "listing", "loading", "pack"]
