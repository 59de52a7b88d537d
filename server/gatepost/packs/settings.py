"""What the built-in packs can be told, one table each: `[packs.NAME]`."""

from collections.abc import Iterator
from typing import Any

import msgspec

from gatepost.packs.calendar.settings import CalendarSettings
from gatepost.packs.chat.settings import ChatSettings
from gatepost.packs.git.settings import GitSettings
from gatepost.packs.github.settings import GithubSettings
from gatepost.packs.gitlab.settings import GitlabSettings
from gatepost.packs.openapi.settings import OpenapiSettings
from gatepost.packs.scripts.settings import ScriptsSettings
from gatepost.packs.ssh.settings import SshSettings
from gatepost.packs.table import PackSettings
from gatepost.packs.vault.settings import VaultSettings
from gatepost.packs.web.settings import WebSettings


class Packs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tables of all packs."""

    calendar: CalendarSettings = CalendarSettings()
    chat: ChatSettings = ChatSettings()
    git: GitSettings = GitSettings()
    github: GithubSettings = GithubSettings()
    gitlab: GitlabSettings = GitlabSettings()
    openapi: OpenapiSettings = OpenapiSettings()
    scripts: ScriptsSettings = ScriptsSettings()
    ssh: SshSettings = SshSettings()
    vault: VaultSettings = VaultSettings()
    web: WebSettings = WebSettings()

    def tables(self) -> Iterator[tuple[str, PackSettings]]:
        """Each by its pack's name."""
        for name in self.__struct_fields__:
            yield name, getattr(self, name)

    def by_type(self) -> dict[type[Any], PackSettings]:
        """Each by its type, as packs ask for them."""
        return {type(table): table for _, table in self.tables()}
