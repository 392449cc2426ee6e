"""python -m lra.maps run=<folder of a seed>: the attention map of a trained model on one example, as a figure."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

from pathlib import Path

import numpy as np

from ..config.entry import main
from ..disk import atomic
from ..runs.restore import configuration, trained
from ..runs.run_dir import RunDir
from .draw import DISPLAYS
from .views import MapsOptions, views, whole_number


@main(MapsOptions)
def show(options: MapsOptions) -> None:
    """Draw the attention map of a seed on one example.

    Raises:
        ValueError: the folder, split, example, layer, head or position does not exist.
    """
    if options.run is None:
        raise ValueError("name the folder of a seed: run=runs/<study>/<task>/<label>/seed-<k>")
    run = RunDir.read(options.run, options.trust)
    experiment = configuration(run, options.data.root)
    if experiment.task.display is None:
        raise ValueError(f"{run.path}: no task of conf/task has the source {experiment.source.path} and its display")
    model, data = trained(run, experiment)
    if options.split not in data.splits:
        raise ValueError(f"split must be one of {', '.join(data.splits)}, not {options.split!r}")
    whole_number("example", options.example, len(data.splits[options.split]))
    last = len(model.blocks) - 1
    options = options.replace(layer=whole_number("layer", last if options.layer is None else options.layer, last + 1))
    batch = data.gather(options.split, np.array([options.example]))
    drawn = views(options, experiment, model, data, batch)
    name = f"{options.split}-{options.example}-layer-{options.layer}"
    if options.head is not None:
        name += f"-head-{options.head}"
    # Nothing is written beside a published run.
    beside = Path("runs", "maps", *run.path.absolute().parts[-4:]) if run.is_published else None
    out = options.out or beside or atomic.below(run.path, "maps")
    for tower, view in enumerate(drawn):
        path = out / f"{name}{f'-tower-{tower}' if len(drawn) > 1 else ''}.png"
        try:
            out.mkdir(parents=True, exist_ok=True)
            with atomic.replacing(path) as part:
                DISPLAYS[experiment.task.display](view).savefig(part, format="png", dpi=130)
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}; name a folder with out=<folder>") from None
        print(f"written to {path}")


if __name__ == "__main__":
    show()
