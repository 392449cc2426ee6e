"""From the command line to a checked configuration.

``entry`` makes a function a command, ``compose`` reads its configuration, ``options`` parses and names it, ``errors``
explains what a user can mend, ``quoting`` writes commands that can be pasted, ``recipes`` reads files with several
experiments.
"""

from pathlib import Path

_here = Path(__file__).resolve().parents[1]
# Next to the package in a checkout, inside it in a wheel.
CONF = next(folder for folder in (_here / "conf", _here.parent / "conf") if folder.is_dir())
