"""The files of a submission, submissions/<name>, and the types of its statement and its verification.

submission.json    the statement: who submits what; sha256 of the tables, of about.json and of the source
runs.csv           one row per run, failed ones included
curves.csv         one row per evaluation
configs.jsonl      configurations of the runs
about.json         command and hardware, as in runs/published
<module>.py        source of a custom class
verified.json      comparison with a rerun
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from ..io import atomic, typed_json
from ..io.atomic import Unreadable
from ..io.typed_json import STRICT, FolderName, Percent
from ..runs import published as tables

NAME = "submission.json"
VERIFIED = "verified.json"
# Largest tolerance, in points, by which a rerun can be judged; with a larger one, different means would agree.
LARGEST_TOLERANCE = 2.0
# Names of submissions, which are folders and parts of addresses.
NAME_PATTERN = re.compile("[a-z0-9][a-z0-9_.-]*")
NAME_RULE = "use lower-case letters, digits, _, . and -, and begin with a letter or digit"
LINK_PATTERN = re.compile(r"https?://[^\s<>()|\\\[\]]+")
LINK_RULE = "use http:// or https:// without spaces, brackets and bars"
TABLES = (tables.RUNS, tables.CURVES, tables.CONFIGS, tables.ABOUT)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The statement of a submission.

    Args:
        name: name of the submission.
        author: who made the runs.
        hardware: machine of the runs.
        rates: learning rates that were tried.
        link: address of a paper or of code; empty without one.
        protocol, budget: protocol and budget of all runs.
        labels: labels of the mechanisms, without the control.
        checks: number of checks of the suite; one that does not apply to a mechanism was skipped.
        source: name of the file of a custom class; empty without one.
    """

    __pydantic_config__ = STRICT
    kind: str = "submission"
    # What the author states.
    name: FolderName
    author: str
    hardware: str
    rates: list[PositiveFloat]
    link: str
    # What is read from the runs.
    protocol: FolderName
    budget: FolderName
    labels: list[FolderName]
    checks: PositiveInt
    source: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The mean test score of a submission compared with a rerun, in percent.

    Args:
        task, label: runs that are compared.
        submitted, rerun: means over seeds.
        n, rerun_n: numbers of seeds.
        tolerance: largest difference that counts as agreement, in points.
    """

    __pydantic_config__ = STRICT
    task: FolderName
    label: FolderName
    submitted: Percent
    rerun: Percent
    n: PositiveInt
    rerun_n: PositiveInt
    tolerance: NonNegativeFloat

    @property
    def is_undecided(self) -> bool:
        """Whether the tolerance is too large to decide, so that more seeds are needed."""
        return self.tolerance > LARGEST_TOLERANCE

    @property
    def agrees(self) -> bool:
        """Whether the means differ by at most the tolerance, which is small enough to decide."""
        return not self.is_undecided and abs(self.submitted - self.rerun) <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The comparison of all mechanisms of a submission with a rerun.

    Args:
        author: who made the rerun.
        hardware: machine of the rerun.
        comparisons: one for each task and label; none for a published control without rerun.
    """

    __pydantic_config__ = STRICT
    kind: str = "verification"
    author: str
    hardware: str
    comparisons: list[Comparison]


def load(folder: Path) -> Submission:
    """Read the statement of a submission and compare the checksums of its files.

    Raises:
        ValueError: a file is missing, damaged or not listed.
    """
    path = folder / NAME
    submission = typed_json.parse(Submission, path, "the statement of a submission", "run lra submit again")
    check_sealed(path, "run lra submit again")
    # The file of the statement also lists the sha256 of the other files, under "files".
    sums = json.loads(atomic.content(path)).get("files", {})
    for name in listed_files(submission):
        try:
            is_unchanged = sums.get(name) == atomic.digest(folder / name)
        except Unreadable as error:
            raise ValueError(f"{folder / name} cannot be used ({error}); run lra submit again") from None
        if not is_unchanged:
            raise ValueError(f"{folder / name} differs from its sha256 in {NAME}; run lra submit again")
    return submission


def listed_files(submission: Submission) -> list[str]:
    """Names of the files whose checksums the statement lists."""
    return [*TABLES, submission.source] if submission.source else list(TABLES)


def load_verification(folder: Path) -> Verification | None:
    """Read the verification of a submission, None without one. Raises ValueError if it is damaged."""
    path = folder / VERIFIED
    if not path.exists():
        return None
    remedy = "run lra submit verify=<name> again"
    verification = typed_json.parse(Verification, path, "the verification of a submission", remedy)
    check_sealed(path, remedy)
    return verification


def check_sealed(path: Path, remedy: str) -> None:
    """Raise ValueError if a file lacks its checksum, which somebody who edits it by hand has to delete."""
    if "sha256" not in json.loads(atomic.content(path)):
        raise ValueError(f"{path} has no sha256, so it may have been edited; {remedy}")


def is_same_author(author: str, other: str) -> bool:
    """Compare two names regardless of case and white space."""
    return author.casefold().split() == other.casefold().split()


def folders(home: Path) -> list[Path]:
    """List the submissions in a folder by name."""
    return sorted(path.parent for path in home.glob(f"*/{NAME}"))
