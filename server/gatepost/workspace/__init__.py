"""A tenant's own directory: files by relative path, and no way out of it."""

from gatepost.workspace.ledger import DEFAULT_QUOTA, Quota
from gatepost.workspace.path import SHOWN_ROOT, folder_of, parts_of
from gatepost.workspace.resolver import Kernel, Resolver, Walk, kernel_resolves, resolver_of
from gatepost.workspace.tenant import TenantWorkspace, Workspaces

__all__ = [
    "DEFAULT_QUOTA",
    "SHOWN_ROOT",
    "Kernel",
    "Quota",
    "Resolver",
    "TenantWorkspace",
    "Walk",
    "Workspaces",
    "folder_of",
    "kernel_resolves",
    "parts_of",
    "resolver_of",
]
