"""python -m lra.laws attn=<name>: whether a mechanism keeps the laws of all mechanisms."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

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
    """Print a line for each law; the exit status is 1 if one is broken.

    Raises:
        ValueError: the mechanism cannot run here.
    """
    if reason := experiment.unavailable:
        raise ValueError(reason)
    broken = []
    for law in LAWS:
        name, why = law.__name__.replace("_", " "), law.__doc__.splitlines()[0]
        if law is gradient_is_the_derivative and in_float32(experiment):
            print(f"  -       {name}: not run, its step is lost in the rounding of float32")
            continue
        try:
            holds = law(experiment)
        except Exception as error:  # of the mechanism, which may be any code
            holds, why = False, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if not holds:
            broken.append(name)
        print(f"  holds   {name}" if holds else f"  BROKEN  {name}: {why}")
    if broken:
        sys.exit(f"lra: {experiment.label} breaks {len(broken)} of {len(LAWS)} laws: {', '.join(broken)}")
    print(f"{experiment.label} keeps all laws")


if __name__ == "__main__":
    laws()
