"""What to run: every experiment is a function of the composed configuration, named by ``_target_`` in its config."""
