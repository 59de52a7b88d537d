"""What a package offers is what its `__all__` lists, and every name of it is explained."""

import inspect
from importlib import import_module

import pytest

from tests.architecture.source import ROOT

PACKAGES = (
    "gatepost",
    "gatepost.sandbox",
    "gatepost.testing",
    "gatepost.workspace",
    "gatepost_authz",
    "gatepost_keys.issuer",
)


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_export_exactly_the_names_in_all(name: str) -> None:
    """Users depend on every name that they can import."""
    package = import_module(name)
    # What is loaded when it is asked for is there from then on.
    assert all(hasattr(package, attribute) for attribute in package.__all__)
    public = {attribute for attribute in vars(package) if not attribute.startswith("_")}
    modules = {attribute for attribute in public if inspect.ismodule(getattr(package, attribute))}

    assert set(package.__all__) == public - modules


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_class_and_function_has_a_docstring(name: str) -> None:
    """Users read shapes, units and errors in the docstring."""
    package = import_module(name)
    offered = {attribute: getattr(package, attribute) for attribute in package.__all__}
    silent = [
        attribute
        for attribute, value in offered.items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and not value.__doc__
    ]

    assert silent == []


def test_every_package_has_a_py_typed_marker() -> None:
    """Without the marker, type checkers treat every name of the package as untyped."""
    folders = [path.parent for path in ROOT.glob("*/gatepost*/__init__.py")]

    assert len(folders) == 4
    assert [folder.name for folder in folders if not (folder / "py.typed").is_file()] == []
