"""All tools of the pack `gitlab`."""

from gatepost_packs.gitlab import api_request, description, help
from gatepost_packs.gitlab.pack import pack

__all__ = ["api_request", "description", "help", "pack"]
