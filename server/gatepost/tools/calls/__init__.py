"""Find the offer of a call, run the call, and clean its answer."""
