"""Statistics over tables of per-case values."""
