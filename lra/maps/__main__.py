"""python -m lra.maps run=<folder of a seed>: the attention map of a trained model on one example, as a figure."""

from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from ..config.entry import main
from ..disk import atomic
from ..runs.open import open_run
from ..train.restore import trained
from .draw import DISPLAYS
from .views import views, whole_number


@main("maps")
def show(config: DictConfig) -> None:
    """Draw the attention map of a seed on one example.

    Raises:
        ValueError: the folder, split, example, layer, head or position does not exist.
    """
    if config.run is None:
        raise ValueError("name the folder of a seed: run=runs/<study>/<task>/<label>/seed-<k>")
    run = open_run(Path(str(config.run)), config.trust)
    choices = run.configuration(config.data.root)
    if choices.task.display is None:
        raise ValueError(f"{run.folder}: no task of conf/task has the source {choices.source._target_} and its display")
    model, data = trained(run, choices)
    if config.split not in data.splits:
        raise ValueError(f"split must be one of {', '.join(data.splits)}, not {config.split!r}")
    whole_number("example", config.example, len(data.splits[config.split]))
    layers = len(model.blocks)
    config.layer = whole_number("layer", layers - 1 if config.layer is None else config.layer, layers)
    batch = data.gather(config.split, np.array([config.example]))
    drawn = views(config, choices, model, data, batch)
    name = f"{config.split}-{config.example}-layer-{config.layer}"
    if config.head is not None:
        name += f"-head-{config.head}"
    # Nothing is written beside a published run.
    default = Path("runs", "maps", *run.folder.absolute().parts[-4:]) if run.published else run.folder / "maps"
    out = Path(config.out or default)
    for tower, view in enumerate(drawn):
        path = out / f"{name}{f'-tower-{tower}' if len(drawn) > 1 else ''}.png"
        try:
            out.mkdir(parents=True, exist_ok=True)
            with atomic.replacing(path) as part:
                DISPLAYS[choices.task.display](view).savefig(part, format="png", dpi=130)
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}; name a folder with out=<folder>") from None
        print(f"written to {path}")


if __name__ == "__main__":
    show()
