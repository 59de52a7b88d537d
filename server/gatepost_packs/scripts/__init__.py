"""Starlark scripts as OpenPact serves them (`script_*`): `tools` holds them."""
