"""Evaluation: anybody's predictions."""
