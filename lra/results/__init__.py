"""Results of runs: their summaries, statistics, table cells and tables, the papers' values, and the look of figures."""
