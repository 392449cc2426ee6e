"""Long Range Arena: tasks, attention mechanisms, training and tables. Entry points: python -m lra.train, lra.report."""

from .startup import end_quietly, wait_briefly

wait_briefly()
end_quietly()
