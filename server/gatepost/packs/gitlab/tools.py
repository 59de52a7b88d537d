"""All tools of the pack `gitlab`."""

from gatepost.packs.gitlab import description, help, request
from gatepost.packs.gitlab.pack import pack

__all__ = ["description", "help", "pack", "request"]
