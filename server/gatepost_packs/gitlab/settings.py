"""The settings of the pack `gitlab`."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from gatepost import PackSettings, SettingFault

SPEC_URL = "https://gitlab.com/gitlab-org/gitlab/-/raw/v18.8.2-ee/doc/api/openapi/openapi_v3.yaml"
"""GitLab's own description of its REST API: the default in the documentation of these tools."""


class GitlabSettings(PackSettings, frozen=True, kw_only=True):
    """`[packs.gitlab]`."""

    spec_url: str = SPEC_URL
    """URL of GitLab's OpenAPI description, for calls that pass no other."""
    literals: bool = False
    """
    Whether `gitlab_request` accepts a literal token; otherwise only `secret:NAME`, a secret of the
    tenant.
    """

    def faults(self) -> Iterator[SettingFault]:
        """Yield problems with the values, beyond their types."""
        if urlsplit(self.spec_url).scheme not in ("http", "https"):
            yield SettingFault(
                "spec_url", "it is not an http or https URL", "leave it out for the default"
            )
