"""Checks of the runs of a submission: each returns the reasons for which it cannot be accepted."""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hydra.errors import HydraException

from ..config import CONF, recipes
from ..config.compose import compose
from ..config.experiment import Experiment
from ..options import flatten
from ..results.paper_values import TASKS
from ..runs import config_file
from ..runs.config_file import SUITE
from ..runs.published import Published
from ..runs.reader import CONTROL
from .control import FEWEST_SEEDS, Groups, count_finished, is_control
from .record import LINK_PATTERN, LINK_RULE, NAME_PATTERN, NAME_RULE, Submission

# Budget of the trainings that the leaderboard compares.
BUDGET = "paper"
# Options of the task that affect no result.
IGNORED_OPTIONS = ("task.display",)
# Groups whose yaml decides results.
YAML_GROUPS = ("attn", "block", "experiment", "pretrain", "protocol", "task", "trainer")


def check_seeds(groups: Groups) -> list[str]:
    """At least three finished seeds of every mechanism, the control included."""
    reasons = []
    for (task, label), runs in groups.items():
        finished = count_finished(runs)
        if finished < FEWEST_SEEDS:
            remedy = f"train at least {FEWEST_SEEDS}, or move runs that you do not submit to another folder"
            reasons.append(f"{task} {label} has {finished} finished seeds; {remedy}")
    return reasons


def check_consecutive_seeds(groups: Groups) -> list[str]:
    """Seeds are consecutive numbers from 0, each once, since a failed seed may not be left out."""
    reasons = []
    for (task, label), runs in groups.items():
        seeds = sorted(run.record.seed for run in runs)
        # A gap in the numbers may be a seed that failed and was removed. The lowest gaps are named.
        missing = sorted(set(range(len(set(seeds)))) - set(seeds))
        if missing:
            numbers = ", ".join(map(str, missing))
            reasons.append(
                f"{task} {label} lacks seed {numbers} of 0 to {max(seeds)}; include every seed, even if it diverged"
            )
        if len(set(seeds)) < len(seeds):
            reasons.append(
                f"{task} {label} has two results of one seed; remove the run that does not belong to this label"
            )
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


def check_names(groups: Groups) -> list[str]:
    """A label that begins with the name of a mechanism of the suite belongs to the class of that mechanism."""
    reasons = []
    for (task, label), runs in groups.items():
        name = re.split("[-+]", label)[0]
        target = runs[0].choices.get("attn._target_")
        if name == "custom" or not (CONF / "attn" / f"{name}.yaml").is_file():
            continue
        suite_target = compose(Experiment, ["task=listops", f"attn={name}"]).to_dict()["attn"]["_target_"]
        if target != suite_target:
            reasons.append(
                f"{task} {label} has the name of attn={name} but the class {target}, so the leaderboard would show it "
                "as that mechanism; rename it and train again"
            )
    return reasons


def check_commands(groups: Groups) -> list[str]:
    """A command names yaml files of the suite only, since a rerun does not have the author's files."""
    reasons = []
    for (task, label), runs in groups.items():
        # The last choice of a group counts.
        chosen = {}
        for argument in shlex.split(runs[0].record.command or ""):
            group, _, name = argument.lstrip("+").partition("=")
            if group in YAML_GROUPS and name != "null":
                chosen[group] = name
        for group, name in chosen.items():
            if name in recipes.choices(group):
                continue
            remedy = "attn=custom attn._target_=<class>" if group == "attn" else "options on the command line"
            reasons.append(
                f"{task} {label} was trained by {group}={name}, which is not part of the suite, so it could not be "
                f"verified; train it again by {remedy}"
            )
    return reasons


def check_finished(groups: Groups) -> list[str]:
    """A finished run has taken all its steps."""
    reasons = []
    for (task, label), runs in groups.items():
        for run in runs:
            steps = run.choices["optim.steps"]
            if run.record.status == "done" and run.record.steps != steps:
                reasons.append(
                    f"{task} {label} seed {run.record.seed} has a record of {run.record.steps:,} steps and a "
                    f"configuration of {steps:,}; train it again"
                )
    return reasons


def check_statement(runs: Sequence[Published], submission: Submission) -> list[str]:
    """Author and hardware are given, the link is an address; all runs have the same known protocol and budget."""
    reasons = []
    if not NAME_PATTERN.fullmatch(submission.name):
        reasons.append(f"name={submission.name} is not allowed; {NAME_RULE}")
    if submission.link and not LINK_PATTERN.fullmatch(submission.link):
        reasons.append(f"link={submission.link} is not an address; {LINK_RULE}")
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
        stated = getattr(submission, name)
        if len(values) == 1 and stated != values[0]:
            reasons.append(f"the statement has {name}={stated}, the runs have {values[0]}; submit again")
    return reasons


def check_benchmark(groups: Groups) -> list[str]:
    """Every run trains a task of the Long Range Arena at budget=paper, with its options, steps and generated data."""
    reasons = []
    for task in sorted({task for task, _ in groups} - set(TASKS)):
        reasons.append(f"{task} is not a task of the Long Range Arena; its tasks are {', '.join(TASKS)}")
    for (task, label), runs in groups.items():
        budget = runs[0].record.budget
        # check_statement reports an unknown budget.
        if budget not in (BUDGET, "unknown"):
            reasons.append(f"{task} {label} was trained at budget={budget}, the leaderboard has budget={BUDGET}")
            continue
        if task in TASKS:
            benchmark = compose_benchmark(f"task={task}", f"attn={CONTROL}", *suite_protocol(runs[0]))
            reasons += check_data(runs[0], benchmark)
            reasons += check_training(runs[0], suite_configuration(runs[0]))
    return reasons


def suite_configuration(run: Published) -> Experiment:
    """Compose the suite's training of a run: the experiment of the suite that its command names, else its task.

    A custom experiment is ignored, since it does not define the benchmark.
    """
    arguments = shlex.split(run.record.command or "")
    names = [item.partition("=")[2] for item in arguments if item.lstrip("+").startswith("experiment=")]
    protocols = suite_protocol(run)
    if names and names[-1] in recipes.choices(recipes.GROUP):
        # Some experiments have a mechanism with options, others need attn=.
        for mechanism in ([], [f"attn={CONTROL}"]):
            with suppress(ValueError, HydraException):
                experiment = compose_benchmark(f"experiment={names[-1]}", *protocols, *mechanism)
                if experiment.task.name == run.record.task:
                    return experiment
    return compose_benchmark(f"task={run.record.task}", f"attn={CONTROL}", *protocols)


def suite_protocol(run: Published) -> list[str]:
    """The override of the suite's protocol of a run; empty for a custom protocol."""
    protocol = run.record.protocol
    return [f"protocol={protocol}"] if (CONF / "protocol" / f"{protocol}.yaml").is_file() else []


def compose_benchmark(*overrides: str) -> Experiment:
    """Compose an experiment at the budget of the leaderboard."""
    # The environment may name official files, which would replace the arguments of the generator.
    return compose(Experiment, [*overrides, f"budget={BUDGET}", "data.release=null"])


def check_data(run: Published, benchmark: Experiment) -> list[str]:
    """Generated data have the arguments of the benchmark, data from files the options of its source."""
    source = benchmark.data_source()
    if not source.generated:
        # The options of the source select and convert examples. The record says which files were read.
        suite_choices = flatten(benchmark.to_dict())
        data = {key: value for key, value in run.choices.items() if key.startswith("source.")}
        data.pop("source.sha256", None)
        official = {key: suite_choices.get(key) for key in data}
    elif "provenance.seed" in run.choices:
        # Generated data have a random seed.
        official = source.arguments
        data = {key: run.choices.get(f"provenance.{key}") for key in official}
    else:
        # Of generated tasks that were read from files, the record has the numbers of validation and test examples, and
        # the provenance the options that choose the files, such as the contour of Pathfinder.
        data = {"val": run.record.n_val, "test": run.record.n_test}
        for key in source.arguments:
            if f"provenance.{key}" in run.choices:
                data[key] = run.choices[f"provenance.{key}"]
        official = {key: source.arguments[key] for key in data}
    # Another class may make other data from the same arguments.
    official = official | {"source._target_": benchmark.to_dict()["source"]["_target_"]}
    data = data | {"source._target_": run.choices.get("source._target_")}
    difference = config_file.difference(official, data)
    title = f"{run.record.task} {run.record.label}"
    return [f"{title} was trained on data that differ from the benchmark's ({difference})"] if difference else []


def check_training(run: Published, benchmark: Experiment) -> list[str]:
    """A run has the options of the suite's task and protocol and takes at least as many examples."""
    title = f"{run.record.task} {run.record.label}"
    suite_choices = flatten(benchmark.to_dict())
    reasons = []
    # A custom protocol has another name, which the leaderboard shows.
    sections = ("task.", "protocol.") if suite_protocol(run) else ("task.",)
    options = {key: run.choices[key] for key in run.choices if key.startswith(sections) and key not in IGNORED_OPTIONS}
    suite_options = {key: suite_choices.get(key) for key in options}
    difference = config_file.difference(suite_options, options)
    if difference:
        reasons.append(f"{title} has options that differ from the suite's ({difference}); leave them out")
    examples = count_examples(run.choices)
    suite_examples = count_examples(suite_choices)
    if examples < suite_examples:
        reasons.append(
            f"{title} was trained on {examples:,} examples, the suite's configuration has {suite_examples:,}; train "
            "without another optim.steps or optim.batch"
        )
    return reasons


def count_examples(choices: dict[str, Any]) -> int:
    """Count the examples of a training, with its pretraining if both share one budget."""
    examples = choices["optim.steps"] * choices["optim.batch"]
    if choices.get("pretrain.matched"):
        examples += choices["pretrain.steps"] * choices["pretrain.batch"]
    return examples


def check_rates(groups: Groups, rates: Sequence[float]) -> list[str]:
    """The learning rates that were tried are given; they include the rate of each mechanism but the control."""
    if not rates:
        return ["the learning rates that were tried are not given; add 'rates=[0.0001,0.0003]'"]
    reasons = []
    for (task, label), runs in groups.items():
        rate = runs[0].choices.get("optim.lr")
        if not is_control(runs) and rate not in rates:
            reasons.append(f"{task} {label}: rates={list(rates)} lacks its rate {rate}; list every rate tried")
    return reasons


def check_commits(runs: Sequence[Published]) -> list[str]:
    """No run is marked as made by uncommitted code; a run of an unknown commit passes."""
    changed = sorted({run.record.git for run in runs if run.record.git and run.record.git.endswith("-dirty")})
    if changed:
        reason = "by code with uncommitted changes, or resumed by other code"
        return [f"runs were made {reason} ({', '.join(changed)}); commit and train again"]
    return []


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
