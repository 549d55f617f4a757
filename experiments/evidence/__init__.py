"""What the evidence programs of all engines share: engines as child processes, clocks, ledgers, tests of a law."""
