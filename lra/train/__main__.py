"""python -m lra.train task=listops attn=cur_abs: train and score every seed of one configuration."""

if __name__ == "__main__":
    from lra.config.manual import begin

    begin("train")  # before torch is imported

from ..config.entry import main
from ..config.experiment import Experiment


@main(Experiment)
def train(experiment: Experiment) -> None:
    """Train each seed, see ``run.run``. Raises ValueError if the configuration cannot run."""
    # Lightning takes seconds to import. A mistake in the options is reported before.
    from .run import run

    run(experiment)


if __name__ == "__main__":
    train()
