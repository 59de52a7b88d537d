"""Imitate identity providers in the development issuer: their documented behaviour, as data."""

from difflib import get_close_matches

from gatepost_keys.imitation.auth0 import AUTH0_IMITATION
from gatepost_keys.imitation.authentik import AUTHENTIK_IMITATION
from gatepost_keys.imitation.cognito import COGNITO_IMITATION
from gatepost_keys.imitation.entra import ENTRA
from gatepost_keys.imitation.google import GOOGLE_IMITATION
from gatepost_keys.imitation.hydra import HYDRA_IMITATION
from gatepost_keys.imitation.keycloak import KEYCLOAK_IMITATION
from gatepost_keys.imitation.oidc_provider import LOGTO_IMITATION, OIDC_PROVIDER_IMITATION
from gatepost_keys.imitation.okta import OKTA_IMITATION
from gatepost_keys.imitation.shape import DEVELOPMENT, Imitation
from gatepost_keys.imitation.zitadel import ZITADEL_IMITATION

__all__ = ["DEVELOPMENT", "IMITATIONS", "Imitation", "nearest"]

IMITATIONS: dict[str, Imitation] = {
    imitation.name: imitation
    for imitation in (
        ENTRA,
        OKTA_IMITATION,
        AUTH0_IMITATION,
        COGNITO_IMITATION,
        GOOGLE_IMITATION,
        KEYCLOAK_IMITATION,
        ZITADEL_IMITATION,
        AUTHENTIK_IMITATION,
        HYDRA_IMITATION,
        LOGTO_IMITATION,
        OIDC_PROVIDER_IMITATION,
    )
}
"""Every imitation by the name that `gatepost dev --as` takes, which is its preset's name."""


def nearest(name: str) -> str:
    """Return the name of the imitation that is most like *name*, or an empty string."""
    matches = get_close_matches(name.lower(), IMITATIONS, n=1, cutoff=0.4)
    parts = [imitation for imitation in IMITATIONS if imitation.split("-")[0] in name.lower()]
    return (parts or matches or [""])[0]
