"""`gatepost` whose `dev` drains for one second and ends a second later, whatever goes on."""

from gatepost import listen
from gatepost.cli import main
from gatepost.dev import composition

if __name__ == "__main__":
    listen.HARD_END_S = 1
    made = composition.Listen
    composition.Listen = lambda **settings: made(**{**settings, "drain_s": 1})
    main(prog_name="gatepost")
