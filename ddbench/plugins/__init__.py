"""DDTree for stock engines, through the doors that they leave open. Each sub-package is loaded by its engine alone."""
