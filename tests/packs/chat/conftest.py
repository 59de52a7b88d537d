"""One server with channels of every kind, and the providers behind them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.packs.chat.provider_servers import MailServer, WebhookServer, mail_server, webhook_server
from tests.packs.servers import Agent, PackServer, SecretWriter, open_server


class ChatServers(NamedTuple):
    """Everything there is."""

    server: PackServer
    secrets: SecretWriter
    webhook_server: WebhookServer
    web: str
    """`host:port` of the webhooks."""
    mail_server: MailServer
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
        webhook_server() as (web, web_host),
        mail_server() as (mail, smtp_host),
        open_server(
            tmp_path_factory.mktemp("chat"),
            ["chat"],
            network={"allow_hosts": [web_host, smtp_host]},
            packs={"chat": {"channels": CHANNELS, "timeout_s": 20, "max_parts": 3}},
            prepare=secrets.begin,
        ) as server,
    ):
        yield ChatServers(server, secrets, web, web_host, mail, smtp_host)
