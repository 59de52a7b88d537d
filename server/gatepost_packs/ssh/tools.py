"""
Create the key of a tenant, and serve the tool `ssh_public_key` with the interface of Octoprox.
"""

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gatepost import CallContext, Effects, Pack, ToolFailure, Workspace
from gatepost_packs.text import TEXT_RESULT

AREA, NAME = "ssh", "id_ed25519"
COMMENT = "workspace@gatepost"
MAX_BYTES = 10_000


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
        private = await area.read(NAME, limit=MAX_BYTES)
    except ToolFailure as missing:
        if missing.failure.kind != "not_found":
            raise
        await area.write_new(NAME, _new_key())
        # Another replica may have been first; its key counts.
        private = await area.read(NAME, limit=MAX_BYTES)
    key = serialization.load_ssh_private_key(private, None)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return SshKeyPair(f"{public.decode()} {COMMENT}", str(await area.real_path() / NAME))


def _new_key() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


pack = Pack("ssh")


@pack.tool(
    title="Get the SSH public key",
    scopes={"git:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
    # The hints are Octoprox's; the first call of a tenant makes the key pair.
    effects=Effects(idempotent=True, open_world=False),
    output_schema=TEXT_RESULT,
)
async def ssh_public_key(ctx: CallContext) -> str:
    """
    Get the SSH public key for this workspace.

    Add it to an account or as a deploy key at the Git provider; `git` then reaches it by
    git@host:path. The key pair is made on first use.
    """
    return (await key_of(ctx.workspace)).public
