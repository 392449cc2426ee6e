"""One mechanism on one task of sweep=board, and its runs."""

from dataclasses import dataclass, replace
from typing import Any

from ..config.experiment import Experiment
from ..config.quoting import override
from ..sweep.plan import PlannedRun


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One mechanism on one task.

    Args:
        mechanism: name of conf/attn with options of lra.train.
        experiment: name of conf/experiment.
        run: seed of phase two without a rate.
        choices: choices of the run, see ``Experiment.choices``.
        options: options of the run.
    """

    mechanism: str
    experiment: str
    run: PlannedRun
    choices: dict[str, Any]
    options: Experiment

    def at(self, rate: float, seed: int, *, search: bool) -> PlannedRun:
        """The run of a seed at a learning rate, in phase one if ``search``, else in phase two."""
        home = self.run.folder.parents[2]
        label = self.run.label
        keys = label_keys(self.mechanism)
        # Runs of phase one differ in their rates, so the rate is part of the label.
        if search:
            home = home.with_name(f"{home.name}-rates")
            label = f"{label}-optim.lr={rate}"
            keys = (*keys, "optim.lr")
        # These follow the overrides of the mechanism.
        overrides = (
            override("study", home.name),
            f"label_keys=[{','.join(keys)}]",
            f"optim.lr={rate}",
            f"seeds=[{seed}]",
        )
        return replace(
            self.run,
            overrides=(*self.run.overrides, *overrides),
            label=label,
            seed=seed,
            folder=home / self.run.task / label / f"seed-{seed}",
        )


def label_keys(mechanism: str) -> tuple[str, ...]:
    """List the keys that a label shows: options outside attn, unless the group that they belong to is shown.

    Args:
        mechanism: name of conf/attn with options of lra.train: ``psf block=glu block.norm=layer`` gives ("block",).
    """
    keys = [option.lstrip("+~").split("=")[0] for option in mechanism.split()[1:]]
    # A key below a shown group is part of that group.
    groups = ("attn", *keys)
    listed_keys = []
    for key in keys:
        belongs_to_group = any(key.startswith(f"{group}.") for group in groups)
        if key != "attn" and not belongs_to_group:
            listed_keys.append(key)
    return tuple(listed_keys)
