"""A tenant's own directory: files by relative path, with no way out of it."""

from gatepost.workspace.path import SHOWN_ROOT, folder_of, is_repository, parts_of, problem_of
from gatepost.workspace.removal import clear
from gatepost.workspace.resolver import Kernel, Resolver, Walk, kernel_resolves, resolver_of
from gatepost.workspace.tenant_workspace import TenantWorkspace, Workspaces
from gatepost.workspace.usage import DEFAULT_QUOTA, Quota

__all__ = [
    "DEFAULT_QUOTA",
    "SHOWN_ROOT",
    "Kernel",
    "Quota",
    "Resolver",
    "TenantWorkspace",
    "Walk",
    "Workspaces",
    "clear",
    "folder_of",
    "is_repository",
    "kernel_resolves",
    "parts_of",
    "problem_of",
    "resolver_of",
]
