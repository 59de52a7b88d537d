"""The tenant's key pair: made once, stored where no tool can read it."""

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gatepost import ToolFailure, Workspace

AREA, NAME = "ssh", "id_ed25519"
COMMENT = "workspace@gatepost"
MOST_BYTES = 10_000


class SshKeyPair(msgspec.Struct, frozen=True):
    """An ed25519 key pair."""

    public: str
    """One line of an `authorized_keys` file."""
    path: str
    """Path of the private key, for a program that is confined to it."""


async def key_of(workspace: Workspace) -> SshKeyPair:
    """
    Return the key of the workspace's tenant; the first call makes it.

    It lies beside the workspace, where no tool's path leads; only the server's user can read it
    (mode 0600).
    """
    area = workspace.area(AREA)
    try:
        private = await area.read(NAME, limit=MOST_BYTES)
    except ToolFailure as missing:
        if missing.failure.kind != "not_found":
            raise
        await area.write_new(NAME, _made())
        # Another replica may have been first; its key counts.
        private = await area.read(NAME, limit=MOST_BYTES)
    key = serialization.load_ssh_private_key(private, None)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return SshKeyPair(f"{public.decode()} {COMMENT}", str(await area.place() / NAME))


def _made() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
