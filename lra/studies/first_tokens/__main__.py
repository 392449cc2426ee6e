"""python -m lra.studies.first_tokens runs=runs/published/bf16: how much of a model the first tokens alone explain."""

if __name__ == "__main__":
    from lra.startup import begin

    # Before torch is imported.
    begin()

import sys
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from ...config.entry import main, name_positional
from ...config.options import Options
from ...config.schema import Root, Trust
from ...console import log
from ...data.token_baselines import beginnings
from ...evaluate.__main__ import find_result
from ...evaluate.fresh import ExampleHashes, FreshData, fresh_data, generator_experiment
from ...evaluate.record import FreshTest
from ...runs.reader import scan
from ...runs.run_dir import RunDir

# Numbers of first tokens that are compared.
NUM_TOKENS = (1, 2, 3)


class FirstTokensOptions(Options):
    conf: ClassVar[str] = "first_tokens"

    runs: Annotated[Path, Field(description="a folder of runs that lra evaluate has scored: runs=runs/<study>")]
    trust: Trust
    data: Root


@main(FirstTokensOptions)
def first_tokens(options: FirstTokensOptions) -> None:
    """Print, for each run with a fresh test, the share of its outcomes that the first tokens explain.

    Raises:
        ValueError: no run has a fresh test, or a result cannot be read.
    """
    records, _ = scan(options.runs)
    hashes = ExampleHashes()
    # The examples and their groups are the same for all runs of a task.
    by_digest: dict[str, tuple[np.ndarray, list[np.ndarray]]] = {}
    rows = []
    for folder in sorted(records):
        run = RunDir.read(folder, options.trust)
        result = find_result(run)
        if result is None:
            log(f"skipped: {folder} has no fresh test; lra evaluate runs={folder}")
            continue
        if result.metric != "accuracy":
            log(f"skipped: {folder} has no classes to answer with")
            continue
        if result.data not in by_digest:
            fresh = scored_examples(run, result, str(options.data.root), hashes)
            labels = fresh.data.splits["test"].labels.cpu().numpy()[fresh.index]
            groups = [group(fresh, num_tokens) for num_tokens in NUM_TOKENS]
            by_digest[result.data] = labels, groups
            # A model that is always right shows how far the share falls.
            always = np.ones(len(labels), bool)
            shares = [explained(always, labels, of_tokens) for of_tokens in groups]
            rows.append((result.task, "(the right answers)", None, 100.0, *shares))
        labels, groups = by_digest[result.data]
        correct = result.is_correct()
        shares = [explained(correct, labels, of_tokens) for of_tokens in groups]
        rows.append((result.task, result.label, result.seed, result.fresh_test, *shares))
    if not rows:
        raise ValueError(f"runs={options.runs} has no run with a fresh test; first: lra evaluate runs={options.runs}")

    columns = ["task", "mechanism", "seed", "fresh test"]
    columns += [f"first {num_tokens}" for num_tokens in NUM_TOKENS]
    table = pd.DataFrame(rows, columns=columns).astype({"seed": "Int64"})
    print(table.to_string(index=False, float_format="{:.2f}".format, na_rep=""))


def scored_examples(run: RunDir, result: FreshTest, root: str, hashes: ExampleHashes) -> FreshData:
    """Generate the examples of a fresh test again.

    Args:
        run: the run.
        result: its fresh test.
        root: folder of the data sets.
        hashes: hashes of the examples, kept between runs.

    Raises:
        ValueError: the generated examples differ from the examples of the result.
    """
    trained, fresh_experiment = generator_experiment(run, root, result.examples + result.seen)
    fresh = fresh_data(run, trained, fresh_experiment, hashes)
    if fresh.digest != result.data:
        raise ValueError(f"{run.path}: its fresh test has other examples than this version generates; score it again")
    return fresh


def group(fresh: FreshData, num_tokens: int) -> np.ndarray:
    """Number the examples (n,) by their first tokens: examples with the same beginning have the same number."""
    all_beginnings = beginnings(fresh.data, "test", num_tokens)  # (all fresh examples, tokens)
    tokens = all_beginnings[torch.from_numpy(fresh.index)]
    _, numbers = np.unique(tokens.numpy(), axis=0, return_inverse=True)
    return numbers.reshape(-1)


def explained(correct: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> float:
    """Compute the share of outcomes that a table with one answer per group has too, in percent.

    The answer of each group is the one that agrees with most outcomes. It is chosen on one half of the examples and
    counted on the other, in both directions, so that the share does not grow by chance with the number of groups.

    Args:
        correct: outcomes (n,) of a model, True where its answer is right.
        labels: right answers (n,).
        groups: group (n,) of each example.
    """
    answers = np.unique(labels)
    num_groups = int(groups.max()) + 1
    is_even = np.arange(len(labels)) % 2 == 0
    num_agreements = 0
    for chosen_on, counted_on in ((is_even, ~is_even), (~is_even, is_even)):
        # Outcomes that each answer would have in each group.
        agreements = np.zeros((len(answers), num_groups), int)
        for i, answer in enumerate(answers):
            agrees = (labels == answer) == correct
            agreements[i] = np.bincount(groups[chosen_on & agrees], minlength=num_groups)
        table = answers[agreements.argmax(0)]  # (num_groups,)

        predicted = table[groups] == labels
        agrees = predicted == correct
        num_agreements += int(agrees[counted_on].sum())
    return 100 * num_agreements / len(labels)


if __name__ == "__main__":
    sys.argv[1:] = name_positional(sys.argv[1:], "runs")
    first_tokens()
