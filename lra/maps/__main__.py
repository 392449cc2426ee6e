"""python -m lra.maps run=<run directory>: the attention map of a trained model on one example, as a figure."""

if __name__ == "__main__":
    from lra.config.manual import begin

    # Before torch is imported.
    begin("maps")

from pathlib import Path

import numpy as np

from ..config.entry import main
from ..evaluate.restore import load_model_and_data, restore_experiment
from ..io import atomic
from ..runs.run_dir import RunDir
from .draw import DISPLAYS
from .views import MapsOptions, views, whole_number


@main(MapsOptions)
def show(options: MapsOptions) -> None:
    """Draw the attention map of a seed on one example.

    Raises:
        ValueError: the run directory, its weights or data, the split, example, layer, head or position does not exist,
            or the picture cannot be written.
    """
    if options.run is None:
        raise ValueError("run is missing; name a run directory: run=runs/<study>/<task>/<label>/seed-<k>")
    run = RunDir.read(options.run, options.trust)
    experiment = restore_experiment(run, options.data.root)
    display = experiment.task.display
    if display is None:
        raise ValueError(f"{run.path}: no task of conf/task has the source {experiment.source.path} and its display")
    model, data = load_model_and_data(run, experiment)

    # Check the example and the layer; the default is the last layer.
    if options.split not in data.splits:
        raise ValueError(f"split must be one of {', '.join(data.splits)}, not {options.split!r}")
    whole_number("example", options.example, len(data.splits[options.split]))
    num_layers = len(model.blocks)
    layer = num_layers - 1 if options.layer is None else options.layer
    layer = whole_number("layer", layer, num_layers)

    batch = data.gather(options.split, np.array([options.example]))
    tower_views = views(options, layer, experiment, model, data, batch)
    name = f"{options.split}-{options.example}-layer-{layer}"
    if options.head is not None:
        name += f"-head-{options.head}"
    out = _directory(run, options)
    for tower, view in enumerate(tower_views):
        # Two towers give two files.
        suffix = f"-tower-{tower}" if len(tower_views) > 1 else ""
        path = out / f"{name}{suffix}.png"
        try:
            out.mkdir(parents=True, exist_ok=True)
            with atomic.replacing(path) as part:
                DISPLAYS[display](view).savefig(part, format="png", dpi=130)
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}; name a folder with out=<folder>") from None
        print(f"written to {path}")


def _directory(run: RunDir, options: MapsOptions) -> Path:
    """Return the directory of the pictures; by default nothing is written into a published run."""
    if options.out:
        return options.out
    if run.is_published:
        return Path("runs", "maps", *run.path.absolute().parts[-4:])
    return run.path / "maps"


if __name__ == "__main__":
    show()
