"""Long Range Arena: tasks, attention mechanisms, training and tables. Entry points: python -m lra.train, lra.report."""
