"""The public names of the package."""

import inspect

import gatepost_authz


def test_authz_exports_exactly_the_names_in_all() -> None:
    """Names outside of `__all__` may move in any release."""
    visible = {name for name in vars(gatepost_authz) if not name.startswith("_")}
    modules = {name for name in visible if inspect.ismodule(getattr(gatepost_authz, name))}

    assert set(gatepost_authz.__all__) == visible - modules
    assert gatepost_authz.__all__ == sorted(
        gatepost_authz.__all__, key=lambda name: (not name.isupper(), name)
    )


def test_every_public_class_has_its_own_docstring() -> None:
    """The docstring of a base class is not enough."""
    for name in gatepost_authz.__all__:
        value = getattr(gatepost_authz, name)
        assert not inspect.isclass(value) or value.__dict__.get("__doc__"), name
