"""Checks of a submission: each returns the reasons for which it cannot be accepted."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..checks.__main__ import SmallExperiment, applicable_checks, failure, title
from ..checks.properties import LENGTH
from ..config.compose import compose
from ..config.experiment import Experiment
from ..evaluate.restore import configuration
from ..results.published import TASKS
from ..runs import config_file
from ..runs.config_file import SUITE, check_trust
from ..runs.published import Published
from ..runs.reader import CONTROL
from ..runs.run_dir import RunDir, Trust
from .record import Submission

FEWEST_SEEDS = 3
# Budget of the trainings that the leaderboard compares.
BUDGET = "paper"
# Choices in which a mechanism and its control may differ.
OF_MECHANISM = ("attn.", "optim.lr", "optim.own_lr_max")
# Options of attn that are a number of tokens of the sequence.
TOKEN_BUDGETS = ("count", "landmarks", "window", "global_tokens")
# Options that decide how many examples a training takes.
LENGTH_OPTIONS = ("optim.steps=", "optim.batch=")

Groups = dict[tuple[str, str], list[Published]]


def refusals(runs: Sequence[Published], submission: Submission, folder: Path, trust: Trust = None) -> list[str]:
    """List every reason for which a submission cannot be accepted; empty if it can.

    Args:
        runs: all runs of the submission.
        submission: its statement.
        folder: folder that holds the source of a custom class.
        trust: modules of custom classes.
    """
    # Checks of the records, which need no model.
    groups = by_mechanism(runs)
    reasons = []
    reasons += check_seeds(groups)
    reasons += check_failed_seeds(groups)
    reasons += check_one_configuration(groups)
    reasons += check_control(groups)
    reasons += check_statement(runs, submission)
    reasons += check_benchmark(groups)
    reasons += check_rates(groups, submission.rates)
    reasons += check_commits(runs)
    source_reasons = check_source(groups, submission.source, folder)
    reasons += source_reasons
    if not source_reasons:
        # Without the source of its class a mechanism is not built.
        reasons += check_mechanisms(groups, folder, trust)
    return reasons


def by_mechanism(runs: Iterable[Published]) -> Groups:
    """Group runs by task and label."""
    groups: Groups = defaultdict(list)
    for run in runs:
        groups[run.record.task, run.record.label].append(run)
    return dict(sorted(groups.items()))


def check_seeds(groups: Groups) -> list[str]:
    """At least three finished seeds of every mechanism, the control included."""
    reasons = []
    for (task, label), runs in groups.items():
        finished = sum(run.record.status == "done" for run in runs)
        if finished < FEWEST_SEEDS:
            reasons.append(f"{task} {label} has {finished} finished seeds; train at least {FEWEST_SEEDS}")
    return reasons


def check_failed_seeds(groups: Groups) -> list[str]:
    """Seeds are consecutive numbers from 0, since a failed seed may not be left out."""
    reasons = []
    for (task, label), runs in groups.items():
        seeds = sorted(run.record.seed for run in runs)
        # A gap in the numbers may be a seed that failed and was removed.
        missing = sorted(set(range(max(seeds) + 1)) - set(seeds))
        if missing:
            numbers = ", ".join(map(str, missing))
            reasons.append(
                f"{task} {label} lacks seed {numbers} of 0 to {max(seeds)}; include every seed, also one that diverged"
            )
        if len(set(seeds)) < len(seeds):
            reasons.append(f"{task} {label} has two results of one seed; remove the run that does not belong to it")
    return reasons


def check_one_configuration(groups: Groups) -> list[str]:
    """All seeds of a mechanism have the same configuration."""
    reasons = []
    for (task, label), runs in groups.items():
        for run in runs[1:]:
            difference = config_file.difference(runs[0].choices, run.choices)
            if difference:
                reasons.append(
                    f"{task} {label}: seeds {runs[0].record.seed} and {run.record.seed} have different configurations "
                    f"({difference}); train all seeds with the same command"
                )
    return reasons


def check_control(groups: Groups) -> list[str]:
    """Every task has the control, trained with the same settings."""
    reasons = []
    for (task, label), runs in groups.items():
        if label == CONTROL:
            continue
        control = groups.get((task, CONTROL))
        if control is None:
            reasons.append(f"{task} has no control; train attn={CONTROL} with the same settings, three seeds")
            continue
        # The control shows what the same training gives without attention.
        difference = config_file.difference(shared_choices(control[0].choices), shared_choices(runs[0].choices))
        if difference:
            reasons.append(
                f"{task} {label} and its control have different settings ({difference}); train attn={CONTROL} with the "
                "same settings"
            )
    if not any(label != CONTROL for _, label in groups):
        reasons.append("there is no mechanism, only the control")
    return reasons


def shared_choices(choices: dict[str, Any]) -> dict[str, Any]:
    """Choices in which a mechanism and its control have to agree."""
    shared = {key: value for key, value in choices.items() if not key.startswith(OF_MECHANISM)}
    # data.pad=auto removes masked pixels if the mechanism allows it. Outputs are equal with and without them.
    if shared.get("data.pad") == "compact":
        shared["data.pad"] = "batch"
    return shared


def check_statement(runs: Sequence[Published], submission: Submission) -> list[str]:
    """Author and hardware are given; protocol and budget are known and the same for all runs."""
    reasons = []
    # The author writes these.
    for name in ("author", "hardware"):
        if not getattr(submission, name).strip():
            reasons.append(f"{name} is not given; add {name}='...'")
    # The runs have these.
    for name in ("protocol", "budget"):
        values = sorted({getattr(run.record, name) for run in runs})
        if len(values) > 1:
            reasons.append(f"the runs have several values of {name} ({', '.join(values)}); submit each on its own")
        if "unknown" in values:
            reasons.append(f"the {name} of a run is not known; train with {name}=<name>")
    return reasons


def check_benchmark(groups: Groups) -> list[str]:
    """Every run trains a task of the Long Range Arena, at the papers' budget and, if it is generated, on its data."""
    reasons = []
    for task in sorted({task for task, _ in groups} - set(TASKS)):
        reasons.append(f"{task} is not a task of the Long Range Arena; its tasks are {', '.join(TASKS)}")
    for (task, label), runs in groups.items():
        budget = runs[0].record.budget
        if budget not in (BUDGET, "unknown"):
            reasons.append(f"{task} {label} was trained at budget={budget}, the leaderboard has budget={BUDGET}")
            continue
        if task in TASKS:
            benchmark = compose(Experiment, [f"task={task}", f"attn={CONTROL}", f"budget={BUDGET}"])
            reasons += check_data(runs[0], benchmark)
            reasons += check_length(runs[0], benchmark)
    return reasons


def check_data(run: Published, benchmark: Experiment) -> list[str]:
    """Data of a generated task have the arguments of the benchmark; files of it have as many examples."""
    source = benchmark.data_source()
    if not source.generated:
        return []
    official = source.arguments
    # Only generated data have a random seed; of files, the record has the numbers of validation and test examples.
    if "provenance.seed" in run.choices:
        data = {key: run.choices.get(f"provenance.{key}") for key in official}
    else:
        official = {key: official[key] for key in ("val", "test")}
        data = {"val": run.record.n_val, "test": run.record.n_test}
    difference = config_file.difference(official, data)
    title = f"{run.record.task} {run.record.label}"
    return [f"{title} was trained on other data than the benchmark's ({difference})"] if difference else []


def check_length(run: Published, benchmark: Experiment) -> list[str]:
    """The command does not shorten the training below the papers' budget; experiments of the suite may be shorter."""
    words = shlex.split(run.record.command or "")
    changes = [word for word in words if word.lstrip("+").startswith(LENGTH_OPTIONS)]
    examples = run.choices["optim.steps"] * run.choices["optim.batch"]
    budget = benchmark.optim.steps * benchmark.optim.batch
    if not changes or examples >= budget:
        return []
    options = " ".join(changes)
    title = f"{run.record.task} {run.record.label}"
    return [f"{title} was trained on {examples:,} examples, budget={BUDGET} has {budget:,}; train without {options}"]


def check_rates(groups: Groups, rates: Sequence[float]) -> list[str]:
    """The learning rates that were tried are given; they include the one of each mechanism, the control excepted."""
    if not rates:
        return ["the learning rates that were tried are not given; add 'rates=[0.0001,0.0003]'"]
    reasons = []
    for (task, label), runs in groups.items():
        rate = runs[0].choices.get("optim.lr")
        if label != CONTROL and rate not in rates:
            reasons.append(f"{task} {label} was trained at {rate}, which is not among rates={list(rates)}; name all")
    return reasons


def check_commits(runs: Sequence[Published]) -> list[str]:
    """No run is marked as made by uncommitted code; a run of an unknown commit passes."""
    changed = sorted({run.record.git for run in runs if run.record.git and run.record.git.endswith("-dirty")})
    if changed:
        return [f"runs were made by code with uncommitted changes ({', '.join(changed)}); commit and train again"]
    return []


def check_source(groups: Groups, source: str, folder: Path) -> list[str]:
    """The source of every custom class is attached."""
    reasons = []
    # One file per submission; its name is the name of the module.
    for target in custom_targets(groups):
        module, _, name = target.rpartition(".")
        file_name = f"{module}.py"
        if source != file_name or not (folder / file_name).is_file():
            reasons.append(f"the source of {target} is not attached; add source={file_name}")
        elif f"class {name}" not in (folder / file_name).read_text(encoding="utf-8"):
            reasons.append(f"{file_name} does not define {name}; attach the file with class {name}")
    return reasons


def custom_targets(groups: Groups) -> list[str]:
    """Dotted names of classes outside the suite that configurations name."""
    targets = set()
    for runs in groups.values():
        for key, value in runs[0].choices.items():
            # Classes of the suite are in the repository.
            is_custom = key.endswith("_target_") and str(value).partition(".")[0] not in SUITE
            if is_custom:
                targets.add(str(value))
    return sorted(targets)


def check_mechanisms(groups: Groups, folder: Path, trust: Trust = None) -> list[str]:
    """Every mechanism passes the checks of all mechanisms, with its options, on sequences of 128 tokens.

    Args:
        groups: runs by task and label.
        folder: folder that holds the source of a custom class.
        trust: modules of custom classes.
    """
    reasons = []
    checked = set()
    for (task, label), runs in groups.items():
        # One label may have other options on another task.
        options = {key: str(value) for key, value in runs[0].choices.items() if key.startswith(("attn.", "block."))}
        identity = (label, *sorted(options.items()))
        if identity in checked:
            continue
        checked.add(identity)
        # The run may be a line of a table, so its path is made up; only its configuration is used.
        path = folder.absolute() / "study" / task / label / f"seed-{runs[0].record.seed}"
        run = RunDir(path=path, choices=runs[0].choices, seed=runs[0].record.seed, record=runs[0].record)
        try:
            check_trust(run.choices, path, trust)
            experiment = configuration(run, "data")
            failed = failed_checks(experiment)
        except ValueError as error:
            reasons.append(f"{task} {label} cannot be built: {error}")
            continue
        if failed:
            num_checks = len(applicable_checks(experiment))
            reasons.append(f"{label} fails {len(failed)} of {num_checks} checks: {', '.join(failed)}")
    return reasons


def failed_checks(experiment: Experiment) -> list[str]:
    """List the checks that the mechanism of an experiment fails, with their errors, see ``python -m lra.checks``."""
    # The sequences of the checks are shorter than the ones of the task, and no token budget may exceed the length.
    attn = experiment.attn
    for option in TOKEN_BUDGETS:
        if (attn.get(option) or 0) > LENGTH:
            attn = attn.replace(**{option: LENGTH})
    small = compose(SmallExperiment, ["attn=mean"]).replace(attn=attn, block=experiment.block)
    failed = []
    for check in applicable_checks(small):
        problem = failure(check, small)
        if problem is not None:
            failed.append(f"{title(check)} ({problem})")
    return failed
