"""The differences between identity providers, as data."""

from gatepost_authz.presets.hosted import HOSTED
from gatepost_authz.presets.preset import Preset, adjusted
from gatepost_authz.presets.self_hosted import SELF_HOSTED
from gatepost_authz.presets.workloads import WORKLOADS

__all__ = ["CLAIM_NAMES", "PRESETS", "Preset", "adjusted"]

GENERIC = Preset(name="generic", documentation="https://www.rfc-editor.org/rfc/rfc9068")

PRESETS: dict[str, Preset] = {
    preset.name: preset for preset in (GENERIC, *SELF_HOSTED, *HOSTED, *WORKLOADS)
}
"""Every preset by the name that ``[[issuers]] preset`` takes."""

CLAIM_NAMES = frozenset(
    name
    for preset in PRESETS.values()
    for name in (*preset.client_claims, *preset.subject_claims, *preset.token_id_claims)
)
"""The claims of clients, subjects and token ids that a preset names: each is a refusal reason."""
