"""The long-lived objects: opened once, closed in order, and what a reload replaces."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from gatepost import storage
from gatepost.approvals.expiry import expiring
from gatepost.audit.journal import Journal
from gatepost.audit.keeping import Keeping
from gatepost.callers import Callers
from gatepost.changes import Feed, TenantChanges
from gatepost.config.own import own_secrets
from gatepost.config.references import resolve
from gatepost.config.toolbox import Toolbox
from gatepost.counting import Counting, Tally
from gatepost.cutoffs.watch import CutOffs
from gatepost.cutoffs.withdrawal import Withdrawals
from gatepost.edge.flood import Flood
from gatepost.guard.debug import Debug
from gatepost.guard.once import Once, Runs
from gatepost.guard.tracing import Traced
from gatepost.keyring import KeyRing
from gatepost.lending import Lending
from gatepost.limits.attempts import Attempts
from gatepost.limits.stage import Limits
from gatepost.limits.terms import terms_of
from gatepost.mcp.keeper import Keeper
from gatepost.mcp.ledger import Ledger, Terms
from gatepost.mcp.register import Register
from gatepost.outbound.client import Client
from gatepost.outlet import connected
from gatepost.pulse import beating, pulse_of
from gatepost.renewal import known_tenants, lists_changed, losers, outcasts, told_tenants
from gatepost.reviews import Reviews
from gatepost.secrets.shelf import Secrets
from gatepost.secrets.vault import Vault
from gatepost.settings import Config
from gatepost.stores.api import Records, Relay
from gatepost.stores.cutoffs import CutOff
from gatepost.streams import Streams
from gatepost.telemetry.access import AccessLog
from gatepost.telemetry.metrics import Meter
from gatepost.tools.api import Call, CallContext
from gatepost.tools.redaction import Redaction
from gatepost.tools.registry import Registry
from gatepost.tools.runner import Runner, Stage
from gatepost.tools.underway import Underway
from gatepost.workspace import Quota, TenantWorkspace, Workspaces
from gatepost_authz.caller import TenantContext
from gatepost_authz.config import TENANT
from gatepost_authz.decisions import Decisions
from gatepost_authz.fetch import Fetcher
from gatepost_authz.introspection import IntrospectionVerifier
from gatepost_authz.introspector import Introspectors
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.jwks import Keys, asks
from gatepost_authz.scopes import Implications
from gatepost_authz.tenant import Policy, Tenancy
from gatepost_authz.verifier import JwtVerifier, TokenVerifier, Verifiers

SETTLE_S = 1.0
"""How long all processes may take to take up a configuration before clients hear of it."""


class Services:
    """
    What requests share.

    Keys of issuers, verdicts, failure counts and the log live as long as the process. `apply`
    takes up a configuration, at the start and at each reload: what it makes replaces its
    predecessor whole, while calls that run keep what they began with.
    """

    issuers: IssuerRegistry
    verifier: TokenVerifier
    registry: Registry
    runner: Runner
    lending: Lending
    tenants_apart: bool
    """Whether each tenant has a resource of its own."""
    _opaque: IntrospectionVerifier | None = None
    _config: Config | None = None

    def __init__(
        self,
        config: Config,
        toolbox: Toolbox,
        keyring: KeyRing,
        *,
        records: Records,
        relay: Relay,
        meter: Meter | None = None,
    ) -> None:
        self.meter = meter or Meter.alone()
        self.tally = Tally(self.meter)
        self.records, self.relay = records, relay
        self.runs = Runs(records, relay)
        self.feed = Feed(relay)
        self.streams = streams_of(config)
        self.fetcher = Fetcher(development=config.development, network=config.network)
        self.outbound = Client(
            config.network, tls=self.fetcher.tls, traced=config.telemetry.propagate_to
        )
        self.keys, self.decisions = Keys(self.fetcher), Decisions()
        self.keyring = keyring
        self.workspaces = Workspaces(
            Path(config.workspace.root),
            quota=Quota(config.workspace.quota_bytes, config.workspace.quota_files),
        )
        self._theirs: dict[str, tuple[TenantWorkspace, TenantChanges]] = {}
        """What calls of a tenant get of it, as long as the process lives: as many as workspaces."""
        self.secrets = Secrets(Vault(records, keyring))
        self.redaction = Redaction(self.secrets)
        self.limits = Limits(relay if config.storage.shared else None)
        self.journal = Journal(records, keyring, self.redaction, config.audit)
        self.watch = storage.Watch(records, relay, takes_nothing=lambda: self.journal.failing)
        self.flood = Flood(config.limits.failures_per_second)
        self.log = AccessLog(
            config.log.format, enabled=config.log.requests, clean=self.redaction.clean
        )
        self.outlet = connected(config, self.fetcher.tls, self.journal.listeners)
        self.register = Register(records, relay)
        shared = records, relay, keyring
        self.reviews = Reviews(*shared, self.redaction, self.journal, self.outbound)
        self.approvals = self.reviews.desk
        self.keeper = Keeper(Ledger(records, self.feed), lambda: self.runner)
        self._look_out_for_cut_offs()
        self._introspectors: list[Introspectors] = []
        self.apply(config, toolbox)

    def _look_out_for_cut_offs(self) -> None:
        self.cutoffs = CutOffs(self.records, self.relay, ended=self._cut_off)
        self.withdrawals = Withdrawals(self.records, self.approvals)
        self.callers = Callers(self.records, is_cut=self.cutoffs.is_cut)
        self.underway = Underway()
        self.underway.is_revoked = self.cutoffs.is_revoked
        self.streams.is_cut = self.approvals.is_cut = self.cutoffs.is_cut

    def apply(self, config: Config, toolbox: Toolbox) -> None:
        """Make what depends on issuers, tenants, scopes and tools; raises nothing half done."""
        issuers = IssuerRegistry(config.issuers)
        obtainable = config.scopes.obtainable
        registry = Registry(
            toolbox.offers, obtainable=None if obtainable is None else frozenset(obtainable)
        )
        verifier = self._verifier_for(config, issuers)
        runner = self._runner_for(config, registry)
        self.journal.apply(config.audit)
        self.outbound.apply(config.network)
        self.lending = Lending(
            config.packs,
            records=self.records,
            secrets=self.secrets,
            outbound=self.outbound,
            run=runner.run,
        )
        self.meter.know([tool.name for tool in toolbox.tools], told_tenants(config))
        self.secrets.keep_own(own_secrets(config))
        if self._config is not None:
            self._tell_streams(self._config, config, registry)
        self._config = config
        self.keys.retain([trusted.settings.issuer for trusted in issuers.issuers])
        self.issuers, self.registry, self.runner = issuers, registry, runner
        self.verifier = verifier
        self.keeper.ledger.terms = Terms(
            **msgspec.structs.asdict(config.tasks), peers=config.audit.peers
        )
        self.cutoffs.configure(config.tenancy.suspended)
        is_outcast = outcasts(config, issuers)
        self.keeper.is_out = lambda caller: is_outcast(caller) or self.cutoffs.is_cut(caller)
        self.callers.is_out = self.keeper.is_out
        self.keeper.end(self.keeper.is_out)
        self.tenants_apart = TENANT in config.resource

    def _verifier_for(self, config: Config, issuers: IssuerRegistry) -> TokenVerifier:
        """Who says whose a token is."""
        policy = Policy(
            tenancy=Tenancy(config.creates_tenants, known_tenants(config)),
            implications=Implications(config.scopes.implied),
            development=config.development,
            admit=self._admit,
        )
        signed = JwtVerifier(lambda: issuers, self.keys, self.decisions, policy=policy)
        if not any(asks(trusted) for trusted in issuers.issuers):
            return signed
        introspectors = self._introspectors_for(config)
        opaque = IntrospectionVerifier(lambda: issuers, introspectors, policy=policy)
        self._opaque = opaque
        return Verifiers([signed, opaque])

    def _admit(self, caller: TenantContext) -> None:
        """See `Policy`."""
        self.cutoffs.admit(caller)
        self.callers.note(caller)

    def _runner_for(self, config: Config, registry: Registry) -> Runner:
        """What every call of these tools goes through."""
        return Runner(
            registry,
            context_for=self.context_for,
            stages=self._stages(config, registry),
            timeout_s=config.tools.timeout_s,
            max_result_bytes=config.tools.max_result_bytes,
            redaction=self.redaction,
            recorder=Counting(
                self.meter,
                self.tally,
                self.journal if config.audit.enabled else None,
                traced=self.outlet.tracer is not None,
            ),
        )

    def _stages(self, config: Config, registry: Registry) -> list[Stage]:
        """What happens around a call, outermost first."""
        self.reviews.apply(config, registry.tools.values())
        settings, limits = config.tools, config.limits
        rate, burst = limits.requests_per_second, limits.burst
        buckets = self.limits.tally.buckets
        self.limits.apply(
            terms_of(limits), most=limits.concurrency, each=limits.queue, within_s=limits.queue_s
        )
        stages: list[Stage] = [
            # Around the others: a retried call spends nothing and asks nobody a second time.
            Once(
                self.runs,
                timeout_s=settings.timeout_s,
                max_result_bytes=settings.max_result_bytes,
                kept_s=config.retention.once_s,
                attempts=Attempts(buckets, rate=rate, burst=burst) if rate else None,
                redaction=self.redaction,
            )
        ]
        if not self.limits.limits_nothing:
            stages.append(self.limits)
        stages += self.reviews.stages(config, self.runs, self.cutoffs.is_cut)
        if config.log.level == "debug":
            stages.insert(0, Debug())
        if self.outlet.tracer is not None:
            stages.insert(0, Traced(self.outlet.tracer))
        return stages

    def _tell_streams(self, before: Config, after: Config, registry: Registry) -> None:
        """Whoever is connected hears of the lists that change, or loses its stream with its due."""
        self.streams.most = after.limits.listen_streams
        self.streams.most_per_caller = after.limits.listen_streams_per_caller
        self.streams.end(losers(before, after))
        if changed := lists_changed(self.registry, registry):
            # Other processes take the same up at this moment, and a client may list at any of them.
            asyncio.get_running_loop().call_later(SETTLE_S, self.feed.relisted, changed)
            if "resources" in changed:
                # Judged by what there was: their clients ask again, and are judged again.
                self.streams.end_watching()

    def _introspectors_for(self, config: Config) -> Introspectors:
        """Who asks issuers about tokens, with the secrets of *config*."""
        secrets = introspection_secrets(config)
        introspectors = Introspectors(
            self.fetcher, self.keys.discovery, secret_of=secrets.__getitem__
        )
        # Questions that a reload has overtaken are still answered; all end with the process.
        self._introspectors.append(introspectors)
        return introspectors

    def context_for(self, call: Call) -> CallContext:
        """What a tool gets to see of a call."""
        tenant = call.caller.tenant_id
        theirs = self._theirs.get(tenant)
        if theirs is None:
            theirs = self.workspaces.of(tenant), TenantChanges(self.relay, tenant)
            self._theirs[tenant] = theirs
        return CallContext(
            caller=call.caller,
            request_id=call.request_id,
            workspace=theirs[0],
            client=call.client,
            changes=theirs[1],
            correlation=call.correlation,
            depth=call.depth,
            lasting=call.lasting,
            kit=self.lending,
        )

    def _cut_off(self, new: tuple[CutOff, ...]) -> None:
        """Somebody may be shut out since a moment ago: everything of theirs ends here."""
        cutoffs = self.cutoffs
        self.callers.forget(cutoffs.is_cut)
        self.decisions.forget(cutoffs.is_revoked)
        if self._opaque is not None:
            self._opaque.forget(cutoffs.is_revoked)
        self.underway.end(cutoffs.is_suspended, "suspended")
        self.underway.end(cutoffs.is_revoked, "revoked")
        self.streams.end(cutoffs.is_cut)
        self.keeper.end(cutoffs.is_cut)
        self.runs.end(cutoffs.is_cut)
        self.withdrawals.begin(new)

    def drain(self, within_s: float) -> None:
        """A stop has begun: end who only listens or waits, and let tasks finish for so long."""
        self.streams.close()
        self.keeper.drain(within_s)

    def warm(self) -> None:
        """Begin to fetch the issuers' keys, so that the first request need not wait for them."""
        self.keys.warm(self.issuers.issuers)

    async def readiness(self, *, insecure_dev_auth: bool) -> tuple[int, bytes]:
        """
        What `/readyz` says: which stores answer and which issuers' keys are at hand.

        No secret, nothing of a caller.
        """
        stores = await self.watch.states()
        # Before the cut-offs were ever read nobody passes.
        ready = self.cutoffs.is_ready and all(state == "ok" for state in stores.values())
        told: dict[str, object] = {"status": "ok" if ready else "unavailable", "stores": stores}
        if insecure_dev_auth:
            told["insecure_dev_auth"] = True
        states = [(one.settings.issuer, self.keys.state_of(one)) for one in self.issuers.issuers]
        if self.tenants_apart:
            # An issuer of one tenant is named like it, and a probe must not list the tenants.
            told["issuers"] = Counter(state for _, state in states)
        else:
            told["issuers"] = [{"issuer": issuer, "keys": state} for issuer, state in states]
        return 200 if ready else 503, msgspec.json.encode(told)

    async def aclose(self) -> None:
        """Close what was made here, the log last, so that it has the last requests."""
        await self.withdrawals.aclose()
        await self.keeper.aclose()
        await self.runs.aclose()  # before the rest, which what still runs uses
        await self.journal.aclose()
        for introspectors in self._introspectors:
            await introspectors.aclose()
        await self.keys.aclose()
        await self.fetcher.aclose()
        await self.outbound.aclose()
        self.workspaces.close()
        await self.register.aclose()
        await self.feed.aclose()
        await self.outlet.aclose()
        self.tally.settle()
        await self.log.aclose()


@asynccontextmanager
async def opened(
    config: Config, toolbox: Toolbox, keyring: KeyRing, meter: Meter | None = None
) -> AsyncIterator[Services]:
    """
    The services of a configuration without errors; nothing is fetched yet.

    Raises StoreRefused and StoreUnavailable.
    """
    records, relay = await storage.opened(config.storage)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(records.aclose)
        closing.push_async_callback(relay.aclose)
        services = Services(config, toolbox, keyring, records=records, relay=relay, meter=meter)
        keeping = Keeping(records, keyring, services.journal)
        # Around the closing of the services: what ends there is on record before it is signed, and
        # counted for a last look at the numbers.
        await closing.enter_async_context(keeping.running())
        pulse = pulse_of(services)
        closing.push_async_callback(pulse.beat, seldom=False)
        closing.push_async_callback(services.aclose)
        await closing.enter_async_context(services.cutoffs.watching())
        services.keeper.start()
        await closing.enter_async_context(storage.sweeping(records))
        await closing.enter_async_context(services.secrets.watching())
        await closing.enter_async_context(services.callers.writing())
        await closing.enter_async_context(beating(pulse))
        await closing.enter_async_context(services.reviews.courier.running())
        await closing.enter_async_context(expiring(services.approvals))
        yield services


def streams_of(config: Config) -> Streams:
    """The streams that callers may hold open."""
    limits = config.limits
    return Streams(most=limits.listen_streams, most_per_caller=limits.listen_streams_per_caller)


def keyring_of(config: Config) -> KeyRing:
    """The configured ring, or one for this run only; raises KeyRingError."""
    return KeyRing.load(config.keys.ring) if config.keys.ring else KeyRing.ephemeral()


def introspection_secrets(config: Config) -> dict[str, str]:
    """Reference → secret, for each issuer that is asked about tokens; read once, at the start."""
    references = [i.introspection.client_secret for i in config.issuers if i.introspection]
    return {reference: resolve(reference) for reference in references}
