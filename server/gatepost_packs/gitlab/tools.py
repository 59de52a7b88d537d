"""All tools of the pack `gitlab`."""

from gatepost_packs.gitlab import description, request
from gatepost_packs.gitlab.pack import pack

__all__ = ["description", "help", "pack", "request"]
