"""Data sets by name: one module each."""
