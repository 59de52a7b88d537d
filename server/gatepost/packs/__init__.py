"""The packs that ship with the server, by name; a pack that is off is never imported."""

BUILT_IN: dict[str, str] = {
    "demo": "gatepost.packs.demo",
    "filesystem": "gatepost.packs.filesystem",
    "memory": "gatepost.packs.memory",
    "workspace": "gatepost.packs.workspace",
}
