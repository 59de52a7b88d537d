"""People decide about calls: the policy, the desk, the stage and the front door."""
