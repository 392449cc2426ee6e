"""The figures of the report, one file for each; ``lra.report.figures`` decides how they look."""
