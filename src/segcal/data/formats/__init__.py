"""Image file formats."""
