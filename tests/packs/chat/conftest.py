"""One server with channels of every kind, and the providers behind them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.packs.chat.world import Hooks, Post, hooks, post
from tests.packs.keeping import Keeping
from tests.packs.office import Office, Worker, open_office


class World(NamedTuple):
    """Everything there is."""

    office: Office
    keeping: Keeping
    hooks: Hooks
    web: str
    """`host:port` of the webhooks."""
    post: Post
    smtp: str

    def worker(self, protocol: Any, url: str = "") -> Worker:
        """An agent of a new tenant, whose channel `team` leads to that URL."""
        url = url or f"json://{self.web}/hook/t0ken-9f2c"
        return self.keeping.worker(self.office, protocol, TEAM_CHAT_URL=url)


CHANNELS = {
    "team": "secret:TEAM_CHAT_URL",
    "everybody": ["secret:TEAM_CHAT_URL", "secret:OTHER_CHAT_URL"],
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Running as long as the tests of a module do."""
    keeping = Keeping()
    with (
        hooks() as (web, web_host),
        post() as (office_of_mail, smtp_host),
        open_office(
            tmp_path_factory.mktemp("chat"),
            ["chat"],
            network={"allow_hosts": [web_host, smtp_host]},
            packs={"chat": {"channels": CHANNELS, "timeout_s": 20, "max_parts": 3}},
            prepare=keeping.begin,
        ) as office,
    ):
        yield World(office, keeping, web, web_host, office_of_mail, smtp_host)
