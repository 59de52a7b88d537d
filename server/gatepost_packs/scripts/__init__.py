"""Run Starlark scripts with the interface of OpenPact (`script_*`): `tools` has the tools."""
