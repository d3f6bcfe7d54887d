"""Foundations without domain knowledge: arrays, checks, errors, files, locks, progress, signals."""
