"""``experiment=pro6000_validate``: what a GPU does, held against what was predicted of it beforehand, line by line."""
