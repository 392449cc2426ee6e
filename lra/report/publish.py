"""python -m lra.report logger=wandb: the comparison, computed from the records on disk, as a run and a Report."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig

from ..integrations.wandb.run import first_line, open_run, tell
from ..runs.record import RunRecord, git_commit
from . import sheets
from .dashboard import dashboard
from .summary import Row


def publish(config: DictConfig, studies: dict[str, list[Row]], records: Iterable[RunRecord], folder: Path) -> None:
    """Tables, the pictures in ``folder`` and, where there is a connection, the Report.

    config: the ``wandb`` part of conf/logger/wandb.yaml. The same studies go to the same run again. Raises ValueError
    as ``open_run`` does; what else fails is told in a line.
    """
    tables = {
        "accuracy": sheets.accuracy(studies),
        "selection": sheets.selection(studies),
        "efficiency": sheets.efficiency(r for r in records if r.study in studies),
        "published": sheets.sources(studies),
    }
    tables = {key: sheet for key, sheet in tables.items() if sheet.rows}
    drawn = [path for place in ("figures", "efficiency") for path in sorted(folder.glob(f"{place}/*.png"))]
    pictures = {f"figures/{path.stem}": path for path in drawn}
    name = f"report of {', '.join(studies)}"
    run = open_run(
        folder=folder,
        id=hashlib.sha256(name.encode()).hexdigest()[:16],
        project=config.project,
        entity=config.entity,
        mode=config.mode,
        timeout=config.timeout,
        name=name,
        group="report",
        job_type="report",
        tags=list(config.tags),
        config={"studies": list(studies), "git": git_commit()},
        resume=True,
    )
    if run is None:
        return
    try:
        import wandb

        media = {key: wandb.Table(columns=sheet.head, data=sheet.rows) for key, sheet in tables.items()}
        media |= {key: wandb.Image(str(path), caption=path.stem) for key, path in pictures.items()}
        run.log(media)
        many = f"{len(tables)} tables and {len(pictures)} picture{'s' if len(pictures) != 1 else ''}"
        print(f"W&B: {many} in {run.url or folder / 'wandb'}")
        _save(dashboard(run.project, run.entity or "", name, studies, list(tables), list(pictures)), run.offline)
        run.finish()
    except Exception as error:
        tell(f"{first_line(error)}; not everything is in W&B, the report on disk is complete")


def _save(report, offline: bool) -> None:
    if report is None:
        tell("no dashboard, it needs a package that is not installed: pip install '.[wandb]'")
    elif offline:
        tell("the dashboard needs a login and a connection, skipped")
    else:
        print(f"W&B: dashboard at {report.save().url}")
