"""python -m lra.laws attn=<name>: run the checks that every mechanism passes."""

if __name__ == "__main__":
    from lra.startup import begin

    # Before torch is imported.
    begin()

import sys
from typing import ClassVar

from ..config.entry import main
from ..config.experiment import Experiment
from .laws import LAWS, gradient_is_the_derivative, in_float32


class Lawful(Experiment):
    """An experiment of small sizes, whose task is not trained."""

    conf: ClassVar[str] = "laws"


@main(Lawful)
def laws(experiment: Lawful) -> None:
    """Print the result of every check; the exit status is 1 if one fails.

    Raises:
        ValueError: the mechanism cannot run on this machine.
    """
    reason = experiment.unavailable
    if reason:
        raise ValueError(reason)

    broken = []
    for law in LAWS:
        name = law.__name__.replace("_", " ")
        explanation = law.__doc__.splitlines()[0]
        if law is gradient_is_the_derivative and in_float32(experiment):
            print(f"  -       {name}: skipped, the difference quotient drowns in the rounding of float32")
            continue
        # A custom mechanism may raise anything, which counts as a failed check.
        try:
            holds = law(experiment)
        except Exception as error:
            holds = False
            first_line = str(error).partition("\n")[0]
            explanation = f"{type(error).__name__}: {first_line}"
        if holds:
            print(f"  holds   {name}")
        else:
            broken.append(name)
            print(f"  BROKEN  {name}: {explanation}")

    if broken:
        sys.exit(f"lra: {experiment.label} breaks {len(broken)} of {len(LAWS)} laws: {', '.join(broken)}")
    print(f"{experiment.label} keeps all laws")


if __name__ == "__main__":
    laws()
