"""``experiment=replay``: any list of tree shapes computed from a recording, without an engine."""
