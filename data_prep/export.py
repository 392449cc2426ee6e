"""lra data export task=listops layout=pickle out=DIR: write the data of a task for other programs.

Layouts: ``release``, the official files of the Long Range Arena; ``pickle``, the files of Nystromformer and Skyformer;
``npz``, arrays; ``parquet``, columns. A README with provenance and ``SHA256SUMS`` are written next to the data.
"""

if __name__ == "__main__":
    from lra.config.manual import begin

    begin("export")  # before torch is imported

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

from lra import __version__
from lra.config.entry import main
from lra.config.options import TaskOptions
from lra.config.quoting import command_line, override
from lra.console import log
from lra.data.progress import Progress, reporter
from lra.data.source import Source, explain_full_disk

from .archive import sha256
from .formats.arrays import write_npz
from .formats.columns import write_parquet
from .formats.layout import Export
from .formats.lra_pickle import write_pickle
from .formats.write_release import write_release

Layout = Literal["release", "pickle", "npz", "parquet"]
WRITERS: dict[str, Callable[[Export, Path, Progress], str]] = {
    "release": write_release,
    "pickle": write_pickle,
    "npz": write_npz,
    "parquet": write_parquet,
}

# Folders of the machine, on which the data do not depend.
MACHINE_OPTIONS = ("data.root", "data.release")

README = """# {task}, layout {layout}

Written by lra-suite {version}:

    {command}

{description}

| split | examples | labels |
| --- | --- | --- |
{splits}

Origin: {origin}. Licence: {licence}.

Provenance: `{provenance}`

`sha256sum -c SHA256SUMS` compares the checksums of all files.
"""


class ExportOptions(TaskOptions):
    conf: ClassVar[str] = "export"

    layout: Layout
    out: Path


@main(ExportOptions)
def export(options: ExportOptions) -> None:
    """Write the data of a task; a generated task that is not prepared yet is prepared first.

    Raises:
        ValueError: the data are missing, the folder exists or cannot be written, or the layout cannot hold the data.
    """
    source = options.data_source()
    task = Export(
        source=source,
        splits=source.open(options.data.root),
        kind=options.task.display,
        limit=min(options.task.limit, options.task.length),
        length=options.task.length,
        shift=options.task.shift,
    )
    arguments = [*portable(options.data_overrides), f"layout={options.layout}", override("out", options.out.name)]
    write(task, options.layout, options.out, command_line("data export", *arguments))


def portable(overrides: Iterable[str]) -> Iterator[str]:
    """Leave out the folders of this machine; an absolute path becomes its last name."""
    for line in overrides:
        key, _, value = line.partition("=")
        if key.lstrip("+~") in MACHINE_OPTIONS:
            continue
        path = value.strip("'\"")
        is_absolute = path.startswith(("/", "~"))
        yield override(key, Path(path).name) if is_absolute else line


def write(task: Export, layout: Layout, out: Path, command_text: str) -> None:
    """Write a task in a layout.

    The folder appears complete or not at all: the files are written to a folder next to it, which is removed if
    anything fails.

    Args:
        task: data of the task.
        layout: layout of the files.
        out: folder to write.
        command_text: command that does this, for the README.

    Raises:
        ValueError: the folder exists or cannot be written, or the layout cannot hold the data.
    """
    # Nothing is ever overwritten.
    if out.exists():
        raise ValueError(f"out={out} exists already; choose another folder, or remove it")
    # Write next to the target, and rename at the end.
    work = out.with_name(f".{out.name}.tmp-{os.getpid()}")
    try:
        work.mkdir(parents=True)
        with explain_full_disk(out), reporter(f"export {task.source.name}") as progress:
            description = WRITERS[layout](task, work, progress)
            (work / "README.md").write_text(_readme(task, layout, command_text, description), encoding="utf-8")
            _write_sums(work, progress)
        work.rename(out)
    except OSError as error:
        raise ValueError(f"out={out} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    log(f"{task.source.name}: layout {layout} at {out}")


def _readme(task: Export, layout: str, command_text: str, description: str) -> str:
    # One line of the table per split, with the histogram of its labels.
    rows = []
    for name, split in task.splits.items():
        labels = split.labels
        # Real numbers have a range, classes a count each.
        if labels.is_floating_point():
            histogram = f"{labels.min():.4f} to {labels.max():.4f}"
        else:
            histogram = ", ".join(f"{label}: {count:,}" for label, count in enumerate(labels.bincount().tolist()))
        rows.append(f"| {name} | {len(split):,} | {histogram} |")
    source: Source = task.source
    return README.format(
        task=source.name,
        layout=layout,
        version=__version__,
        command=command_text,
        description=description,
        splits="\n".join(rows),
        origin=source.origin,
        licence=source.licence,
        provenance=source.provenance,
    )


def _write_sums(folder: Path, progress: Progress) -> None:
    # List the files before SHA256SUMS exists, so that it does not list itself.
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    with open(folder / "SHA256SUMS", "w", encoding="utf-8") as file:
        for number, path in enumerate(paths, start=1):
            file.write(f"{sha256(path, progress)}  {path.relative_to(folder)}\n")
            progress("checksums", number, len(paths))


if __name__ == "__main__":
    export()
