"""The differences between identity providers, as data."""

from gatepost_authz.presets.hosted import HOSTED
from gatepost_authz.presets.preset import Preset, adjusted
from gatepost_authz.presets.self_hosted import SELF_HOSTED
from gatepost_authz.presets.workloads import WORKLOADS

__all__ = ["CLAIM_NAMES", "CLAIM_SETTINGS", "PRESETS", "Preset", "adjusted"]

GENERIC = Preset(name="generic", documentation="https://www.rfc-editor.org/rfc/rfc9068")

PRESETS: dict[str, Preset] = {
    preset.name: preset for preset in (GENERIC, *SELF_HOSTED, *HOSTED, *WORKLOADS)
}
"""Every preset by the name that ``[[issuers]] preset`` takes."""

CLAIM_SETTINGS = {
    name: setting
    for setting in ("token_id_claims", "client_claims", "subject_claims")
    for preset in PRESETS.values()
    for name in getattr(preset, setting)
}
"""Every claim of a client, subject or token id that a preset names, and its setting."""

CLAIM_NAMES = frozenset(CLAIM_SETTINGS)
"""The same claims; each is a refusal reason."""
