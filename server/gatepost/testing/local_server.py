"""
Run a server in memory, composed as by `gatepost serve`, with an issuer and a clock of its own.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from gatepost.app import build_app
from gatepost.check.pack_loading import LoadedPacks, load
from gatepost.check.problems import problems
from gatepost.config.settings import Config
from gatepost.dev.composition import IssuerOptions, dev_config
from gatepost.policy.approvals.approval_request import ApprovalRequest, Operator, Undecidable
from gatepost.runtime.services import Services
from gatepost.runtime.startup import opened
from gatepost.secrets.keyring import KeyRing
from gatepost.testing.local_client import AnswerElicitation, LocalClient, LocalConnection
from gatepost.tools.authoring.pack import Pack
from gatepost_authz.fetch import FetchedDocument, Fetcher
from gatepost_authz.protected_resource import Resource
from gatepost_keys.generate import new_key
from gatepost_keys.mint import MAX_LIFETIME_S, AccessTokenClaims, sign
from gatepost_keys.public_keys import public_set
from gatepost_keys.subject import TokenSubject

PORT = 8000
"""The port of the resource's URL; nothing listens there."""
POLL_S = 0.01
WITHIN_S = 5.0
"""How long a test waits for an approval request at most."""
MAX_WAITING = 1_000
OPERATOR = Operator("test")
KEY = new_key("ES256")
"""The key of this process that signs the tokens of all local servers."""


class LocalClock:
    """The time of one server in seconds since the epoch; it runs on, and can be moved ahead."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return time.time() + self.ahead_s


class LocalIssuerKeys(Fetcher):
    """Reads the issuer's documents, which are in this process; fetches nothing."""

    def __init__(self, issuer: str) -> None:
        super().__init__(development=True)
        self._issuer = issuer

    async def get_json(self, url: str, **options: Any) -> FetchedDocument:
        """Return the metadata or the key set of the issuer."""
        keys = f"{self._issuer}/keys"
        if url == keys:
            return FetchedDocument({**public_set([KEY])}, None)
        return FetchedDocument({"issuer": self._issuer, "jwks_uri": keys}, None)


class WaitingApproval(msgspec.Struct, frozen=True):
    """A call that waits for a person; ``request`` is the approvers' view of it."""

    request: ApprovalRequest
    _server: "LocalServer"

    @property
    def tool(self) -> str:
        """Return the name of the tool."""
        return self.request.tool

    @property
    def arguments(self) -> Any:
        """Return the arguments of the call, without its secrets."""
        return msgspec.json.decode(self.request.arguments)

    async def approve(
        self,
        by: LocalClient | None = None,
        *,
        reason: str = "",
        edited: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Approve the call, with *edited* arguments if they are given.

        *by* is the client of the approver, who needs the rule's role; default: the operator of the
        command line, who may decide under every rule. Raises PermissionError if they may not.
        """
        changed = None if edited is None else msgspec.json.encode(edited)
        service, request = self._server.services.approvals, self.request
        approver = OPERATOR if by is None else await self._server.caller_of(by)
        try:
            await service.approve(
                request.tenant,
                request.id,
                approver,
                seen_digest=request.digest,
                reason=reason,
                edited=changed,
            )
        except Undecidable as refused:
            raise PermissionError(str(refused)) from None

    async def reject(self, by: LocalClient | None = None, *, reason: str = "") -> None:
        """Reject the call; the agent gets *reason*. Otherwise as `approve`."""
        approver = OPERATOR if by is None else await self._server.caller_of(by)
        try:
            await self._server.services.approvals.reject(
                self.request.tenant, self.request.id, approver, reason
            )
        except Undecidable as refused:
            raise PermissionError(str(refused)) from None


class LocalServer:
    """
    A running server: gate, limits, approvals, tasks and audit records are the real ones.

    ``services`` are its parts, for what this class does not offer; they may change without notice.
    """

    def __init__(self, config: Config, services: Services, clock: LocalClock) -> None:
        self.services = services
        self._config, self._clock = config, clock
        self._app = build_app(config, services)
        self._tenants: set[str] = set()

    def client(
        self,
        tenant: str = "acme",
        *,
        scopes: Collection[str] = (),
        roles: Collection[str] = (),
        subject: str = "alice",
        machine: bool = False,
        answer: AnswerElicitation | None = None,
    ) -> LocalClient:
        """
        Return a client whose caller is *subject* of *tenant* with these scopes and roles.

        The token is signed anew for each request and lives ten minutes. *answer* answers what tools
        ask; without it the client cannot be asked. See LocalClient.
        """
        for name, value in (("scopes", scopes), ("roles", roles)):
            if isinstance(value, str):
                raise TypeError(f"{name} is a collection of texts, not a text")
        self._tenants.add(tenant)
        person = TokenSubject(username=subject, tenant=tenant, roles=(*roles,), machine=machine)

        def token() -> str:
            now = self._clock()
            claims = AccessTokenClaims(
                issuer=self._config.issuers[0].issuer,
                person=person,
                client_id=subject if machine else "test",
                resource=self._config.resource,
                scopes=" ".join(scopes),
                auth_time=None if machine else int(now),
            )
            return sign(claims.claims(now=now, lifetime_s=MAX_LIFETIME_S), KEY)

        return LocalClient(LocalConnection(self._app, self._config.resource, token), answer)

    async def secret(
        self, tenant: str, name: str, value: str, *, hosts: Collection[str] = ()
    ) -> None:
        """Set a secret of the tenant, bound to *hosts*, as `gatepost secrets set` does."""
        await self.services.secrets.put(tenant, name, value, tuple(hosts))

    async def approval(self, *, tool: str = "", within_s: float = WITHIN_S) -> WaitingApproval:
        """
        Return the oldest call that waits for an approval, of *tool* if it is given.

        Waits until there is one; raises TimeoutError after *within_s* seconds.
        """
        async with asyncio.timeout(within_s):
            while True:
                for tenant in sorted(self._tenants):
                    for request in await self.services.approvals.waiting(
                        tenant, max_requests=MAX_WAITING
                    ):
                        if not tool or request.tool == tool:
                            return WaitingApproval(request, self)
                await asyncio.sleep(POLL_S)

    async def advance(self, seconds: float) -> None:
        """
        Move the server's clock ahead: tokens, approval requests, grants, tasks and stored outcomes
        expire by it. Rate limits and timeouts of tools keep to the real time.
        """
        if seconds < 0:
            raise ValueError("the clock only moves ahead")
        self._clock.ahead_s += seconds
        for tenant in self._tenants:
            # Reading them ends requests that are due, and wakes the calls that wait.
            await self.services.approvals.waiting(tenant, max_requests=MAX_WAITING)

    @property
    def now(self) -> float:
        """Return the server's time in seconds since the epoch."""
        return self._clock()

    async def caller_of(self, client: LocalClient) -> Any:
        """Return the caller that a client's token proves."""
        target = Resource(self._config.resource).of_tenant("")
        return await self.services.verifier.verify(client.connection.token(), target)


@asynccontextmanager
async def serving(*packs: Pack | str, **settings: Any) -> AsyncIterator[LocalServer]:
    """
    Serve packs in memory for the time of a block.

    A text is the name of a built-in pack, a module or a `.py` file. *settings* are tables of the
    configuration: `approvals={"destructive": "run"}`. Raises ValueError with the problems that
    `gatepost check` finds. Files of tenants are in a temporary folder, and all else in memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder), settings)
        loaded_packs = _loaded_packs(packs, config)
        reported = [
            problem for problem in problems(config, loaded_packs) if problem.level == "error"
        ]
        if reported := [*loaded_packs.problems, *reported]:
            reasons = "; ".join(
                f"{problem.id} {problem.setting}: {problem.message}" for problem in reported
            )
            raise ValueError(f"the server cannot start: {reasons}")
        clock = LocalClock()
        async with opened(
            config,
            loaded_packs,
            KeyRing.ephemeral(),
            fetcher=LocalIssuerKeys(config.issuers[0].issuer),
            clock=clock,
        ) as services:
            yield LocalServer(config, services, clock)


def _config(folder: Path, settings: Mapping[str, Any]) -> Config:
    """Return the configuration of `gatepost dev`, in memory and with these tables on top."""
    base = dev_config(PORT, tools=(), state=folder, issuer_options=IssuerOptions())
    default_settings: dict[str, dict[str, Any]] = {
        "tenancy": {"create_on_first_use": True},
        "storage": {"database": "memory:"},
        "workspace": {"root": str(folder / "workspaces")},
        "limits": {"requests_per_second": 0, "failures_per_second": 0},
        "log": {"level": "warning"},
    }
    if fixed := settings.keys() & {"resource", "mode", "issuers"}:
        raise ValueError(f"{', '.join(sorted(fixed))}: a server in memory has its own")
    merged: dict[str, Any] = dict(default_settings)
    for name, table in settings.items():
        merged[name] = default_settings.get(name, {}) | table if isinstance(table, dict) else table
    config = msgspec.convert(
        {"resource": base.resource, "mode": "development", **merged}, Config, strict=True
    )
    issuer = msgspec.structs.replace(base.issuers[0], dashboard=None)
    return msgspec.structs.replace(config, issuers=(issuer,))


def _loaded_packs(packs: tuple[Pack | str, ...], config: Config) -> LoadedPacks:
    names = [pack for pack in packs if isinstance(pack, str)]
    files = tuple(name for name in names if "." in name or "/" in name)
    tools = msgspec.structs.replace(
        config.tools, packs=tuple(name for name in names if name not in files), load=files
    )
    loaded = load(tools, config.packs, config.network)
    instances = tuple(pack for pack in packs if isinstance(pack, Pack))
    return LoadedPacks((*loaded.packs, *instances), loaded.problems)
