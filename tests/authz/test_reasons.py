"""Every reason for a refusal has its rule, and no rule is about a reason that does not exist."""

import ast
import inspect

from gatepost_authz import errors
from gatepost_authz.claims import RegisteredClaims
from gatepost_authz.fetch import FetchError
from gatepost_authz.presets import PRESETS
from gatepost_authz.reasons import FETCH_FAILURES, LABEL_OF, LABELS, RULES
from tests.architecture.source import calls_of, dotted

ERROR_CLASSES = {
    name
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.AuthError)
}
FAMILIES = {
    "bad_{}": {
        *RegisteredClaims.__struct_fields__,
        *(name for preset in PRESETS.values() for name in preset.client_claims),
        *(name for preset in PRESETS.values() for name in preset.subject_claims),
        *(name for preset in PRESETS.values() for name in preset.token_id_claims),
    },
    "keys_{}": set(FETCH_FAILURES),
    "introspection_{}": set(FETCH_FAILURES),
}


def possible_texts(node: ast.expr) -> set[str]:
    """Return the texts that this expression may be; a hole in an f-string is `{}`."""
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    if isinstance(node, ast.JoinedStr):
        return {
            "".join(
                str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "{}"
                for part in node.values
            )
        }
    if isinstance(node, ast.IfExp):
        return possible_texts(node.body) | possible_texts(node.orelse)
    return set()


def raised_reasons() -> set[str]:
    """Return every reason in the source: arguments of errors, and defaults of their kinds."""
    names: set[str] = set()
    for call in calls_of({*ERROR_CLASSES, "line"} - {"InsufficientScope"}):
        called = dotted(call.func).rpartition(".")[2]
        if called in ERROR_CLASSES and call.args:
            names |= possible_texts(call.args[0])
        elif called not in ERROR_CLASSES and len(call.args) > 1:
            names |= {
                reason for reason in possible_texts(call.args[1]) if reason.startswith("bad_")
            }
    for name in ERROR_CLASSES:
        reason = inspect.signature(vars(errors)[name]).parameters["reason"].default
        names |= {reason} if isinstance(reason, str) else set()
    return names


def expanded_reasons(reasons: set[str]) -> set[str]:
    """Put each family of reasons in place of its hole."""
    plain = {reason for reason in reasons if "{}" not in reason}
    return plain.union(
        *({reason.format(word) for word in FAMILIES[reason]} for reason in reasons - plain)
    )


def test_every_reason_has_a_rule_and_every_rule_a_reason() -> None:
    """A new reason needs a rule, and a removed reason must lose its rule."""
    assert expanded_reasons(raised_reasons()) == set(RULES)


def test_every_reason_of_a_failed_fetch_has_an_explanation() -> None:
    """The reason of a failed fetch becomes part of a refusal's reason."""
    reasons = set[str]().union(
        *(possible_texts(call.args[0]) for call in calls_of({FetchError.__name__}))
    )

    assert reasons <= set(FETCH_FAILURES)


def test_every_rule_is_a_sentence_with_advice() -> None:
    """The text begins with a capital letter or a name, and ends with a full stop."""
    for reason, rule in RULES.items():
        for sentence in (rule.rule, rule.advice):
            assert sentence.endswith("."), reason
            assert sentence[0].isupper() or sentence[0] == "`", reason


NO_SETTING = {
    *("no_credentials", "other_scheme", "repeated_header", "too_long", "malformed_credentials"),
    *("token_too_large", "malformed_token", "refused_header", "refused_algorithm", "refused_type"),
    *("refused_kid", "sender_constrained", "bad_audience", "too_many_scopes", "revoked"),
    *("insufficient_authentication", "wrong_nonce", "wrong_access_token", "bad_code", "no_sender"),
    *("wrong_sender", "bad_acr", "bad_act", "bad_auth_time", "bad_exp", "bad_iat", "bad_iss"),
    *("bad_nbf", "bad_sid", "keys_too_many_waiters"),
}
"""The rules that no setting changes: the client, the issuer or a person has to do something."""


def test_every_rule_names_a_setting_except_for_listed_rules() -> None:
    """The setting tells an operator what to change."""
    assert {reason for reason, rule in RULES.items() if not rule.setting} == NO_SETTING


def test_reasons_are_a_closed_set_of_metric_labels() -> None:
    """A caller cannot create a new label value."""
    assert {LABEL_OF[reason] for reason in RULES} == set(LABELS)
    assert len(set(LABELS)) == len(LABELS) < 100
