"""`python -m gatepost` is the command `gatepost`."""

from gatepost.cli import main

main(prog_name="gatepost")
