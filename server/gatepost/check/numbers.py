"""Check the numbers that must be positive, or not negative."""

from collections.abc import Iterator

from gatepost.config.settings import Config
from gatepost_authz.config import Problem


def problems(config: Config) -> Iterator[Problem]:
    """Yield the numbers that are out of range."""
    limits, tools, tasks = config.limits, config.tools, config.tasks
    positive = {
        "tools.timeout_s": tools.timeout_s,
        "tools.max_result_bytes": tools.max_result_bytes,
        "tasks.ttl_s": tasks.ttl_s,
        "tasks.poll_interval_s": tasks.poll_interval_s,
        "tasks.max_per_caller": tasks.max_per_caller,
        "tasks.lease_s": tasks.lease_s,
        "retention.once_s": config.retention.once_s,
        "dashboard.session_s": config.dashboard.session_s,
        "dashboard.idle_s": config.dashboard.idle_s,
        "mcp.page_size": config.mcp.page_size,
        "limits.burst": limits.burst,
        "limits.max_body_bytes": limits.max_body_bytes,
        "limits.max_body_values": limits.max_body_values,
        "limits.max_header_bytes": limits.max_header_bytes,
        "limits.header_timeout_s": limits.header_timeout_s,
        "limits.body_timeout_s": limits.body_timeout_s,
        "limits.listen_streams": limits.listen_streams,
        "limits.client_requests_per_caller": limits.client_requests_per_caller,
        "limits.client_request_timeout_s": limits.client_request_timeout_s,
        "limits.listen_streams_per_caller": limits.listen_streams_per_caller,
    }
    for setting, number in positive.items():
        if number <= 0:
            yield Problem("config.E016", f"`{setting}` must be more than 0", setting=setting)
    not_negative = {
        "limits.failures_per_second": limits.failures_per_second,
        "limits.requests_per_second": limits.requests_per_second,
        "limits.cached_tokens": limits.cached_tokens,
        "limits.unread_bytes": limits.unread_bytes,
        "limits.unread_bytes_per_caller": limits.unread_bytes_per_caller,
        "limits.read_bytes_per_second": limits.read_bytes_per_second,
        "listen.drain_s": config.listen.drain_s,
        "listen.leave_s": config.leave_s,
    }
    for setting, number in not_negative.items():
        if number < 0:
            yield Problem("config.E016", f"`{setting}` must not be negative", setting=setting)
