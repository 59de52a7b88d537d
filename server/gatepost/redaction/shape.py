"""Tokens that are known by their form, whoever's they are."""

import re
from collections.abc import Iterator, Sequence

from gatepost.redaction.mark import Credentials, Enclosed, Mark, Shape

_FREE = rb"(?<![A-Za-z0-9_])"

SHAPES: Sequence[tuple[str, Sequence[bytes], bytes]] = (
    ("GITHUB_TOKEN", (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"), rb"gh[pousr]_[A-Za-z0-9]{36,}"),
    ("GITHUB_TOKEN", (b"github_pat_",), rb"github_pat_[A-Za-z0-9_]{22,}"),
    (
        "GITLAB_TOKEN",
        (b"glpat-", b"gldt-", b"glrt-", b"glptt-", b"glcbt-", b"glsoat-"),
        rb"gl(?:pat|dt|rt|ptt|cbt|soat)-[\w-]{20,}",
    ),
    (
        "SLACK_TOKEN",
        (b"xoxa-", b"xoxb-", b"xoxe", b"xoxp-", b"xoxr-", b"xoxs-", b"xapp-"),
        rb"(?:xox[abprs]|xoxe(?:\.xox[bp])?|xapp)-(?=[A-Za-z-]{0,40}[0-9])[A-Za-z0-9-]{10,}",
    ),
    (
        "SLACK_WEBHOOK",
        (b"hooks.slack.com/",),
        rb"hooks\.slack\.com/(?:services|workflows)/([\w/]{20,})",
    ),
    (
        "AWS_ACCESS_KEY",
        (b"AKIA", b"ASIA"),
        rb"A[KS]IA(?=[A-Z]{0,15}[2-7])[A-Z2-7]{16}(?![A-Za-z0-9])|A[KS]IAIOSFODNN7EXAMPLE",
    ),
    ("GOOGLE_API_KEY", (b"AIza",), rb"AIza[\w-]{35}(?![\w-])"),
    ("GOOGLE_TOKEN", (b"ya29.",), rb"ya29\.[\w-]{20,}"),
    ("GOOGLE_SECRET", (b"GOCSPX-",), rb"GOCSPX-[\w-]{28}"),
    ("ANTHROPIC_KEY", (b"sk-ant-",), rb"sk-ant-[a-z]+[0-9]+-[\w-]{24,}"),
    (
        "OPENAI_KEY",
        (b"sk-",),
        # Words with hyphens are no keys: of those below, each has digits and capitals, or is hex.
        rb"sk-(?:(?:or-v1-)?[0-9a-f]{32,64}(?![\w-])"
        rb"|(?!ant-)(?=[\w-]{0,60}[0-9])(?=[\w-]{0,60}[A-Z])(?:[a-z]{3,8}-)?[A-Za-z0-9][\w-]{19,})",
    ),
    (
        "STRIPE_KEY",
        (b"sk_live_", b"rk_live_", b"sk_test_", b"rk_test_"),
        rb"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    ),
    ("STRIPE_SECRET", (b"whsec_",), rb"whsec_[A-Za-z0-9+/]{32,}=*"),
    ("NPM_TOKEN", (b"npm_",), rb"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    ("PYPI_TOKEN", (b"pypi-AgE",), rb"pypi-AgE[\w-]{50,}"),
    (
        "HUGGINGFACE_TOKEN",
        (b"hf_",),
        rb"hf_(?=[a-z0-9]{0,33}[A-Z])[A-Za-z0-9]{34,}",
    ),
    ("SENDGRID_KEY", (b"SG.",), rb"SG\.[\w-]{22}\.[\w-]{43}(?![\w-])"),
    ("DIGITALOCEAN_TOKEN", (b"dop_v1_", b"doo_v1_"), rb"do[op]_v1_[0-9a-f]{64}"),
    (
        "JWT",
        (b"eyJ",),
        rb"(?<!-)eyJ[\w-]{8,}\.(?:[\w-]{8,}\.[\w-]{8,}|[\w-]*\.[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})",
    ),
    (
        "PRIVATE_KEY",
        (b"-----BEGIN ",),
        # To its end, or where that was cut off, as far as it reads like a key.
        rb"-----BEGIN (?:[A-Z0-9 ]{1,20} )?PRIVATE KEY(?: BLOCK)?-----"
        rb"(?:(?:[A-Za-z0-9+/=:,.\\\s\0]|-(?!----)){24,20000}?"
        rb"-----END [A-Z0-9 ]{0,20}PRIVATE KEY(?: BLOCK)?-----"
        rb"|(?:\s|\\[nr])+[A-Za-z0-9+/=:,.\\\s-]{24,})",
    ),
    (
        "BEARER_TOKEN",
        (b"Bearer ", b"bearer ", b"BEARER "),
        rb"(?i:bearer) +((?=[A-Za-z._~+/-]{0,200}[0-9])(?=[^A-Za-z]{0,200}[A-Za-z])"
        rb"[A-Za-z0-9._~+/-]{20,}=*)",
    ),
    ("BASIC_CREDENTIALS", (b"Basic ", b"basic "), rb"(?i:basic) +([A-Za-z0-9+/]{8,}={0,2})"),
)
"""Name, how it begins, and what it must look like from there; a group is what is removed of it."""

_ENCLOSED_BYTES = 4
_HEADERS = (b"eyJhbGciOi", b"eyJ0eXAiOi", b"eyJraWQiOi")
"""How nearly all JWTs begin: three characters are too few to look for in base64."""


def shapes() -> Iterator[Mark]:
    """The patterns of all tokens that are known by their form, plain and in base64."""
    for name, openings, form in SHAPES:
        pattern = re.compile(_FREE + rb"(?:" + form + rb")")
        inner = re.compile(rb"(?:" + form + rb")")
        for opening in openings:
            if name == "BASIC_CREDENTIALS":
                yield Credentials(name, opening, pattern)
                continue
            yield Shape(name, opening, pattern)
            if name == "JWT" or len(opening) < _ENCLOSED_BYTES:
                continue
            long = name == "PRIVATE_KEY"
            yield from (Enclosed(name, opening, lead, inner, long=long) for lead in range(3))
        if name == "JWT":
            for opening in _HEADERS:
                yield from (Enclosed(name, opening, lead, inner, long=True) for lead in range(3))
