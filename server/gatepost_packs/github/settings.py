"""`[packs.github]`."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from gatepost import PackSettings, SettingFault, is_reference


class GithubSettings(PackSettings, frozen=True, kw_only=True):
    """`[packs.github]`."""

    api_url: str = "https://api.github.com"
    """
    The URL of the REST API; `https://github.example.com/api/v3` for an Enterprise Server, whose
    host `network.allow_hosts` must name if its address is private.
    """
    token: str = "secret:GITHUB_TOKEN"  # noqa: S105  # names a secret, but contains none
    """
    The tenant's secret that is the access token, as `secret:NAME`; `""` for calls without a token,
    which may read public repositories, slowly.
    """

    def faults(self) -> Iterator[SettingFault]:
        """Yield an invalid URL, and a token that is not a reference."""
        parts = urlsplit(self.api_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            yield SettingFault(
                "api_url", "this is no http or https URL", "it is not an http or https URL"
            )
        if self.token and not is_reference(self.token):
            # The value is not shown, because it may be a token.
            yield SettingFault(
                "token",
                "it is not a reference to a secret; a token does not belong in a configuration "
                "file",
                "write `secret:GITHUB_TOKEN`, and set it by `gatepost secrets set GITHUB_TOKEN`",
            )
