"""All tools of the pack `gitlab`."""

from gatepost_packs.gitlab import api_request, description
from gatepost_packs.gitlab.pack import pack

__all__ = ["api_request", "description", "pack"]
