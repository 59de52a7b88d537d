"""The desk, for servers that give up on each other sooner: a test must not wait for real leases."""

from gatepost.guard import run
from tests.guard.desk import pack

__all__ = ["pack"]

# Only servers under test load this file; the test itself knows it by its path alone.
run.LEASE_S, run.RENEW_S = 3.0, 1.0
