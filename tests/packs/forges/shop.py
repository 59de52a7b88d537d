"""A small GitLab and a server beside it, and how its tools are asked."""

from typing import Any, NamedTuple

from tests.packs.forges.front import Forge
from tests.packs.forges.gitlab import Gitlab
from tests.packs.keeping import Keeping
from tests.packs.office import Heard, Worker


class Shop(NamedTuple):
    """Both servers, and where secrets are set."""

    gitlab: Gitlab
    elsewhere: Forge
    keeping: Keeping


def ask(worker: Worker, shop: Shop, path: str, /, **more: Any) -> Heard:
    """A request to the small GitLab, with the token that is kept."""
    usual = {"endpoint": shop.gitlab.api, "token": "secret:GITLAB_TOKEN", "path": path}
    return worker.call("gitlab_request", **(usual | more))
