"""A report as a folder."""

from lra.report import summary
from lra.report.export import export

from .records import add, metrics

LOST = ["lost/record.json is no record"]


def written(runs):
    """A report over two studies, with a script in a name, a damaged record and a damaged metrics.csv."""
    for label, gain in (("cur_abs", 1.0), ("softmax", 0.0), ("cur_abs-note=<script>alert(1)<script>", 0.5)):
        for seed in range(3):
            path = add(runs, label=label, seed=seed, test=37 + gain + seed, step_ms=10 + gain, peak_bytes=2**30)
            metrics(path, [20.0, 30.0 + seed, 35.0 + gain])
            (path.parent / "config.yaml").write_text("optim.lr: 0.0001\n")
    path = add(runs, study="other", budget="quick", label="cur_abs")
    (path.parent / "metrics.csv").write_text("step,val\nten,1\n")
    return runs, export(runs / "report", summary.collect(runs)[0], LOST)
