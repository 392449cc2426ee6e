"""The figures of the report, one file for each; ``lra.results.figures`` decides how they look."""
