"""Pages of the site that are not in docs/: README, studies, API, cards of mechanisms, and files that a page links to.

Links in the manuals are relative to the file, as on GitHub; this hook turns them into links of the site.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File
from pymdownx.slugs import slugify

from lra.leaderboard.__main__ import all_lines
from lra.leaderboard.cards import card
from lra.leaderboard.mechanism import mechanisms

ROOT = Path(__file__).parents[2]
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
OUTSIDE |= {"lra/studies/README.md": "studies.md"}
LINK = re.compile(r'(\]\(|<img src=")([^)"#:]+)(?=[)"#])')
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".csv": "text"}


def on_config(config):
    """Append the API to the navigation, and give headings the ids that they have on GitHub."""
    config.nav.append({"API reference": [f"api/{package}.md" for package in packages()]})
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files, config):
    """Add the generated pages."""
    for path, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    for package, modules in packages().items():
        text = "".join(f"::: {module}\n\n" for module in modules)
        files.append(File.generated(config, f"api/{package}.md", content=f"# {package}\n\n{text}"))
    for name, text in mechanism_cards().items():
        files.append(File.generated(config, f"mechanisms/{name}.md", content=text))
    for path in sorted({path for page in pages() for path in linked(page)}):
        if not site_uri(path).startswith("source/") or not (ROOT / path).is_file():
            continue
        text = (ROOT / path).read_text()
        block = f"# {path}\n\n```{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}```\n"
        files.append(File.generated(config, site_uri(path), content=block))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links to files of the repository into links of the site."""
    paths = {uri: path for path, uri in OUTSIDE.items()}
    page_path = paths.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def to_site_link(match):
        target = posixpath.join(posixpath.dirname(page_path), match[2])
        uri = site_uri(posixpath.normpath(target))
        return match[1] + posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")

    if page.file.src_uri == "mechanisms.md":
        # The index leads to the cards, which only the site has as pages.
        for name in mechanisms():
            markdown = markdown.replace(f"\n| {name} | ", f"\n| [{name}](mechanisms/{name}.md) | ")
    return LINK.sub(to_site_link, markdown)


def packages() -> dict[str, list[str]]:
    """List the public modules of each package."""
    modules = {}
    for file in sorted([*ROOT.glob("lra/**/*.py"), *ROOT.glob("data_prep/**/*.py")]):
        package = ".".join(file.parent.relative_to(ROOT).parts)
        if not file.stem.startswith("_"):
            modules.setdefault(package, []).append(f"{package}.{file.stem}")
    return modules


def mechanism_cards() -> dict[str, str]:
    """Render a card for each mechanism."""
    lines = all_lines(ROOT)
    return {name: card(name, lines) for name in mechanisms()}


def pages() -> list[str]:
    """Paths of the manuals in the repository."""
    return [*OUTSIDE, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def linked(page: str) -> list[str]:
    """Paths in the repository that a page links to."""
    folder = posixpath.dirname(page)
    targets = [target for _, target in LINK.findall((ROOT / page).read_text())]
    return [posixpath.normpath(posixpath.join(folder, target)) for target in targets]


def site_uri(path: str) -> str:
    """Return the address in the site of a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return OUTSIDE.get(path, f"source/{path}.md")
