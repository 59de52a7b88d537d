"""All tools of the pack `gitlab`."""

from gatepost.packs.gitlab import help, request
from gatepost.packs.gitlab.pack import pack

__all__ = ["help", "pack", "request"]
