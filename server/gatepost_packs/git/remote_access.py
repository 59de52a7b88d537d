"""Connect git to other hosts: checked addresses, the tenant's key, and hidden credentials."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gatepost import CallContext, ToolFailure
from gatepost_authz import Network
from gatepost_packs.git.process_environment import (
    GitDirectories,
    pinned,
    ssh_command,
    ssh_configuration,
)
from gatepost_packs.git.settings import GitSettings
from gatepost_packs.git.url import USUAL_PORTS, RemoteUrl, Scheme
from gatepost_packs.ssh.settings import SshSettings
from gatepost_packs.ssh.tools import key_of

CREDENTIAL_COPIES = 8
"""How often git may ask for the same credentials; all copies fit into a pipe."""
MAX_CHARACTERS = 2_000

NUMBER = 9
"""Git's file descriptor of the pipe; shells need not take more than one digit."""

# Git runs it in a shell, with its own verb at the end. `read` takes a pipe byte by byte, so the
# rest stays for the next reader.
HELPER = (
    f'!f() {{ test "$1" = get && IFS= read -r u <&{NUMBER} && IFS= read -r p <&{NUMBER} && '
    'printf \'username=%s\\npassword=%s\\n\' "$u" "$p"; }; f'
)


class RemoteSecret(msgspec.Struct, frozen=True):
    """The credentials that git signs in with."""

    origin: str
    """Their origin, as `https://host[:port]`."""
    user: str
    password: str


class RemoteAccess(msgspec.Struct, frozen=True):
    """Everything that one command needs to reach its remotes."""

    protocols: str = ""
    settings: dict[str, str] = {}
    ports: tuple[int, ...] = ()
    env: dict[str, str] = {}
    reads: tuple[str, ...] = ()
    secret: RemoteSecret | None = None


async def access_to(
    ctx: CallContext, remotes: Sequence[RemoteUrl], ground: GitDirectories
) -> RemoteAccess:
    """Resolve and check *remotes*; ToolFailure if one of them may not be reached."""
    addresses_by_remote = {
        (remote.scheme, remote.host, remote.port): await ctx.http.addresses(
            remote.scheme, remote.host, remote.port
        )
        for remote in remotes
    }
    # Several values of one setting would need several numbers; curl takes them only one by one.
    web = {key: addresses for key, addresses in addresses_by_remote.items() if key[0] != "ssh"}
    settings: dict[str, str] = {}
    if len(web) > 1:
        hosts = ", ".join(sorted(host for _, host, _ in web))
        message = f"The command would reach several hosts at once ({hosts}): name one remote."
        raise ToolFailure("validation", message, field="args")
    secret = None
    for (scheme, host, port), addresses in web.items():
        secret = await _secret(ctx, scheme, host, port)
        settings["http.curloptResolve"] = f"{host}:{port}:{pinned(addresses)}"
        if bundle := ctx.settings(Network).ca_bundle:
            settings["http.sslCAInfo"] = str(Path.cwd() / bundle)
    env: dict[str, str] = {}
    reads: tuple[str, ...] = (settings["http.sslCAInfo"],) if "http.sslCAInfo" in settings else ()
    speaks = {
        host: (addresses[0], port)
        for (scheme, host, port), addresses in addresses_by_remote.items()
        if scheme == "ssh"
    }
    if speaks:
        key = await key_of(ctx.workspace)
        env["GIT_SSH_COMMAND"] = _ssh(ctx, speaks, key.path, ground)
        reads = (*reads, key.path)
    return RemoteAccess(
        ":".join(sorted({scheme for scheme, _, _ in addresses_by_remote})),
        settings,
        tuple(sorted({port for _, _, port in addresses_by_remote})),
        env,
        reads,
        secret,
    )


def _ssh(
    ctx: CallContext, hosts: dict[str, tuple[str, int]], key: str, ground: GitDirectories
) -> str:
    known_hosts_file = ground.run / "known_hosts"
    known_hosts_file.write_text("\n".join([*ctx.settings(SshSettings).lines, ""]))
    configuration = ground.run / "ssh_config"
    aliases = {
        host: (address, host if port == USUAL_PORTS["ssh"] else f"[{host}]:{port}")
        for host, (address, port) in hosts.items()
    }
    configuration.write_text(ssh_configuration(aliases, key=key, known_hosts=str(known_hosts_file)))
    return ssh_command(configuration)


async def _secret(ctx: CallContext, scheme: Scheme, host: str, port: int) -> RemoteSecret | None:
    destination = host if port == USUAL_PORTS[scheme] else f"{host}:{port}"
    reference = ctx.settings(GitSettings).credentials.get(destination)
    if reference is None or scheme != "https":
        return None
    try:
        secret = await ctx.secret(reference, field="args", to=f"https://{destination}", fixed=True)
    except ToolFailure as none:
        if none.failure.kind != "not_found":
            raise
        return None  # public repositories need no credentials
    user, colon, password = secret.partition(":")
    if not colon:
        # GitLab and GitHub take a token with any user name, and OAuth tokens with this one.
        user, password = "oauth2", secret
    if set("\n\r\0") & set(secret) or len(secret) > MAX_CHARACTERS:
        raise ToolFailure(
            "denied", f"The secret for {destination} is not a user name and password."
        )
    return RemoteSecret(f"https://{destination}", user, password)


@contextmanager
def handed(
    secret: RemoteSecret | None,
) -> Iterator[tuple[dict[str, str], tuple[tuple[int, int], ...]]]:
    """
    Provide settings and an open file by which git gets credentials.

    The credentials are in a pipe: in no process list, environment or file, and gone with it.
    """
    if secret is None:
        yield {}, ()
        return
    reading, writing = os.pipe()
    try:
        with open(writing, "wb") as pipe:
            pipe.write(f"{secret.user}\n{secret.password}\n".encode() * CREDENTIAL_COPIES)
        yield {f"credential.{secret.origin}.helper": HELPER}, ((reading, NUMBER),)
    finally:
        os.close(reading)
