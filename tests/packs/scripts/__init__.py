"""The pack of Starlark scripts."""
