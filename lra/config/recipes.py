"""Recipes: files with several experiments, such as all trainings of one paper side by side.

A section of ``conf/experiment/recipes/<family>.yaml`` has the form of a file of ``conf/experiment``: a defaults list
and options. ``experiment=s5_listops`` reads the section ``s5_listops`` of ``s5.yaml``. A section below ``base/`` is no
experiment: it holds what several of them share, and their defaults lists name it or a section that does.

Hydra reads the sections through a config source, one of its kinds of plugins
(https://hydra.cc/docs/1.3/advanced/plugins/develop/), which stands behind the folder ``conf`` on the search path.
"""

import re
from pathlib import Path

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from . import CONF

GROUP = "experiment"
RECIPES = CONF / GROUP / "recipes"
# The shared sections of the families, such as base/s5.
BASE = "base/"
# The name of a section, which is not indented.
_HEADING = re.compile(r"^([\w/]+):", re.MULTILINE)


def choices(group: str) -> list[str]:
    """List the choices of a group of ``conf``, such as ``experiment``, in alphabetical order.

    Raises:
        ValueError: a file of recipes is invalid, see ``sections``.
    """
    files = (CONF / group).glob("*.yaml")
    names = [path.stem for path in files]
    if group == GROUP:
        names += _experiments(RECIPES)
    return sorted(names)


def _experiments(folder: Path) -> list[str]:
    """List the experiments of a folder of recipes, without the shared sections."""
    names: list[str] = []
    for path in sorted(folder.glob("*.yaml")):
        names += [name for name in sections(path) if not name.startswith(BASE)]
    return names


def sections(path: Path) -> dict[str, str]:
    """Cut a file of recipes into its sections.

    Args:
        path: the file, <family>.yaml.

    Returns:
        The yaml of each section by its name. Empty lines replace the text before it, so that error messages of the
        parser have the line numbers of the file.

    Raises:
        ValueError: the name of a section is not of the file's family, or is also the name of another section or of a
            file of ``conf/experiment``.
    """
    text = path.read_text(encoding="utf-8")
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]]
    ends.append(len(text))

    texts: dict[str, str] = {}
    for heading, end in zip(headings, ends, strict=True):
        name = heading[1]
        # Each name stands once, in the file of its family.
        if _family(name) != path.stem:
            raise ValueError(f"{path}: a section must be {path.stem}_<task> or {BASE}{path.stem}, not {name}")
        if name in texts:
            raise ValueError(f"{path}: two sections are {name}; rename one of them")
        file = path.parents[1] / f"{name}.yaml"
        if file.exists():
            raise ValueError(f"{path}: {name} is the name of {file} too; rename one of them")
        # The text up to the next heading.
        start = heading.end()
        line = text.count("\n", 0, start)
        texts[name] = "\n" * line + text[start:end]
    return texts


def _family(name: str) -> str:
    """The family of an experiment or of a shared section: s5_listops and base/s5 belong to s5."""
    return name.removeprefix(BASE).partition("_")[0]


class RecipeSource(ConfigSource):
    """Reads experiments and shared sections from a folder of recipes, each file when one of its sections is needed."""

    @staticmethod
    def scheme() -> str:
        return "recipes"

    def available(self) -> bool:
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        return config_path == GROUP

    def is_config(self, config_path: str) -> bool:
        return self._section(config_path) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if results_filter is ObjectType.GROUP:
            return []
        return _experiments(Path(self.path))

    def load_config(self, config_path: str) -> ConfigResult:
        text = self._section(config_path)
        if text is None:
            raise ConfigLoadError(f"{config_path}: no such section in {self.path}")
        try:
            config = OmegaConf.create(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{config_path} in {self.path}: {error}") from error
        # The options of an experiment are options of the whole configuration.
        header: dict[str, str | None] = {"package": "_global_"}
        return ConfigResult(self.provider, f"recipes://{self.path}", config, header)

    def _section(self, config_path: str) -> str | None:
        """Return the yaml of a section by its path, such as experiment/s5_listops; None if there is no such section."""
        group, _, name = config_path.removesuffix(".yaml").partition("/")
        file = Path(self.path) / f"{_family(name)}.yaml"
        if group != GROUP or not file.is_file():
            return None
        return sections(file).get(name)


class RecipeSearchPath(SearchPathPlugin):
    """Adds the recipes to the search path of this package's commands, but not of other applications of Hydra."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        folders = [element.path.removeprefix("file://") for element in search_path.get_path()]
        if str(CONF) in folders:
            search_path.append("recipes", f"recipes://{RECIPES}")


def register() -> None:
    """Register the plugins; a second call changes nothing."""
    for plugin in (RecipeSource, RecipeSearchPath):
        Plugins.instance().register(plugin)
