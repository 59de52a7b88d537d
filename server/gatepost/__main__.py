"""`python -m gatepost` is the command `gatepost`."""

from gatepost.cli.main import main

main(prog_name="gatepost")
