"""The tool `ssh_public_key`, with the interface of Octoprox."""

from gatepost import CallContext, Effects, Pack
from gatepost_packs.ssh.key import key_of
from gatepost_packs.text import TEXT_RESULT

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
