"""The temporal order problem (Hochreiter & Schmidhuber 1997), as in PSF-Attn (Khalitov et al. 2022)."""

import numpy as np

from lra.compiled import compiled

from .synthetic import Synthetic, state_of, two_positions, word_at

# Id of X; Y is one more, and the ids of the noise a, b, c, d are less.
X = 4


@compiled
def _signal(state, position):
    """Draw 0 for X or 1 for Y."""
    return np.int64(word_at(state, position) >> np.uint64(63))


@compiled
def _fill(key, index, length, num_tokens, tokens):
    for number, example in enumerate(index):
        state = state_of(key, example)
        # Noise everywhere, from the upper two bits of a word.
        for position in range(num_tokens):
            tokens[number, position] = word_at(state, position) >> np.uint64(62)
        for position in two_positions(state, length):
            if position < num_tokens:
                tokens[number, position] = X + _signal(state, position)


@compiled
def _answers(key, n, length):
    answers = np.empty(n, np.int64)
    for example in range(n):
        state = state_of(key, example)
        first, second = two_positions(state, length)
        answers[example] = 2 * _signal(state, first) + _signal(state, second)
    return answers


class TemporalOrder(Synthetic):
    """Noise over a, b, c, d and, at any two positions, an X or a Y each; the label is these two, the earlier first.

    Example: b X d a Y c is class 1, (X,Y). Tokens are ids 0..5 of a, b, c, d, X, Y; there is no id for padding, since
    all sequences of a data set have one length.
    """

    name = "temporal_order"
    version = "1.0.0"
    origin = "generated; Hochreiter & Schmidhuber 1997, symbols, lengths and sizes of Khalitov et al. 2022 (PSF-Attn)"
    dtype = np.uint8
    alphabet = ("a", "b", "c", "d", "X", "Y")
    classes = ("(X,X)", "(X,Y)", "(Y,X)", "(Y,Y)")

    def fill(self, key: np.uint64, index: np.ndarray, num_tokens: int, tokens: np.ndarray) -> None:
        _fill(key, index, self.length, num_tokens, tokens)

    def answers(self, key: np.uint64, n: int) -> np.ndarray:
        return _answers(key, n, self.length)
