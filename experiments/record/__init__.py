"""``experiment=record``: what the drafter offers at every place where a round may begin, stored for exact replay."""
