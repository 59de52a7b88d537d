"""Reviews of scripts among the calls."""
