"""Open all services of a process in order, and close them in reverse."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from gatepost.audit.retention import Retention
from gatepost.check.pack_loading import Toolbox
from gatepost.config.settings import Config
from gatepost.runtime import stores
from gatepost.runtime.metrics_sampler import sampler_of, sampling_metrics
from gatepost.runtime.pack_lifespans import lifespans_of
from gatepost.runtime.services import Services, SourceOf
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.store import SUBJECT as SECRETS
from gatepost.storage.revocations import SUBJECT as REVOCATIONS
from gatepost.telemetry.metrics import Meter
from gatepost_authz.fetch import Fetcher


@asynccontextmanager
async def opened(  # noqa: PLR0913  # the composition root hands over each part by name
    config: Config,
    toolbox: Toolbox,
    keyring: KeyRing,
    meter: Meter | None = None,
    source_of: SourceOf | None = None,
    fetcher: Fetcher | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Services]:
    """
    Open the services of a valid configuration; nothing is fetched yet.

    *source_of* returns the source of the offers of tenants; default: the upstreams. *fetcher* reads
    documents of issuers; default: over HTTP. *clock* says when tokens, approvals and tasks expire.
    Raises StoreRefused, StoreUnavailable and LifespanFailed.
    """
    records, shared_store = await stores.opened(config.storage)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(records.aclose)
        closing.push_async_callback(shared_store.aclose)
        lifespans = await closing.enter_async_context(lifespans_of(toolbox.packs))
        services = Services(
            config,
            toolbox,
            keyring,
            records=records,
            shared_store=shared_store,
            lifespans=lifespans,
            meter=meter,
            source_of=source_of,
            fetcher=fetcher,
            clock=clock,
        )
        retention = Retention(records, keyring, services.audit_writer)
        # Closed after the services: calls that end while they close are recorded before the last
        # checkpoint and counted in the last sample.
        await closing.enter_async_context(retention.running())
        sampler = sampler_of(services)
        closing.push_async_callback(sampler.sample, seldom=False)
        closing.push_async_callback(services.aclose)
        followers = {REVOCATIONS: services.revocations.take_up, SECRETS: services.secrets.take_up}
        await closing.enter_async_context(services.changes.polling(followers))
        services.task_runner.start()
        await closing.enter_async_context(stores.sweeping(records))
        await closing.enter_async_context(services.callers.writing())
        await closing.enter_async_context(sampling_metrics(sampler))
        await closing.enter_async_context(services.approval_services.running())
        await closing.enter_async_context(services.approvals.expiring())
        await closing.enter_async_context(services.upstreams.running())
        yield services
