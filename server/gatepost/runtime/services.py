"""The long-lived objects of a process, and the ones that a reload replaces."""

import asyncio
import time
from collections.abc import Callable
from functools import cache

import msgspec

from gatepost.audit.writer import AuditWriter
from gatepost.check.pack_loading import LoadedPacks
from gatepost.config.server_secrets import own_secrets
from gatepost.config.settings import Config
from gatepost.http.body import RunningRequests
from gatepost.http.failed_tokens import FailedTokenLimit
from gatepost.mcp.change_notifications import ChangePubSub
from gatepost.mcp.sessions.channel import SessionRegistry
from gatepost.mcp.tasks.store import TaskLimits, TaskStore
from gatepost.mcp.tasks.task_runner import TaskRunner
from gatepost.outbound.http_client import OutboundClient
from gatepost.policy.idempotency.execution import RunningCalls
from gatepost.policy.limits.denials import DenialCounter
from gatepost.policy.limits.request_limits import CallerRequests
from gatepost.policy.limits.rules import rules_of
from gatepost.policy.limits.stage import LimitStage
from gatepost.policy.revocation.watch import Revocations
from gatepost.policy.revocation.withdrawn_approvals import WithdrawnApprovals
from gatepost.runtime import stores
from gatepost.runtime.approvals import ApprovalServices
from gatepost.runtime.call_metrics import CallBatch, CountingRecorder, DecisionMetrics
from gatepost.runtime.closing import close_all
from gatepost.runtime.exporter import exporter_of
from gatepost.runtime.pack_lifespans import PackLifespans
from gatepost.runtime.recent_callers import RecentCallers
from gatepost.runtime.refused_tokens import RefusedTokens
from gatepost.runtime.reload import affected_callers, lists_changed, revoked_callers, tenant_labels
from gatepost.runtime.stages import stages_of
from gatepost.runtime.tenant_limits import streams_of, workspaces_of
from gatepost.runtime.token_verifiers import introspection_secrets, verifiers_of
from gatepost.runtime.tool_services import TenantToolServices
from gatepost.runtime.upstream_loading import UpstreamLoader
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.store import SecretStore
from gatepost.storage.change_poller import ChangePoller
from gatepost.storage.records import Records
from gatepost.storage.revocations import RevocationRecord
from gatepost.storage.shared_store import SharedStore
from gatepost.telemetry.access import AccessLog, RequestMetrics
from gatepost.telemetry.metrics import Meter
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import CallContexts, Runner
from gatepost.tools.context.interfaces import ChangeNotifier, Workspace
from gatepost.tools.offers.offer import Call, Outcome
from gatepost.tools.offers.tenant_offers import OfferSource
from gatepost_authz.caller import TenantContext
from gatepost_authz.fetch import Fetcher
from gatepost_authz.introspection import IntrospectionVerifier
from gatepost_authz.introspector import Introspectors
from gatepost_authz.issuer_key_sets import IssuerKeySets
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.protected_resource import TENANT
from gatepost_authz.verdict_cache import VerdictCache
from gatepost_authz.verifier import TokenVerifier, Verifiers

PROPAGATION_S = 1.0
"""How long clients are notified of a reload after it, so that all processes have reloaded."""


class Services:
    """
    The objects that requests share.

    Issuer keys, cached token checks, failure counts and the log survive a reload. `apply` takes up
    a configuration, at the start and at each reload. Its objects replace their predecessors
    completely, but running calls keep the objects that they began with.
    """

    issuers: IssuerRegistry
    verifier: TokenVerifier
    registry: Registry
    runner: Runner
    tenants_apart: bool
    """Whether each tenant has a resource of its own."""
    _opaque: IntrospectionVerifier | None = None
    _config: Config | None = None
    leaving = False
    """Whether `leave` was called."""

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        config: Config,
        loaded_packs: LoadedPacks,
        keyring: KeyRing,
        *,
        records: Records,
        shared_store: SharedStore,
        lifespans: PackLifespans,
        meter: Meter | None = None,
        source_of: "SourceOf | None" = None,
        fetcher: Fetcher | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lifespans, self.meter, self._clock = lifespans, meter or Meter.unshared(), clock
        self.call_batch, self.request_metrics = CallBatch(self.meter), RequestMetrics(self.meter)
        self.records, self.shared_store, self.keyring = records, shared_store, keyring
        self.runs = RunningCalls(records, shared_store, clock=clock)
        self.pubsub, self.changes = ChangePubSub(shared_store), ChangePoller(records, shared_store)
        self.revocations = Revocations(records, on_revoked=self._end_revoked)
        self.streams = streams_of(config, self.revocations, clock)
        self.fetcher = fetcher or Fetcher(development=config.development, network=config.network)
        self.outbound = OutboundClient(
            config.network, tls=self.fetcher.tls, traced=config.telemetry.propagate_to
        )
        self.keys, self.verdicts = IssuerKeySets(self.fetcher), VerdictCache()
        self.session_registry = SessionRegistry(records, shared_store, clock=clock)
        self.workspaces = workspaces_of(config)
        self._of_tenant = cache(self._shared_of)
        """The shared objects of a tenant's calls, for as many tenants as there are workspaces."""
        self.secrets = SecretCache(SecretStore(records, keyring))
        self.redaction = Redaction(self.secrets)
        self.limits = LimitStage(shared_store if config.storage.shared else None)
        self.exporter = exporter_of(config, self.fetcher.tls)
        self.audit_writer = self._audit_writer_for(config)
        self.watch = stores.Watch(records, shared_store, self._cannot_record)
        self.failed_tokens = FailedTokenLimit(config.limits.failures_per_second)
        self.refusals = RefusedTokens(self.meter, self.failed_tokens, self.audit_writer.events)
        self.log = self._access_log_for(config)
        self.approval_services = self._new_approval_services()
        self.approvals = self.approval_services.service
        task_store = TaskStore(records, self.pubsub, quota=self.runs.quota, clock=clock)
        self.task_runner = TaskRunner(task_store, lambda: self.runner, is_out=self._is_out)
        self._follow_revocations()
        self._introspectors: list[Introspectors] = []
        self.upstreams = UpstreamLoader(self, self.pubsub, lambda: self.revocations.suspended)
        self._source_of = source_of or upstream_offers
        self.apply(config, loaded_packs)

    def _shared_of(self, tenant: str) -> tuple[Workspace, ChangeNotifier]:
        return self.workspaces.for_tenant(tenant), self.pubsub.notifier_for(tenant)

    def _cannot_record(self) -> bool:
        return self.audit_writer.failing or self.audit_writer.store.is_failing

    def _access_log_for(self, config: Config) -> AccessLog:
        return AccessLog(
            config.log.format,
            enabled=config.log.requests,
            clean=self.redaction.clean,
            counts=self.request_metrics,
        )

    def _audit_writer_for(self, config: Config) -> AuditWriter:
        return AuditWriter(
            self.records,
            self.keyring,
            self.redaction,
            config.audit,
            charge=self.limits.charge_record,
            observe=self.call_batch.committed,
            listener=self.exporter.recorded,
        )

    def _new_approval_services(self) -> ApprovalServices:
        return ApprovalServices(
            self.records,
            self.shared_store,
            self.keyring,
            redaction=self.redaction,
            writer=self.audit_writer,
            outbound=self.outbound,
            is_revoked=self.revocations.is_refused,
            listeners=[DecisionMetrics(self.meter)],
            clock=self._clock,
        )

    def _follow_revocations(self) -> None:
        self.withdrawn_approvals = WithdrawnApprovals(self.approvals)
        self.denials = DenialCounter(
            self.records, self.shared_store, self.audit_writer.events, self.revocations
        )
        is_refused = self.revocations.is_refused
        self.callers = RecentCallers(self.records, is_refused=is_refused, is_out=self._is_out)
        self.running_requests = RunningRequests(self.revocations.is_revoked)

    def apply(self, config: Config, loaded_packs: LoadedPacks) -> None:
        """Build what depends on issuers, tenants, scopes and tools; change nothing on errors."""
        issuers = IssuerRegistry(config.issuers)
        obtainable = config.scopes.obtainable
        self.upstreams.prepare(config)
        registry = Registry(
            loaded_packs.offers,
            obtainable=None if obtainable is None else frozenset(obtainable),
            source=self._source_of(self, config),
        )
        verifier = self._verifier_for(config, issuers)
        runner = self._runner_for(config, registry)
        self.audit_writer.apply(config.audit)
        self.runs.quota.apply(config.limits)
        references = self.upstreams.apply(config)
        tools = [tool.name for tool in loaded_packs.tools]
        self.meter.set_label_values(tools, tenant_labels(config), self.upstreams.names)
        self.secrets.keep_own(own_secrets(config, references))
        if self._config is not None:
            self._tell_streams(self._config, config, registry)
        self._config = config
        self.keys.retain([trusted.settings.issuer for trusted in issuers.issuers])
        self.issuers, self.registry, self.runner = issuers, registry, runner
        self.verifier = verifier
        self.task_runner.task_store.apply(
            TaskLimits(**msgspec.structs.asdict(config.tasks), peers=config.audit.peers)
        )
        self.revocations.configure(config.tenancy.suspended)
        self._cannot_sign_in = revoked_callers(config, issuers)
        self.task_runner.end(self._is_out)
        self.tenants_apart = TENANT in config.resource

    def _is_out(self, caller: TenantContext) -> bool:
        """Return whether a caller is revoked, or could no longer sign in."""
        return self._cannot_sign_in(caller) or self.revocations.is_refused(caller)

    def _verifier_for(self, config: Config, issuers: IssuerRegistry) -> TokenVerifier:
        """Return the token verifier."""
        signed, opaque = verifiers_of(
            config,
            issuers,
            self.keys,
            self.verdicts,
            admit=self._admit,
            introspectors=lambda: self._introspectors_for(config),
            clock=self._clock,
        )
        if opaque is not None:
            self._opaque = opaque
        return signed if opaque is None else Verifiers([signed, opaque])

    def _admit(self, caller: TenantContext) -> None:
        """Admit a caller or raise; the hook of `Policy`."""
        self.revocations.admit(caller)
        self.callers.note(caller)

    def _runner_for(self, config: Config, registry: Registry) -> Runner:
        """Return the runner for calls of these tools."""
        self.outbound.apply(config.network)
        services = TenantToolServices(
            config.packs,
            records=self.records,
            secrets=self.secrets,
            outbound=self.outbound,
            credentials=self.upstreams,
            run=self._run,
        )
        limits, dynamic_tools = config.limits, None if registry.source is None else registry
        self.approval_services.apply(config, registry.tools.values(), dynamic_tools, self._run)
        self.denials.apply(config.approvals)
        rules = rules_of(limits, audits=config.audit.enabled)
        self.limits.apply(
            rules,
            max_running=limits.concurrency,
            max_waiting_per_tenant=limits.queue,
            within_s=limits.queue_s,
        )
        return Runner(
            registry,
            context_for=CallContexts(self._of_tenant, services),
            stages=stages_of(
                config,
                limits=self.limits,
                runs=self.runs,
                approval_services=self.approval_services,
                revocations=self.revocations,
                denials=self.denials,
                redaction=self.redaction,
                tracer=self.exporter.tracer,
            ),
            timeout_s=config.tools.timeout_s,
            max_result_bytes=config.tools.max_result_bytes,
            redaction=self.redaction,
            requests=CallerRequests(self.limits, self.meter.limited),
            clock=self._clock,
            recorder=CountingRecorder(
                self.meter,
                self.call_batch,
                self.audit_writer if config.audit.enabled else None,
                traced=self.exporter.tracer is not None,
            ),
        )

    async def _run(self, call: Call) -> Outcome:
        """Run a call that a tool makes."""
        return await self.runner.run(call)

    def _tell_streams(self, before: Config, after: Config, registry: Registry) -> None:
        """Notify connected clients of changed lists, and end streams that lost their right."""
        limits = after.limits
        self.streams.apply(limits.listen_streams, limits.listen_streams_per_caller)
        self.streams.end(affected_callers(before, after))
        if changed := lists_changed(self.registry, registry):
            # Delayed until the other processes have reloaded as well, because a client may list at
            # any of them.
            asyncio.get_running_loop().call_later(PROPAGATION_S, self.pubsub.relisted, changed)
            if "resources" in changed:
                # They were checked against the old resources; their clients subscribe again.
                self.streams.end_watching()

    def _introspectors_for(self, config: Config) -> Introspectors:
        """Return the introspection clients with the secrets of *config*."""
        secrets = introspection_secrets(config)
        introspectors = Introspectors(
            self.fetcher, self.keys.discovery, secret_of=secrets.__getitem__
        )
        # Running introspections continue after a reload; all clients end with the process.
        self._introspectors.append(introspectors)
        return introspectors

    def _end_revoked(self, new: tuple[RevocationRecord, ...]) -> None:
        """Apply new revocations: end everything of the revoked callers in this process."""
        revocations = self.revocations
        self.callers.forget(revocations.is_refused)
        self.verdicts.forget(revocations.is_revoked)
        if self._opaque is not None:
            self._opaque.forget(revocations.is_revoked)
        self.running_requests.end(revocations.is_suspended, "suspended")
        self.running_requests.end(revocations.is_revoked, "revoked")
        self.streams.end(revocations.is_refused)
        self.task_runner.end(revocations.is_refused)
        self.runs.end(revocations.is_refused)
        self.upstreams.end(revocations.is_refused)
        self.withdrawn_approvals.begin(new)

    def leave(self) -> None:
        """Report from now on that this process stops, so that load balancers use other servers."""
        self.leaving = True

    def drain(self, within_s: float) -> None:
        """Begin a stop: end event streams and waiting calls, and give tasks time to finish."""
        self.streams.close()
        self.task_runner.drain(within_s)

    def warm(self) -> None:
        """Begin to fetch the issuers' keys, so that the first request does not wait for them."""
        self.keys.warm(self.issuers.issuers)

    async def aclose(self) -> None:
        """
        Close all objects, also if closing one fails: the last records must be written all the same.
        """
        await close_all(
            self.withdrawn_approvals.aclose,
            # Running tasks and calls use what is closed after them.
            self.task_runner.aclose,
            self.runs.aclose,
            self.upstreams.aclose,
            self.audit_writer.aclose,
            *[introspectors.aclose for introspectors in self._introspectors],
            self.keys.aclose,
            self.fetcher.aclose,
            self.outbound.aclose,
            self.workspaces.close,
            self.session_registry.close,
            self.pubsub.close,
            self.exporter.aclose,
            self.call_batch.flush,
            self.refusals.tell_left_out,
            self.log.aclose,  # last, so that it contains the last requests
        )


SourceOf = Callable[[Services, Config], OfferSource | None]


def upstream_offers(services: Services, config: Config) -> OfferSource | None:
    """Return the offers of upstreams, if the configuration lets any tenant have some."""
    return services.upstreams.source(config)
