"""What the SGLang runner adds to the parts that all engines share."""
