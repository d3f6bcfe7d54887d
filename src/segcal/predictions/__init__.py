"""Softmax files of any origin."""
