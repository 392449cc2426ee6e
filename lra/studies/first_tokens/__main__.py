"""python -m lra.studies.first_tokens runs=runs/published/bf16: the share of outcomes that first tokens explain."""

if __name__ == "__main__":
    from lra.config.manual import begin

    # Before torch is imported.
    begin("first_tokens")

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
from ...runs import published
from ...runs.reader import scan
from ...runs.run_dir import RunDir

# Numbers of first tokens that are compared.
NUM_TOKENS = (1, 2, 3)


class FirstTokensOptions(Options):
    """The options of conf/first_tokens.yaml."""

    conf: ClassVar[str] = "first_tokens"

    runs: Annotated[Path, Field(description="a folder of runs that lra evaluate has scored: runs=runs/<study>")]
    trust: Trust
    data: Root


@main(FirstTokensOptions)
def first_tokens(options: FirstTokensOptions) -> None:
    """Print, for each run with a fresh test, the percentage of its outcomes that the first tokens explain.

    An outcome is whether the model's answer to an example is right.

    Raises:
        ValueError: no run has a fresh test, or a result cannot be read.
    """
    records, unreadable = scan(options.runs)
    if not records:
        # A task, a label or a seed of a published study.
        records = {path: run.record for path, run in published.below(options.runs).items()}
    for line in unreadable:
        log(f"skipped: {line}")
    hashes = ExampleHashes()
    # Runs whose fresh tests have the same checksum and whose training data are the same share the examples.
    examples_by_data: dict[str, ScoredExamples] = {}
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
        # The most frequent answers belong to the training data.
        provenance = sorted((name, str(value)) for name, value in run.choices.items() if name.startswith("provenance."))
        key = f"{result.data} {provenance}"
        examples = examples_by_data.get(key)
        if examples is None:
            examples = scored_examples(run, result, str(options.data.root), hashes)
            examples_by_data[key] = examples
            rows += comparison_rows(result.task, examples)
        rows.append((result.task, result.label, result.seed, *shares(result.is_correct(), examples)))
    if not rows:
        raise ValueError(f"runs={options.runs} has no run with a fresh test; first: lra evaluate runs={options.runs}")

    columns = ["task", "mechanism", "seed", "fresh test", "shuffled"]
    columns += [f"first {num_tokens}" for num_tokens in NUM_TOKENS]
    table = pd.DataFrame(rows, columns=columns).astype({"seed": "Int64"})
    print(table.to_string(index=False, float_format="{:.2f}".format, na_rep=""))


class ScoredExamples(NamedTuple):
    """The examples of a fresh test.

    Args:
        labels: right answers (n,).
        groups: for each number of first tokens, the group (n,) of each example: examples with the same first tokens
            have the same number.
        baseline_outcomes: for each number of first tokens, whether the most frequent answer of the training examples
            with the same first tokens is right (n,).
    """

    labels: np.ndarray
    groups: list[np.ndarray]
    baseline_outcomes: list[np.ndarray]


def scored_examples(run: RunDir, result: FreshTest, root: str, hashes: ExampleHashes) -> ScoredExamples:
    """Generate the examples of a fresh test again, with their groups and baselines.

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
        # The first tokens of an example, of both texts for a pair.
        tokens = beginnings(fresh.data, "test", num_tokens).numpy()[fresh.index]  # (n,num_tokens or 2 num_tokens)
        _, numbers = np.unique(tokens, axis=0, return_inverse=True)
        groups.append(numbers.reshape(-1))

    # Answers from the training examples of the run.
    data = trained.task_data()
    data.setup()
    all_answers = table_answers(answer_tables(data), fresh.data, "test")
    baseline_outcomes = [answers.numpy()[fresh.index] == labels for answers in all_answers[: len(NUM_TOKENS)]]
    return ScoredExamples(labels, groups, baseline_outcomes)


def comparison_rows(task: str, examples: ScoredExamples) -> list[tuple]:
    """Make the rows of the table that do not belong to a run: training answers, and a model that is always right."""
    rows = []
    for num_tokens, correct in enumerate(examples.baseline_outcomes, start=1):
        name = f"(most frequent answer, first {num_tokens})"
        rows.append((task, name, None, *shares(correct, examples)))
    always_right = np.ones_like(examples.baseline_outcomes[0])
    rows.append((task, "(right answers)", None, *shares(always_right, examples)))
    return rows


def shares(correct: np.ndarray, examples: ScoredExamples) -> tuple[float, ...]:
    """Compute the numbers of a row of the table.

    Args:
        correct: outcomes (n,) of a model.
        examples: the examples.

    Returns:
        Percentages: the score; what the first token explains of the same outcomes in a random order; and what the first
        1, 2, ... tokens explain of the outcomes.
    """
    shuffled_outcomes = np.random.default_rng(0).permutation(correct)
    shuffled = explained(shuffled_outcomes, examples.labels, examples.groups[:1])
    by_tokens = []
    for num_tokens in NUM_TOKENS:
        groups = examples.groups[:num_tokens]
        by_tokens.append(explained(correct, examples.labels, groups))
    return 100 * float(correct.mean()), shuffled, *by_tokens


def explained(correct: np.ndarray, labels: np.ndarray, groupings: Sequence[np.ndarray]) -> float:
    """Compute the percentage of examples on which a table with one answer per group is right exactly when the model is.

    A group gets the answer with the most agreements, the examples on which it is right exactly when the model is. A tie
    is decided by the agreements in the larger group around it. By two-fold cross-validation, answers are chosen on one
    half of the examples and scored on the other, so that the percentage does not grow by chance with the number of
    groups.

    Args:
        correct: outcomes (n,) of a model, True where its answer is right.
        labels: right answers (n,).
        groupings: group (n,) of each example, from the coarsest grouping to the grouping of the table; each refines the
            one before.
    """
    num_examples = len(labels)
    answers = np.unique(labels)
    is_even = np.arange(num_examples) % 2 == 0
    num_agreements = 0
    for chosen_on, counted_on in ((is_even, ~is_even), (~is_even, is_even)):
        # Agreements of each answer in the group of each example. Dividing the agreements in a larger group by n leaves
        # less than 1, so they only break ties.
        agreements = np.zeros((len(answers), num_examples))
        for groups in groupings:
            agreements /= num_examples
            num_groups = int(groups.max()) + 1
            for i, answer in enumerate(answers):
                agrees = (labels == answer) == correct
                counts = np.bincount(groups[chosen_on & agrees], minlength=num_groups)  # (groups,)
                agreements[i] += counts[groups]
        is_right = answers[agreements.argmax(0)] == labels
        agrees = is_right == correct
        num_agreements += int(agrees[counted_on].sum())
    return 100 * num_agreements / num_examples


if __name__ == "__main__":
    # The folder of the runs may be given without runs=.
    sys.argv[1:] = name_positional(sys.argv[1:], "runs")
    first_tokens()
