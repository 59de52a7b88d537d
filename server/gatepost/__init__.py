"""Gatepost puts tools behind an OAuth gate; this module has what the author of a pack imports."""

import importlib
import typing

if typing.TYPE_CHECKING:
    from gatepost.config.pack_registration import PackRegistration
    from gatepost.config.pack_settings import CredentialUse, PackSettings, SettingFault
    from gatepost.policy.script_reviews.script import FoundScripts, Script, ScriptSource
    from gatepost.policy.script_reviews.store import ScriptApprovals
    from gatepost.secrets.names import REFERENCE_PREFIX, is_reference
    from gatepost.storage.entries import Entries, Entry
    from gatepost.tools.call_context import CallContext, Outcome
    from gatepost.tools.content import (
        Audio,
        Contents,
        File,
        Icon,
        Image,
        ListedResource,
        Message,
        Relevance,
    )
    from gatepost.tools.context import (
        FileHead,
        Item,
        Outbound,
        OutboundReply,
        Sending,
        SignedHeaders,
        Upload,
        Workspace,
        WorkspaceUsage,
    )
    from gatepost.tools.dependency import Depends
    from gatepost.tools.effects import Effects, FileWrite, SettingsLookup
    from gatepost.tools.elicitation import Elicitation, ElicitationResult, Roots, UrlElicitation
    from gatepost.tools.failure import Failure, FailureKind, ToolFailure
    from gatepost.tools.json_shape import decoded
    from gatepost.tools.pack import Pack
    from gatepost.tools.raw_schema import validator_of
    from gatepost.tools.sampling import Sampled, Sampling
    from gatepost.tools.secret import Secret
    from gatepost.tools.tool_methods import tool_method
    from gatepost.tools.yaml_reader import YamlError, YamlLimits, read_yaml

__all__ = [
    "REFERENCE_PREFIX",
    "Audio",
    "CallContext",
    "Contents",
    "CredentialUse",
    "Depends",
    "Effects",
    "Elicitation",
    "ElicitationResult",
    "Entries",
    "Entry",
    "Failure",
    "FailureKind",
    "File",
    "FileHead",
    "FileWrite",
    "FoundScripts",
    "Icon",
    "Image",
    "Item",
    "ListedResource",
    "Message",
    "Outbound",
    "OutboundReply",
    "Outcome",
    "Pack",
    "PackRegistration",
    "PackSettings",
    "Relevance",
    "Roots",
    "Sampled",
    "Sampling",
    "Script",
    "ScriptApprovals",
    "ScriptSource",
    "Secret",
    "Sending",
    "SettingFault",
    "SettingsLookup",
    "SignedHeaders",
    "ToolFailure",
    "Upload",
    "UrlElicitation",
    "Workspace",
    "WorkspaceUsage",
    "YamlError",
    "YamlLimits",
    "decoded",
    "is_reference",
    "read_yaml",
    "tool_method",
    "validator_of",
]

_PLACES = {
    "gatepost.config.pack_registration": ("PackRegistration",),
    "gatepost.config.pack_settings": ("CredentialUse", "PackSettings", "SettingFault"),
    "gatepost.policy.script_reviews.script": ("FoundScripts", "Script", "ScriptSource"),
    "gatepost.policy.script_reviews.store": ("ScriptApprovals",),
    "gatepost.secrets.names": ("REFERENCE_PREFIX", "is_reference"),
    "gatepost.storage.entries": ("Entries", "Entry"),
    "gatepost.tools.call_context": ("CallContext", "Outcome"),
    "gatepost.tools.content": (
        "Audio",
        "Contents",
        "File",
        "Icon",
        "Image",
        "ListedResource",
        "Message",
        "Relevance",
    ),
    "gatepost.tools.context": (
        "FileHead",
        "Item",
        "Outbound",
        "OutboundReply",
        "Sending",
        "SignedHeaders",
        "Upload",
        "Workspace",
        "WorkspaceUsage",
    ),
    "gatepost.tools.dependency": ("Depends",),
    "gatepost.tools.effects": ("Effects", "FileWrite", "SettingsLookup"),
    "gatepost.tools.elicitation": ("Elicitation", "ElicitationResult", "Roots", "UrlElicitation"),
    "gatepost.tools.failure": ("Failure", "FailureKind", "ToolFailure"),
    "gatepost.tools.json_shape": ("decoded",),
    "gatepost.tools.tool_methods": ("tool_method",),
    "gatepost.tools.pack": ("Pack",),
    "gatepost.tools.sampling": ("Sampled", "Sampling"),
    "gatepost.tools.raw_schema": ("validator_of",),
    "gatepost.tools.secret": ("Secret",),
    "gatepost.tools.yaml_reader": ("YamlError", "YamlLimits", "read_yaml"),
}

if not typing.TYPE_CHECKING:
    # Imported by name on first use. Importing any `gatepost.…` module imports this file first, and
    # the command line would have to wait for all of it. Type checkers read the imports above, and
    # find a misspelt name.
    def __getattr__(name: str) -> object:
        for module, names in _PLACES.items():
            if name in names:
                exported = globals()[name] = getattr(importlib.import_module(module), name)
                return exported
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
