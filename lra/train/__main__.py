"""python -m lra.train task=listops attn=cur_abs: every seed of one configuration, skipped, resumed or run."""

from ..config.entry import main
from ..config.experiment import Experiment
from ..console import log
from ..runs import checkpoint, identity, record
from ..runs.folder import claim, writing
from . import data_check, diagnostics, distributed
from .fit import fit
from .plan import Plan, SeedPlan, resolve


@main(Experiment)
def train(experiment: Experiment) -> None:
    """Run each seed in runs/<study>/<task>/<label>/seed-<k>; raises ValueError for a configuration that cannot run."""
    if reason := experiment.unavailable:
        if not experiment.multirun:
            raise ValueError(reason)
        log(f"skipped: {reason}")
        return
    plan = resolve(experiment)
    if plan.processes.to_launch:
        distributed.launch(plan.processes.count, experiment.command_overrides)
        return
    with distributed.group(plan.processes):
        run_seeds(plan)


def run_seeds(plan: Plan) -> None:
    """Set up the data, check that it fits the model, and run one seed after the other."""
    experiment, data = plan.experiment, plan.data
    distributed.on_rank_zero(data.setup)  # generated data is made once
    data.setup()
    data_check.check(experiment, data)
    o, number = experiment.optim, f"{len(experiment.seeds)} seed{'s' if len(experiment.seeds) > 1 else ''}"
    log(
        f"{plan.title}: {number} of {o.steps:,} steps of {o.batch}, "
        f"dev ({len(data.splits['val']):,} examples) every {o.eval_every}; {plan.params:,} parameters; "
        f"about {max(1, round(checkpoint.disk_bytes(plan.params) / 2**20))} MB a seed in {plan.home}"
    )
    if plan.widened:
        log(f"{plan.title}: this processor has no AMX, hence trainer.precision=fp32; trainer.force_bf16=true for bf16")
    if experiment.data.pad == "compact" and data.pad != "compact":
        log(f"{plan.title}: rows keep their padding, because the result depends on where it is: data.pad=batch")
    choices = experiment.choices(data.source.provenance)
    for seed in experiment.seeds:
        run_seed(plan, int(seed), choices)


def run_seed(plan: Plan, seed: int, choices: dict) -> None:
    """Run one seed, unless its folder holds its record already or another process has it."""
    folder, title = plan.folder(seed), f"{plan.title} seed {seed}"
    with distributed.within_rank_zero(claim(folder, title, choices)) as claimed:
        if claimed is None:
            return
        run = SeedPlan(
            seed=seed, folder=folder, title=title, fingerprints=identity.fingerprints(claimed | {"seed": seed})
        )
        if distributed.on_rank_zero(lambda: done_before(run)):
            return
        with writing(folder):
            result = fit(plan, run)
            if distributed.rank() == 0:
                record.save(result, folder)
    log(f"{title}: {result.status}, test {result.test}, dev {result.val} at step {result.best_step}")
    if result.collapsed:
        log(f"{title}: {diagnostics.COLLAPSED}")


def done_before(run: SeedPlan) -> bool:
    """Whether a run has its record. Raises ValueError if that is damaged or of another run."""
    path = run.folder / record.NAME
    if not path.exists():
        return False
    done = record.load(path, run.fingerprints)
    log(f"{run.title}: {done.status} before, test {done.test}, skipped")
    return True


if __name__ == "__main__":
    train()
