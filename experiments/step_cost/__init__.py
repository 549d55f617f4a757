"""``experiment=step_cost``: what a step costs on an engine, whatever is accepted; fitted and kept in a cost file."""
