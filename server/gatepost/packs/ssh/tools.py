"""The tool `ssh_public_key`, as Octoprox serves it."""

from gatepost.packs.ssh.key import key_of
from gatepost.tools.api import CallContext
from gatepost.tools.pack import Pack

pack = Pack("ssh")


@pack.tool(
    title="Get the SSH public key",
    scopes={"git:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
)
async def ssh_public_key(ctx: CallContext) -> str:
    """
    Get the SSH public key for this workspace.

    Add it to an account or as a deploy key at the Git provider; `git` then reaches it by
    git@host:path. The key pair is made on first use.
    """
    return (await key_of(ctx.workspace)).public
