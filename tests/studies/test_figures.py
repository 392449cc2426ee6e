"""Figures of studies: panels, one legend, texts as they are and powers of ten as formulas."""

from lra.studies.figures import panels, save


def test_a_figure_has_its_panels_one_legend_and_texts_as_they_are(tmp_path):
    figure, grid = panels(4, across=3, width=3, height=2)
    assert len(grid) == 4 and [axes.get_visible() for axes in figure.axes] == [True] * 4 + [False] * 2
    for axes in grid:
        axes.plot([1, 10], [1, 1000], label="$x$ and $y$")
        axes.set_yscale("log")
    path = save(figure, tmp_path / "a" / "count=0.5.png", "$1$", loc="outside lower center")
    assert path.read_bytes().startswith(b"\x89PNG") and [file.name for file in path.parent.iterdir()] == [path.name]
    (legend,) = figure.legends
    (text,) = legend.get_texts()
    powers = grid[0].get_yticklabels()
    assert not text.get_parse_math() and not figure.get_suptitle().startswith("\\")
    assert powers and all(label.get_parse_math() and "10^{" in label.get_text() for label in powers)
    assert not grid[0].get_xticklabels()[0].get_parse_math()
