"""What stands between a number and belief in it: fingerprints, the losslessness ledger, degenerate output."""
