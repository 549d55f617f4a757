"""Start an engine and drive it: one file an engine, plus what all of them share."""
