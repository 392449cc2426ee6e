"""One cell of the Long Range Arena, from data to table: python examples/arena_cell.py [mechanism] [budget] [seeds]

Trains a mechanism and the control without attention on ListOps, prints their test accuracies as a table, and plots the
validation accuracy of every seed. Budget ``paper`` takes hours, ``quick`` minutes, ``smoke`` seconds. Run the same
command to resume.
"""

if __name__ == "__main__":
    from lra.startup import limit_spinning

    # Set before torch is imported, because torch then reads how its threads wait.
    limit_spinning()

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.report.overview import score_table
from lra.results.summary import collect
from lra.runs import checkpoint
from lra.train.plan import make_plan
from lra.train.run import run_seeds

TASK = "listops"
CONTROL = "mean"


def train(mechanism: str, study: str, budget: str, num_seeds: int) -> None:
    """Train as ``lra train task=listops attn=<mechanism> budget=<budget>`` does; the first run generates the data."""
    overrides = [f"task={TASK}", f"attn={mechanism}", f"budget={budget}", f"study={study}"]
    experiment = compose(Experiment, [*overrides, f"seeds={list(range(num_seeds))}"])
    run_seeds(make_plan(experiment))


def main(mechanism: str = "cur_abs", budget: str = "quick", seeds: str = "2") -> str:
    study = f"cell-{budget}"
    for name in (mechanism, CONTROL):
        train(name, study, budget, int(seeds))

    # One row per mechanism with the records of its seeds.
    studies, _ = collect(Path("runs"), study)
    rows = [row for row in studies[study] if row.label in (mechanism, CONTROL)]
    table = score_table(rows).markdown()
    print(table)

    # Each run directory has the evaluations of one seed in metrics.csv.
    colours = {mechanism: "tab:blue", CONTROL: "tab:gray"}
    plt.figure(figsize=(5, 3), layout="constrained")
    for row in rows:
        for seed, seed_dir in enumerate(row.runs):
            evaluations = checkpoint.read_metrics(seed_dir)
            steps = [evaluation["step"] for evaluation in evaluations]
            scores = [evaluation["val"] for evaluation in evaluations]
            label = row.label if seed == 0 else None
            plt.plot(steps, scores, "o-", color=colours[row.label], markersize=3, label=label)
    plt.xlabel("step")
    plt.ylabel("validation accuracy (%)")
    plt.title(f"ListOps, budget {budget}, {seeds} seeds", fontsize=10)
    plt.legend()
    plt.savefig("arena_cell.png", dpi=150)
    return table


if __name__ == "__main__":
    main(*sys.argv[1:])
