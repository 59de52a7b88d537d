"""Check `[credentials.NAME]`."""

import re
from collections.abc import Iterator

from gatepost.config.credentials import CredentialSettings
from gatepost.config.pack_settings import CredentialUse, PackSettings
from gatepost.config.references import REFERENCE, UnresolvedReference, resolve
from gatepost.config.settings import Config
from gatepost.secrets.hosts import checked_hosts, destination
from gatepost.secrets.names import REFERENCE_PREFIX, SecretRefused, is_reference
from gatepost.upstreams.fields import SCOPE, InvalidField, checked_header_names
from gatepost_authz.address_policy import ToolAddressPolicy
from gatepost_authz.addresses import url_problem
from gatepost_authz.client_authentication import signing_key
from gatepost_authz.config import Problem

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
CODE = "config.E150"
STATIC = ("api_key", "headers")
CLIENT = (
    *("client_id", "client_secret", "private_key", "key_id", "issuer", "token_endpoint"),
    *("resource", "audience", "scopes"),
)


def problems(config: Config) -> Iterator[Problem]:
    """Yield the problems of all credentials."""
    for name, credential in config.credentials.items():
        table = f"credentials.{name}"
        if not NAME.fullmatch(name):
            hint = "use at most 64 of a-z, 0-9 and _, starting with a letter"
            yield Problem(CODE, f"{name[:80]!r} cannot name a credential", hint, setting=table)
        if not credential.tenants:
            yield Problem(
                CODE,
                f"the credential {name!r} names no tenant",
                'name them, tenants = ["acme"], or write tenants = ["*"] for every tenant',
                setting=f"{table}.tenants",
            )
        unused = CLIENT if credential.type == "static" else STATIC
        for field in unused:
            if getattr(credential, field):
                yield Problem(
                    CODE,
                    f"`{field}` is not a setting of a {credential.type!r} credential",
                    f"remove `{field}`, or change `type`",
                    setting=f"{table}.{field}",
                )
        try:
            checked_hosts(credential.hosts)
        except SecretRefused as refused:
            hint = 'write hosts as ["api.example.com", "api.example.com:8443"]'
            yield Problem(CODE, str(refused), hint, setting=f"{table}.hosts")
        yield from (_static if credential.type == "static" else _client)(credential, table)


def pack_problems(config: Config, pack: str, table: PackSettings) -> Iterator[Problem]:
    """Yield the problems of the credentials that a pack's table names."""
    address_policy = ToolAddressPolicy(config.network.allow_hosts)
    for use in table.credential_uses():
        setting = f"packs.{pack}.{use.setting}"
        credential = config.credentials.get(use.name)
        if credential is None:
            yield Problem(
                CODE,
                f"there is no credential {use.name[:80]!r}",
                f"add a [credentials.{use.name[:80]}] table, or correct the name",
                setting=setting,
            )
        elif not credential.hosts:
            yield Problem(
                CODE,
                f"the credential {use.name!r} names no hosts, so no pack may use it",
                f"name the API's host in credentials.{use.name}.hosts",
                setting=setting,
            )
        elif use.url:
            yield from _place_problem(credential, use, address_policy, setting)


def _place_problem(
    credential: CredentialSettings,
    use: CredentialUse,
    address_policy: ToolAddressPolicy,
    setting: str,
) -> Iterator[Problem]:
    try:
        target, hosts = destination(use.url, address_policy), checked_hosts(credential.hosts)
    except SecretRefused:
        return  # reported at the table
    except ValueError as problem:
        hint = "use https, or allow the host in network.allow_hosts"
        yield Problem(
            CODE,
            f"the credential {use.name!r} is not sent to {use.url}: {problem}",
            hint,
            setting=setting,
        )
        return
    if target not in hosts:
        yield Problem(
            CODE,
            f"the credential {use.name!r} is not for {target}",
            f"add it to credentials.{use.name}.hosts, or use another credential",
            setting=setting,
        )


def reference_problem(value: str, setting: str, code: str = CODE) -> Iterator[Problem]:
    """Yield the problem of a value that is no reference, or one that cannot be resolved."""
    if REFERENCE.match(value):
        try:
            resolve(value)
        except UnresolvedReference as error:
            yield Problem(code, str(error), "set it where the server runs", setting=setting)
    elif value.startswith(REFERENCE_PREFIX) and not is_reference(value):
        yield Problem(
            code,
            "that is no name of a secret",
            "a name begins with a capital letter, and has at most 64 of A-Z, 0-9 and _",
            setting=setting,
        )
    elif not is_reference(value):
        # The value is not shown, because it may be the secret itself.
        yield Problem(
            code,
            f"`{setting}` holds a value instead of a reference",
            "write secret:NAME (see `gatepost secrets set`), env:NAME or file:PATH",
            setting=setting,
        )


def _static(credential: CredentialSettings, table: str) -> Iterator[Problem]:
    if not credential.api_key and not credential.headers:
        yield Problem(CODE, "it has neither `api_key` nor `headers`", setting=table)
    try:
        checked_header_names(credential.headers)
    except InvalidField as invalid:
        yield Problem(CODE, invalid.message, setting=f"{table}.headers")
    if credential.api_key:
        yield from reference_problem(credential.api_key, f"{table}.api_key")
    for name, value in credential.headers.items():
        yield from reference_problem(value, f"{table}.headers.{name}")


def _client(credential: CredentialSettings, table: str) -> Iterator[Problem]:
    if not credential.client_id:
        yield Problem(CODE, "it has no `client_id`", setting=f"{table}.client_id")
    if credential.method == "private_key_jwt":
        if credential.client_secret:
            hint = "remove it, or change `method`"
            setting = f"{table}.client_secret"
            yield Problem(CODE, "private_key_jwt has no client secret", hint, setting=setting)
        if credential.private_key:
            yield from _key(credential, f"{table}.private_key")
    elif not credential.client_secret:
        setting = f"{table}.client_secret"
        yield Problem(CODE, f"{credential.method} needs a `client_secret`", setting=setting)
    else:
        yield from reference_problem(credential.client_secret, f"{table}.client_secret")
    yield from _server(credential, table)


def _server(credential: CredentialSettings, table: str) -> Iterator[Problem]:
    for field in ("issuer", "token_endpoint"):
        url = getattr(credential, field)
        if url and (problem := url_problem(url, development=True)):
            yield Problem(CODE, f"`{field}` cannot be used: {problem}", setting=f"{table}.{field}")
    for scope in credential.scopes:
        if not SCOPE.fullmatch(scope):
            yield Problem(CODE, f"{scope[:80]!r} is not a scope", setting=f"{table}.scopes")
    if credential.client_secret and not (credential.issuer or credential.token_endpoint):
        yield Problem(
            "config.W144",
            "the upstream decides which authorization server gets the client secret",
            "set `issuer`, so that only this authorization server gets it",
            "warning",
            f"{table}.issuer",
        )


def _key(credential: CredentialSettings, setting: str) -> Iterator[Problem]:
    if not REFERENCE.match(credential.private_key):
        hint = "write file:PATH or env:NAME of a private key in PEM"
        yield Problem(CODE, "`private_key` is not a reference", hint, setting=setting)
        return
    try:
        signing_key(resolve(credential.private_key))
    except (UnresolvedReference, ValueError) as error:
        yield Problem(CODE, str(error), setting=setting)
