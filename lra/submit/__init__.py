"""Submissions of results by anyone: checks, one folder for a pull request, and verification by a rerun."""
