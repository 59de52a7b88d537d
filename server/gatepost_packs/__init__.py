"""The packs that ship with the server, registered by name; a pack that is off is not imported."""

from gatepost import PackRegistration

BUILT_IN: dict[str, PackRegistration] = {
    "calendar": PackRegistration(
        "gatepost_packs.calendar.tools",
        extra="calendar",
        settings="gatepost_packs.calendar.settings:CalendarSettings",
    ),
    "chat": PackRegistration(
        "gatepost_packs.chat.tools",
        extra="chat",
        settings="gatepost_packs.chat.settings:ChatSettings",
        stores_files=False,
    ),
    "demo": PackRegistration("gatepost_packs.demo", in_development=True),
    "filesystem": PackRegistration("gatepost_packs.filesystem"),
    "git": PackRegistration(
        "gatepost_packs.git.tools",
        settings="gatepost_packs.git.settings:GitSettings",
        problems="gatepost_packs.git.process_environment:problems",
    ),
    "github": PackRegistration(
        "gatepost_packs.github.tools",
        settings="gatepost_packs.github.settings:GithubSettings",
        stores_files=False,
    ),
    "gitlab": PackRegistration(
        "gatepost_packs.gitlab.tools",
        settings="gatepost_packs.gitlab.settings:GitlabSettings",
        stores_files=False,
    ),
    "memory": PackRegistration("gatepost_packs.memory"),
    "openapi": PackRegistration(
        "gatepost_packs.openapi.tools",
        settings="gatepost_packs.openapi.settings:OpenapiSettings",
        maker="gatepost_packs.openapi.tool_generation",
        in_code="gatepost_packs.openapi.in_code",
        stores_files=False,
    ),
    "scripts": PackRegistration(
        "gatepost_packs.scripts.tools",
        extra="scripts",
        settings="gatepost_packs.scripts.settings:ScriptsSettings",
        scripts="gatepost_packs.scripts.folders:ScriptFolders",
    ),
    "ssh": PackRegistration(
        "gatepost_packs.ssh.tools", settings="gatepost_packs.ssh.settings:SshSettings"
    ),
    "vault": PackRegistration(
        "gatepost_packs.vault.tools", settings="gatepost_packs.vault.settings:VaultSettings"
    ),
    "web": PackRegistration(
        "gatepost_packs.web.tools",
        extra="web",
        settings="gatepost_packs.web.settings:WebSettings",
        stores_files=False,
    ),
    "workspace": PackRegistration("gatepost_packs.workspace"),
}
