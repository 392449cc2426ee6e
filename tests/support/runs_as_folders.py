"""Published runs as the folders that training writes."""

import csv
from pathlib import Path

import safetensors.torch
import torch
import yaml

from lra.disk import checksums
from lra.runs import checkpoint, config_file, evaluations, record, tables


def write(run: tables.Published, folder: Path, weights: Path | None = None) -> Path:
    """Write the files of a finished run.

    Args:
        run: published run.
        folder: folder of the seed.
        weights: best.safetensors that becomes best.ckpt.
    """
    folder.mkdir(parents=True)
    checksums.save(folder / config_file.NAME, yaml.dump(run.choices))
    if run.evaluations:
        with checksums.replaced(folder / evaluations.NAME) as part, open(part, "w", newline="") as file:
            rows = csv.DictWriter(file, run.evaluations[0])
            rows.writeheader()
            rows.writerows(run.evaluations)
    if weights:
        with checksums.replaced(folder / checkpoint.BEST) as part:
            torch.save(safetensors.torch.load_file(weights), part)
    record.save(run.record, folder)
    return folder
