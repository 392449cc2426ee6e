"""Scores of finished runs on fresh examples of generated tasks, and comparisons of mechanisms on these examples."""
