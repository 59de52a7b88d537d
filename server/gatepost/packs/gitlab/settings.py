"""What the pack `gitlab` can be told."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from gatepost.packs.table import Fault, PackSettings

SPEC_URL = "https://gitlab.com/gitlab-org/gitlab/-/raw/v18.8.2-ee/doc/api/openapi/openapi_v3.yaml"
"""GitLab's own description of its REST API, as the page of these tools names it."""


class GitlabSettings(PackSettings, frozen=True, kw_only=True):
    """`[packs.gitlab]`."""

    spec_url: str = SPEC_URL
    """Where GitLab's OpenAPI description is, for calls that name no other."""
    literals: bool = True
    """Whether `gitlab_request` takes a token as it is; otherwise only `secret:NAME`, which names
    one of the tenant's."""

    def faults(self) -> Iterator[Fault]:
        """See `PackSettings`."""
        if urlsplit(self.spec_url).scheme not in ("http", "https"):
            yield Fault("spec_url", "this is no http or https URL", "leave it out for the default")
