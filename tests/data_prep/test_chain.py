"""Links and a question of several hops: labels from the words of a row, uniform draws (p > 1e-4)."""

import numpy as np
import pytest
import torch
from conftest import p_value

from data_prep.chain import Chain

LEVEL = 1e-4
SIZES = {"train": 300, "val": 40, "test": 40}


def read(source, split="train"):
    """Rows (n, L) and labels (n,)."""
    drawn = source.open("nowhere")[split]
    tokens, mask = drawn.gather(torch.arange(len(drawn)), source.length)
    assert tokens.dtype == torch.int16 and mask.all()
    return tokens[:, 0].numpy().astype(int), drawn.labels.numpy()


@pytest.mark.parametrize("options", [{}, {"length": 128, "links": [5, 26], "names": 26, "hops": 4}])
def test_the_label_is_where_a_dictionary_of_the_links_leads(options):
    source = Chain(**options, **SIZES)
    for split in SIZES:
        rows, labels = read(source, split)
        for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
            *words, question = [source.alphabet[id] for id in row]
            links = dict(word.split(">") for word in words if word != ".")
            at, hops = question.removeprefix("?").split("+")
            assert len(links) in source.links and set(links) == set(links.values()) and int(hops) <= source.hops
            assert len(links) == sum(word != "." for word in words)
            for _ in range(int(hops)):
                at = links[at]
            assert at == (chr(ord("a") + label) if source.names <= 26 else f"n{label}")


def test_sizes_hops_names_and_places_are_uniform():
    source = Chain(train=40_000, val=1, test=1, seed=3)
    rows, labels = read(source)
    first, second = np.divmod(rows - 1, source.names + source.hops)
    counts = (rows[:, :-1] > 0).sum(1)
    assert p_value(np.array([(counts == n).sum() for n in source.links])) > LEVEL
    hops = second[:, -1] - source.names
    assert p_value(np.bincount(hops * 3 + np.searchsorted(source.links, counts), minlength=6)) > LEVEL
    assert p_value(np.bincount(labels, minlength=32)) > LEVEL and p_value(np.bincount(first[:, -1])) > LEVEL
    assert p_value((rows[:, :-1] > 0).sum(0)) > LEVEL
    # The answer is any other name of the row with the same probability, in the order of the places too.
    fewest = counts == 4
    others = np.array(
        [
            [name for name in row[row >= 0] if name != asked]
            for row, asked in zip(first[fewest][:, :-1], first[fewest][:, -1], strict=True)
        ]
    )
    assert p_value(np.bincount((others == labels[fewest, None]).argmax(1), minlength=3)) > LEVEL
    assert source.floor == pytest.approx(100 * (1 / 2 + 1 / 3 + 1 / 5) / 3)
