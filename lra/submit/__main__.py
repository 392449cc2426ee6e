"""python -m lra.submit runs=<runs> name=<name>: check runs and write the folder of a submission."""

if __name__ == "__main__":
    from lra.config.manual import begin
    from lra.startup import interpret_kernels

    begin("submit")  # before torch is imported
    # The checks of mechanisms compute on the CPU.
    interpret_kernels()

import sys
from pathlib import Path
from typing import ClassVar

from ..checks.properties import CHECKS
from ..config.entry import main, name_positional
from ..config.options import Options
from ..config.schema import Name, Trust
from ..console import plural
from ..options import Above
from ..runs.published import Published
from . import record, verify
from .control import by_mechanism, find_published_control, labels_of
from .folder import check_author, check_folder, check_submission, importable, read_runs, write
from .record import Submission, Verification


class SubmitOptions(Options):
    """Options of ``python -m lra.submit``, explained in conf/submit.yaml."""

    conf: ClassVar[str] = "submit"

    runs: Path | None
    name: Name | None
    author: str | None
    hardware: str | None
    rates: list[Above] | None
    link: str | None
    source: Path | None
    trust: Trust
    verify: Name | None
    out: Path

    def check(self) -> None:
        if self.verify is None and (self.runs is None or self.name is None):
            raise ValueError("runs and name are missing: runs=<folder of runs> name=<submission>, or verify=<name>")
        for option, name in (("name", self.name), ("verify", self.verify)):
            if name is not None and not record.NAME_PATTERN.fullmatch(name):
                raise ValueError(f"{option}={name} is not allowed; {record.NAME_RULE}")


@main(SubmitOptions)
def submit(options: SubmitOptions) -> None:
    """Write a submission, or verify one.

    Raises:
        ValueError: the runs cannot be accepted; the message lists the reasons.
    """
    if options.verify is not None:
        verify_submission(options.verify, options)
    elif options.runs is not None and options.name is not None:
        make_submission(options.runs, options.name, options)


def make_submission(folder: Path, name: str, options: SubmitOptions) -> None:
    """Check the runs in a folder and write ``submissions/<name>``.

    Raises:
        ValueError: runs cannot be read, or the checks fail; the message lists every such run, or else every reason.
    """
    if not folder.is_dir():
        raise ValueError(f"runs={folder} is not a folder; name the folder of the runs")
    if options.source and not options.source.is_file():
        raise ValueError(f"source={options.source} is not a file; name the file of the custom class")

    # Read the runs; if all can be read, collect every reason against them.
    source_folder = options.source.parent if options.source else Path()
    with importable(source_folder, options.source.stem if options.source else ""):
        runs, unreadable = read_runs(folder, options.trust)
        # Without these runs the other checks would report missing seeds or mechanisms.
        if unreadable or not runs:
            raise ValueError(rejection(folder, unreadable or ["it has no finished run"]))
        controls = find_published_control(runs, options.rates or [])
        for (task, label), seeds in by_mechanism(controls).items():
            print(f"{task}: the control is {plural(len(seeds), 'published run')} of {label} with the same settings")
        runs += controls
        submission = statement(name, options, runs)
        reasons = check_submission(runs, submission, source_folder, options.trust)
    home = options.out / name
    reasons += check_author(home, submission.author)
    if reasons:
        raise ValueError(rejection(folder, reasons))

    # Write the submission.
    write(home, runs, submission, options.source)
    print(f"written: {home}, {plural(len(runs), 'run')} of {', '.join(submission.labels)} and the control")
    print("run lra leaderboard write=true, then open a pull request with this folder and the changed pages")


def statement(name: str, options: SubmitOptions, runs: list[Published]) -> Submission:
    """Make the statement of a submission from the options and the runs."""
    return Submission(
        name=name,
        author=(options.author or "").strip(),
        hardware=options.hardware or "",
        rates=options.rates or [],
        link=options.link or "",
        protocol=runs[0].record.protocol,
        budget=runs[0].record.budget,
        labels=labels_of(runs),
        checks=len(CHECKS),
        source=options.source.name if options.source else "",
    )


def rejection(folder: Path, reasons: list[str]) -> str:
    """Write the message that rejects a submission or a rerun in a folder, and lists the reasons."""
    return "\n  ".join([f"{folder} cannot be used, for {plural(len(reasons), 'reason')}:", *reasons])


def verify_submission(name: str, options: SubmitOptions) -> None:
    """Compare a submission with a rerun and write ``verified.json``.

    Raises:
        ValueError: the submission or the rerun is incomplete, their means differ by more than the tolerance, or their
            scores vary too much to decide.
    """
    folder = options.out / name
    if not (folder / record.NAME).is_file():
        raise ValueError(f"there is no submission {folder}; verify=<name> names a folder of {options.out}")
    reasons = check_folder(folder)
    if reasons:
        raise ValueError(rejection(folder, reasons))
    # Without reruns, a verification prints the commands that train them in runs/verify-<name>.
    default_folder = Path("runs") / f"verify-{name}"
    rerun_folder = options.runs or default_folder
    if rerun_folder != default_folder and not rerun_folder.is_dir():
        raise ValueError(f"runs={rerun_folder} is not a folder; name the folder of the rerun")
    reruns: list[Published] = []
    if rerun_folder.is_dir():
        module = record.load(folder).source.removesuffix(".py")
        with importable(folder, module):
            reruns, unreadable = read_runs(rerun_folder, [module] if module else None)
        if unreadable:
            raise ValueError(rejection(rerun_folder, unreadable))

    # Compare the means of every task and label.
    comparisons = verify.compare(folder, reruns)
    for item in comparisons:
        judgement = "agrees" if item.agrees else "DIFFERS"
        if item.is_undecided:
            judgement = "undecided, add seeds"
        print(
            f"{item.task} {item.label}: submitted {item.submitted:.2f} (n = {item.n}), rerun {item.rerun:.2f} "
            f"(n = {item.rerun_n}), tolerance {item.tolerance:.2f}: {judgement}"
        )
    # A submission is verified if every comparison agrees. The error names the other ones and the remedy.
    reasons = []
    differing = [f"{item.task} {item.label}" for item in comparisons if not item.agrees and not item.is_undecided]
    if differing:
        reasons.append(f"{', '.join(differing)} differ by more than the tolerance")
    undecided = [f"{item.task} {item.label}" for item in comparisons if item.is_undecided]
    if undecided:
        reasons.append(
            f"{', '.join(undecided)} are undecided, since two standard errors exceed {record.LARGEST_TOLERANCE:g} "
            "points: add seeds to the rerun or to the submission"
        )
    if reasons:
        raise ValueError(f"{name} is not verified: {'; '.join(reasons)}")

    # A rerun counts if somebody else made it.
    author = (options.author or "").strip()
    if not author or record.is_same_author(author, record.load(folder).author):
        raise ValueError(
            "author is not given, or is the submission's author; add author='...', the person who made the rerun"
        )

    # The hardware of the rerun, from its records if it is not given.
    hardware = options.hardware or " / ".join(sorted({run.record.device_name for run in reruns}))
    verify.write(folder, Verification(author=author, hardware=hardware, comparisons=comparisons))
    print(f"written: {folder / record.VERIFIED}")
    print("run lra leaderboard write=true, then open a pull request with this file and the changed pages")


if __name__ == "__main__":
    words = sys.argv[1:]
    # lra submit verify <name> is lra submit verify=<name>; lra submit <runs> is lra submit runs=<runs>
    if words and words[0] == "verify":
        sys.argv[1:] = name_positional(words[1:], "verify")
    else:
        sys.argv[1:] = name_positional(words, "runs")
    submit()
