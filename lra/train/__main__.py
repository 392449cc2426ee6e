"""python -m lra.train task=listops attn=cur_abs: train and score every seed of one configuration."""

if __name__ == "__main__":
    from lra.config.manual import begin

    begin("train")  # before torch is imported

from ..config.entry import main
from ..config.experiment import Experiment
from ..startup import end_on_interrupt, interruptible


@main(Experiment)
def train(experiment: Experiment) -> None:
    """Train each seed, see ``run.run``. Raises ValueError if the configuration cannot run."""
    # Import Lightning, which takes seconds, only after the options are checked. Ctrl-C during the import ends the
    # process at once, because imported code may swallow a KeyboardInterrupt.
    end_on_interrupt()
    from .run import run

    interruptible()
    run(experiment)


if __name__ == "__main__":
    train()
