"""Who is shut out, known at every replica within a second; nothing is asked for a call."""
