"""One extension of each kind for segcal."""
