"""python -m lra.studies.first_tokens runs=runs/published/bf16: how much of a model the first tokens alone explain."""

if __name__ == "__main__":
    from lra.startup import begin

    # Before torch is imported.
    begin()

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from ...config.entry import main, name_positional
from ...config.options import Options
from ...config.schema import Root, Trust
from ...console import log
from ...data.token_baselines import answer_tables, beginnings, table_answers
from ...evaluate.__main__ import find_result
from ...evaluate.fresh import ExampleHashes, fresh_data, restore_experiments
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
    records, unreadable = scan(options.runs)
    for line in unreadable:
        log(f"skipped: {line}")
    hashes = ExampleHashes()
    # The examples are the same for all runs of a task.
    by_digest: dict[str, Examples] = {}
    rows = []
    for folder in sorted(records):
        if records[folder].status != "done":
            log(f"skipped: {folder} diverged and has no fresh test")
            continue
        run = RunDir.read(folder, options.trust)
        result = find_result(run)
        if result is None:
            log(f"skipped: {folder} has no fresh test; lra evaluate runs={folder}")
            continue
        if result.metric != "accuracy":
            log(f"skipped: {folder} has no classes to answer with")
            continue
        examples = by_digest.get(result.data)
        if examples is None:
            examples = scored_examples(run, result, str(options.data.root), hashes)
            by_digest[result.data] = examples
            # For comparison: the answers of the training set, and a model that is always right.
            for num_tokens, correct in enumerate(examples.baselines, start=1):
                name = f"(most frequent answer, first {num_tokens})"
                rows.append((result.task, name, None, *shares(correct, examples)))
            always = np.ones_like(examples.baselines[0])
            rows.append((result.task, "(right answers)", None, *shares(always, examples)))
        rows.append((result.task, result.label, result.seed, *shares(result.is_correct(), examples)))
    if not rows:
        raise ValueError(f"runs={options.runs} has no run with a fresh test; first: lra evaluate runs={options.runs}")

    columns = ["task", "mechanism", "seed", "fresh test", "chance"]
    columns += [f"first {num_tokens}" for num_tokens in NUM_TOKENS]
    table = pd.DataFrame(rows, columns=columns).astype({"seed": "Int64"})
    print(table.to_string(index=False, float_format="{:.2f}".format, na_rep=""))


class Examples(NamedTuple):
    """The examples of a fresh test.

    Args:
        labels: right answers (n,).
        groups: for each number of first tokens, the group (n,) of each example: its beginning, as a number.
        baselines: for each number of first tokens, whether the most frequent training answer is right (n,).
    """

    labels: np.ndarray
    groups: list[np.ndarray]
    baselines: list[np.ndarray]


def scored_examples(run: RunDir, result: FreshTest, root: str, hashes: ExampleHashes) -> Examples:
    """Generate the examples of a fresh test again.

    Args:
        run: the run.
        result: its fresh test.
        root: folder of the data sets.
        hashes: hashes of the examples, kept between runs.

    Raises:
        ValueError: the generated examples differ from the examples of the result.
    """
    trained, fresh_experiment = restore_experiments(run, root, result.examples + result.seen)
    fresh = fresh_data(run, trained, fresh_experiment, hashes)
    if fresh.digest != result.data:
        raise ValueError(f"{run.path}: its fresh test has other examples than this version generates; score it again")
    labels = fresh.data.splits["test"].labels.cpu().numpy()[fresh.index]

    # Examples with the same beginning are a group.
    groups = []
    for num_tokens in NUM_TOKENS:
        tokens = beginnings(fresh.data, "test", num_tokens).numpy()[fresh.index]  # (n,num_tokens)
        _, numbers = np.unique(tokens, axis=0, return_inverse=True)
        groups.append(numbers.reshape(-1))

    data = trained.task_data()
    data.setup()
    all_answers = table_answers(answer_tables(data), fresh.data, "test")
    baselines = [answers.numpy()[fresh.index] == labels for answers in all_answers[: len(NUM_TOKENS)]]
    return Examples(labels, groups, baselines)


def shares(correct: np.ndarray, examples: Examples) -> tuple[float, ...]:
    """Compute the score, the share that is explained by chance, and the share that the first tokens explain.

    Chance is the share of the same outcomes in a random order.
    """
    shuffled = np.random.default_rng(0).permutation(correct)
    chance = explained(shuffled, examples.labels, examples.groups[:1])
    by_tokens = []
    for num_tokens in NUM_TOKENS:
        groups = examples.groups[:num_tokens]
        by_tokens.append(explained(correct, examples.labels, groups))
    return 100 * float(correct.mean()), chance, *by_tokens


def explained(correct: np.ndarray, labels: np.ndarray, groupings: Sequence[np.ndarray]) -> float:
    """Compute the percentage of examples on which a table with one answer per group is right exactly when the model is.

    The answer of each group is the one that agrees with most outcomes; of equal ones, the one that agrees with most
    outcomes of the larger group around it. It is chosen on one half of the examples and counted on the other, in both
    directions, so that the share does not grow by chance with the number of groups.

    Args:
        correct: outcomes (n,) of a model, True where its answer is right.
        labels: right answers (n,).
        groupings: group (n,) of each example, from the largest groups to the groups of the table; each is a part of a
            group before.
    """
    num_examples = len(labels)
    answers = np.unique(labels)
    is_even = np.arange(num_examples) % 2 == 0
    num_agreements = 0
    for chosen_on, counted_on in ((is_even, ~is_even), (~is_even, is_even)):
        # Votes of an example's groups for each answer; a larger group only decides between equal numbers.
        votes = np.zeros((len(answers), num_examples))
        for groups in groupings:
            votes /= num_examples
            num_groups = int(groups.max()) + 1
            for i, answer in enumerate(answers):
                agrees = (labels == answer) == correct
                votes[i] += np.bincount(groups[chosen_on & agrees], minlength=num_groups)[groups]
        predicted = answers[votes.argmax(0)] == labels
        agrees = predicted == correct
        num_agreements += int(agrees[counted_on].sum())
    return 100 * num_agreements / num_examples


if __name__ == "__main__":
    sys.argv[1:] = name_positional(sys.argv[1:], "runs")
    first_tokens()
