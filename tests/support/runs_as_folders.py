"""Published runs as the folders that training writes."""

import shutil
from pathlib import Path

import yaml

from lra.runs import checkpoint, config_file, evaluations, record, tables


def write(run: tables.Published, folder: Path, weights: Path | None = None) -> Path:
    """Write the files of a finished run.

    Args:
        run: published run.
        folder: folder of the seed.
        weights: best.ckpt that is copied.
    """
    folder.mkdir(parents=True)
    (folder / config_file.NAME).write_text(yaml.dump(run.choices))
    if run.evaluations:
        (folder / evaluations.NAME).write_text(evaluations.text(run.evaluations))
    if weights:
        shutil.copy(weights, folder / checkpoint.BEST)
    record.save(run.record, folder)
    return folder
