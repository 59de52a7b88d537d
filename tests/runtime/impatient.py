"""`gatepost` whose `dev` drains for one second and ends three seconds later, whatever goes on."""

from gatepost import serve
from gatepost.cli.main import main
from gatepost.dev import composition
from gatepost.runtime import server
from gatepost.tools.interruption import ToolDeadline

if __name__ == "__main__":
    server.HARD_END_S = 3
    serve.END_S = 1.0
    ToolDeadline.abandon_s = 0.3
    made = composition.Listen
    composition.Listen = lambda **settings: made(**{**settings, "drain_s": 1})
    main(prog_name="gatepost")
