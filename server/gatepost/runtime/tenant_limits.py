"""Limit the open streams and the workspaces of tenants, as a configuration says."""

from collections.abc import Callable
from pathlib import Path

from gatepost.config.settings import Config
from gatepost.http.open_streams import OpenStreams
from gatepost.policy.revocation.watch import Revocations
from gatepost.workspace import Quota, Workspaces


def streams_of(config: Config, revocations: Revocations, clock: Callable[[], float]) -> OpenStreams:
    """Return the counter of open streams with its limits."""
    limits = config.limits
    return OpenStreams(
        max_streams=limits.listen_streams,
        max_per_caller=limits.listen_streams_per_caller,
        is_refused=revocations.is_refused,
        clock=clock,
    )


def workspaces_of(config: Config) -> Workspaces:
    """Return the workspaces of all tenants."""
    settings = config.workspace
    quota = Quota(settings.quota_bytes, settings.quota_files)
    return Workspaces(Path(settings.root), quota=quota, required=config.stores_files)
