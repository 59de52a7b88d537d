"""The preset that `gatepost issuer probe` proposes."""

from gatepost.doctor.issuer_proposal import preset_of
from tests.support.issuers import RECORDED_PROVIDERS
from tests.support.measuring import each


@each("name", RECORDED_PROVIDERS)
def test_a_hosted_provider_is_recognised_by_its_issuer(name: str) -> None:
    """Each recorded issuer leads to its preset or to `generic`."""
    recorded = RECORDED_PROVIDERS[name]
    metadata = recorded.get("metadata") or {}
    preset, why = preset_of(recorded["settings"]["issuer"], metadata)

    assert preset in {name, "generic"}
    assert why.endswith(".")
