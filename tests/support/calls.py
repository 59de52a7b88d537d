"""The callers whose calls reached the witness tools, in this process."""

from gatepost_authz.caller import TenantContext

CALLS: list[TenantContext] = []
