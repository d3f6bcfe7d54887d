"""Short sentences on the most important results, with numbers and where they were measured."""
