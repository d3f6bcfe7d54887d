"""Drawing: one style, one way to save a figure, one reliability diagram."""
