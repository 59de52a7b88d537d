"""The packs that ship with the server, by name; a pack that is off is never imported."""

from typing import NamedTuple


class BuiltIn(NamedTuple):
    """Where a pack is, and the extra that brings what it needs beside the core."""

    place: str
    extra: str | None = None
    maker: str = ""
    """Where `packs_from` is, which makes more packs of what the pack's table says."""


BUILT_IN: dict[str, BuiltIn] = {
    "calendar": BuiltIn("gatepost.packs.calendar.tools", "calendar"),
    "chat": BuiltIn("gatepost.packs.chat.tools", "chat"),
    "demo": BuiltIn("gatepost.packs.demo"),
    "filesystem": BuiltIn("gatepost.packs.filesystem"),
    "git": BuiltIn("gatepost.packs.git.tools"),
    "github": BuiltIn("gatepost.packs.github.tools"),
    "gitlab": BuiltIn("gatepost.packs.gitlab.tools"),
    "memory": BuiltIn("gatepost.packs.memory"),
    "openapi": BuiltIn("gatepost.packs.openapi.tools", maker="gatepost.packs.openapi.offering"),
    "scripts": BuiltIn("gatepost.packs.scripts.tools", extra="scripts"),
    "ssh": BuiltIn("gatepost.packs.ssh.tools"),
    "vault": BuiltIn("gatepost.packs.vault.tools"),
    "web": BuiltIn("gatepost.packs.web.tool"),
    "workspace": BuiltIn("gatepost.packs.workspace"),
}
