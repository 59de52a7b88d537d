"""One server with channels of every kind, and the providers behind them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.packs.chat.providers import MailServer, WebhookServer, hooks, post
from tests.packs.harness import Agent, PackServer, SecretWriter, open_server


class ChatServers(NamedTuple):
    """Everything there is."""

    server: PackServer
    secrets: SecretWriter
    hooks: WebhookServer
    web: str
    """`host:port` of the webhooks."""
    post: MailServer
    smtp: str

    def agent(self, protocol: Any, url: str = "") -> Agent:
        """An agent of a new tenant, whose channel `team` leads to that URL."""
        url = url or f"json://{self.web}/hook/t0ken-9f2c"
        return self.secrets.agent(self.server, protocol, TEAM_CHAT_URL=url)


CHANNELS = {
    "team": "secret:TEAM_CHAT_URL",
    "everybody": ["secret:TEAM_CHAT_URL", "secret:OTHER_CHAT_URL"],
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServers]:
    """Running as long as the tests of a module do."""
    secrets = SecretWriter()
    with (
        hooks() as (web, web_host),
        post() as (office_of_mail, smtp_host),
        open_server(
            tmp_path_factory.mktemp("chat"),
            ["chat"],
            network={"allow_hosts": [web_host, smtp_host]},
            packs={"chat": {"channels": CHANNELS, "timeout_s": 20, "max_parts": 3}},
            prepare=secrets.begin,
        ) as server,
    ):
        yield ChatServers(server, secrets, web, web_host, office_of_mail, smtp_host)
