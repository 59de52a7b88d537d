"""The tools of `toolset`, for servers with short leases: a test must not wait for real ones."""

from gatepost.policy.idempotency import execution
from tests.policy.idempotency.toolset import pack

__all__ = ["pack"]

# Only servers under test load this file; the test itself knows it by its path alone.
execution.LEASE_S, execution.RENEW_S = 3.0, 1.0
