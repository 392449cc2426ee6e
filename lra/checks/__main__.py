"""python -m lra.checks attn=<name>: run the checks that every mechanism passes."""

if __name__ == "__main__":
    from lra.config.manual import begin
    from lra.startup import interpret_kernels

    # Before torch is imported.
    begin("checks")
    # The checks compute on the CPU.
    interpret_kernels()

from typing import ClassVar

from ..attention.base import Attention, Mixer
from ..config.compose import compose
from ..config.entry import main
from ..config.experiment import Experiment
from .properties import CHECKS, LENGTH, Check, gradient_is_the_derivative, in_float32

# Options of attn that are a number of tokens, at most the length of the sequence.
LIMITED_BY_LENGTH = ("count", "landmarks", "window", "global_tokens")


class SmallExperiment(Experiment):
    """An experiment of small sizes: the checks build its block and train nothing."""

    conf: ClassVar[str] = "checks"


@main(SmallExperiment)
def check(experiment: SmallExperiment) -> None:
    """Print the result of every check; the exit status is 1 if one fails.

    Raises:
        ValueError: the mechanism cannot run on this machine.
    """
    reason = experiment.unavailable
    if reason:
        raise ValueError(reason)

    applicable = applicable_checks(experiment)
    failed = []
    for mechanism_check in CHECKS:
        name = title(mechanism_check)
        if mechanism_check not in applicable:
            print(f"  -       {name}: skipped, float32 is too coarse for the difference quotient")
            continue
        problem = failure(mechanism_check, experiment)
        if problem is None:
            print(f"  passes  {name}")
        else:
            failed.append(name)
            print(f"  FAILS   {name}: {problem}")

    if failed:
        names = ", ".join(failed)
        raise ValueError(f"{experiment.label} fails {len(failed)} of {len(applicable)} checks: {names}")
    num_skipped = len(CHECKS) - len(applicable)
    if num_skipped:
        print(f"{experiment.label} passes {len(applicable)} of {len(CHECKS)} checks, {num_skipped} skipped")
    else:
        print(f"{experiment.label} passes all checks")


def applicable_checks(experiment: Experiment) -> list[Check]:
    """List the checks that apply to a mechanism: float32 is too coarse for the difference quotient."""
    if in_float32(experiment):
        return [mechanism_check for mechanism_check in CHECKS if mechanism_check is not gradient_is_the_derivative]
    return list(CHECKS)


def title(mechanism_check: Check) -> str:
    """Return the name of a check, with blanks between its words."""
    return mechanism_check.__name__.replace("_", " ")


def failure(mechanism_check: Check, experiment: Experiment) -> str | None:
    """Run a check; return None if it passes, else its error or the first line of its docstring."""
    # A custom mechanism may raise anything, which counts as a failed check.
    try:
        passes = mechanism_check(experiment)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        return f"{type(error).__name__}: {first_line}"
    if passes:
        return None
    docstring = mechanism_check.__doc__ or ""
    return docstring.partition("\n")[0]


def failed_checks(experiment: Experiment) -> list[str]:
    """List the checks that the mechanism of an experiment fails, with their errors."""
    # The checks have sequences of LENGTH tokens, which these options may not exceed.
    attn = experiment.attn
    for option in LIMITED_BY_LENGTH:
        if (attn.get(option) or 0) > LENGTH:
            attn = attn.replace(**{option: LENGTH})
    small = compose(SmallExperiment, ["attn=mean"]).replace(attn=attn, block=experiment.block)
    is_class = isinstance(attn.function, type)
    if is_class and not issubclass(attn.function, Attention | Mixer):
        # A whole layer may have widths that must be multiples of the heads, such as DBA's.
        heads = experiment.model.heads
        small = small.replace(model=small.model.replace(heads=heads, dim=8 * heads))
    failed = []
    for mechanism_check in applicable_checks(small):
        problem = failure(mechanism_check, small)
        if problem is not None:
            failed.append(f"{title(mechanism_check)} ({problem})")
    return failed


if __name__ == "__main__":
    check()
