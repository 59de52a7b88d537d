"""Hold calls that need a person's approval, record the decisions, and let each count once."""
