"""A Git host by SSH: it runs git for those whose key it knows."""

import asyncio
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh

ALLOWED = {"git-upload-pack", "git-receive-pack"}


class SshHost:
    """Serves the repositories below *root*; `accounts` are the public keys that may sign in."""

    def __init__(self, root: Path, host: str) -> None:
        self.root, self.host = root, host
        self.accounts: set[bytes] = set()
        self.commands: list[str] = []
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.port = 0
        self._ready = threading.Event()

    @property
    def line(self) -> str:
        """The host and its key for a `known_hosts` file."""
        public = self.key.export_public_key().decode().split()
        return f"[{self.host}]:{self.port} {public[0]} {public[1]}"

    def url(self, name: str) -> str:
        return f"ssh://git@{self.host}:{self.port}/{name}"

    def allow(self, public: str) -> None:
        """Open an account for the key that a tenant shows."""
        self.accounts.add(asyncssh.import_public_key(public).public_data)

    @contextmanager
    def running(self) -> Iterator["SshHost"]:
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        thread.start()
        assert self._ready.wait(10), "the SSH host did not start"
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._over.set)
            thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        accounts = self.accounts

        class Door(asyncssh.SSHServer):
            def begin_auth(self, username: str) -> bool:
                return True

            def public_key_auth_supported(self) -> bool:
                return True

            def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
                return username == "git" and key.public_data in accounts

        server = await asyncssh.create_server(
            Door,
            "127.0.0.1",
            0,
            server_host_keys=[self.key],
            process_factory=self._run,
            encoding=None,
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        command = process.command or ""
        self.commands.append(command)
        program, name = shlex.split(command)
        assert program in ALLOWED
        child = await asyncio.create_subprocess_exec(
            program,
            str(self.root / name.lstrip("/")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
        process.exit(await child.wait())
        await process.wait_closed()
