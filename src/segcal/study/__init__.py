"""File formats that several commands share."""
