"""People decide about calls: the policy, the service, the stage and the front door."""
