"""Gatepost puts tools behind an OAuth gate; this module has what the author of a pack imports."""

import importlib
import typing

if typing.TYPE_CHECKING:
    from gatepost.config.pack_registration import PackRegistration, built_in_packs
    from gatepost.config.pack_settings import CredentialUse, PackSettings, SettingFault
    from gatepost.documents.json_shape import decoded, decoded_within
    from gatepost.documents.yaml_reader import YamlError, YamlLimits, read_yaml
    from gatepost.execution.failure import Failure, FailureKind, ToolFailure
    from gatepost.policy.script_reviews.script import FoundScripts, Script, ScriptSource
    from gatepost.policy.script_reviews.store import ScriptApprovals
    from gatepost.secrets.names import REFERENCE_PREFIX, is_reference
    from gatepost.storage.entries import Entries, Entry
    from gatepost.tools.authoring.dependency import Depends
    from gatepost.tools.authoring.pack import Pack
    from gatepost.tools.authoring.tool_methods import tool_method
    from gatepost.tools.context.call_context import CallContext, Outcome
    from gatepost.tools.context.content import (
        Audio,
        Contents,
        File,
        Icon,
        Image,
        ListedResource,
        Message,
        Relevance,
    )
    from gatepost.tools.context.elicitation import (
        Elicitation,
        ElicitationResult,
        Roots,
        UrlElicitation,
    )
    from gatepost.tools.context.interfaces import (
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
    from gatepost.tools.context.sampling import Sampled, Sampling
    from gatepost.tools.offers.effects import Effects, FileWrite, SettingsLookup
    from gatepost.tools.schemas.raw_schema import validator_of
    from gatepost.tools.schemas.secret import Secret

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
    "built_in_packs",
    "decoded",
    "decoded_within",
    "is_reference",
    "read_yaml",
    "tool_method",
    "validator_of",
]

_PLACES = {
    "gatepost.config.pack_registration": ("PackRegistration", "built_in_packs"),
    "gatepost.config.pack_settings": ("CredentialUse", "PackSettings", "SettingFault"),
    "gatepost.policy.script_reviews.script": ("FoundScripts", "Script", "ScriptSource"),
    "gatepost.policy.script_reviews.store": ("ScriptApprovals",),
    "gatepost.secrets.names": ("REFERENCE_PREFIX", "is_reference"),
    "gatepost.storage.entries": ("Entries", "Entry"),
    "gatepost.tools.context.call_context": ("CallContext", "Outcome"),
    "gatepost.tools.context.content": (
        "Audio",
        "Contents",
        "File",
        "Icon",
        "Image",
        "ListedResource",
        "Message",
        "Relevance",
    ),
    "gatepost.tools.context.interfaces": (
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
    "gatepost.tools.authoring.dependency": ("Depends",),
    "gatepost.tools.offers.effects": ("Effects", "FileWrite", "SettingsLookup"),
    "gatepost.tools.context.elicitation": (
        "Elicitation",
        "ElicitationResult",
        "Roots",
        "UrlElicitation",
    ),
    "gatepost.execution.failure": ("Failure", "FailureKind", "ToolFailure"),
    "gatepost.documents.json_shape": ("decoded", "decoded_within"),
    "gatepost.tools.authoring.tool_methods": ("tool_method",),
    "gatepost.tools.authoring.pack": ("Pack",),
    "gatepost.tools.context.sampling": ("Sampled", "Sampling"),
    "gatepost.tools.schemas.raw_schema": ("validator_of",),
    "gatepost.tools.schemas.secret": ("Secret",),
    "gatepost.documents.yaml_reader": ("YamlError", "YamlLimits", "read_yaml"),
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
