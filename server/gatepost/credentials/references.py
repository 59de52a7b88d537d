"""Resolve references to secrets for requests to one server."""

from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.credentials.credential import CredentialUnavailable
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.hosts import destination
from gatepost.secrets.names import REFERENCE_PREFIX, is_reference
from gatepost.secrets.store import SecretUnreadable
from gatepost.storage.errors import StoreUnavailable
from gatepost_authz.address_policy import ToolAddressPolicy


async def referred(
    reference: str, tenant: str, url: str, secrets: SecretCache, address_policy: ToolAddressPolicy
) -> str:
    """
    Return the value of `secret:NAME` of a tenant, `env:NAME` or `file:PATH`, to be sent to *url*.

    The configuration names the URL, so a secret that is bound to no host may be sent there. Raises
    CredentialUnavailable.
    """
    if REFERENCE.match(reference):
        try:
            return resolve(reference)
        except UnresolvedReference as error:
            raise CredentialUnavailable(f"A secret is missing: {error}.") from None
    if not is_reference(reference):
        raise CredentialUnavailable("A setting holds a value instead of a reference.")
    name = reference.removeprefix(REFERENCE_PREFIX)
    try:
        secret = await secrets.value(tenant, name)
    except SecretUnreadable as unreadable:
        raise CredentialUnavailable(f"{str(unreadable).capitalize()}.") from None
    except StoreUnavailable:
        raise CredentialUnavailable("The database does not answer.") from None
    if secret is None:
        raise CredentialUnavailable(
            f"There is no secret {name}: gatepost secrets set {name} --tenant {tenant}"
        )
    try:
        target = destination(url, address_policy)
    except ValueError as problem:
        raise CredentialUnavailable(
            f"The secret {name} is not sent to this URL: {problem}."
        ) from None
    if secret.hosts and target not in secret.hosts:
        raise CredentialUnavailable(
            f"The secret {name} is bound to {' and '.join(secret.hosts)} and is not sent to "
            f"{target}."
        )
    return secret.value
