"""DDTree for a stock SGLang. Importing this package imports no part of SGLang."""
