"""Sources of queries, keys and values, and the options of the study: generated, a trained run, a pretrained encoder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import MinLen
from torch import Tensor

from ...attention.base import Attention
from ...attention.sdpa import SDPA
from ...attention.softmax import Softmax
from ...config.schema import Some, Threads, as_list
from ...evaluate import restore
from ...options import Positive, Range, Whole
from ...runs.reader import finished
from ...runs.run_dir import RunDir
from ..examples import draw_files
from ..qkv import QKV, QKVOptions, QKVSource, generate, mechanisms, record_calls
from .candidates import CANDIDATES


class DropinOptions(QKVOptions):
    conf: ClassVar[str] = "dropin"

    candidates: Some[Literal["all", *CANDIDATES]]
    counts: Some[Annotated[int, Range(2)]]
    n: Annotated[int, Range(2)]
    sources: Annotated[list[Literal["gaussian", "clustered"]], as_list, MinLen(0)]
    run: Path | None
    model: Path | None
    examples: Path | None
    drawn: Positive
    size: Positive
    cost: Whole
    threads: Threads

    def check(self) -> None:
        if not (self.sources or self.run or self.model):
            raise ValueError("nothing to measure: name sources, run= or model=")
        if bool(self.model) != bool(self.examples):
            raise ValueError("model= and examples= go together: an encoder, and a .tar file that it reads")


def record_run(run: RunDir, options: DropinOptions) -> QKVSource:
    """Record q, k and v in the best model of a run, on ``options.n`` random validation examples.

    Only examples whose first sequence has more tokens than the largest count are drawn.

    Raises:
        ValueError: the mechanism is not softmax attention over all tokens or has a position bias, or there are too few
            such examples.
    """
    r = run.result
    experiment = restore.restore_experiment(run, options.data.root)
    model, data = restore.load_model_and_data(run, experiment)
    # Errors are measured against softmax attention, so the run must have it.
    attentions = mechanisms(model).values()
    if not attentions or not all(map(_is_softmax, attentions)):
        raise ValueError(
            f"run={run.path} has attn={r.label}; name a run of sdpa or softmax, not causal and with softmax weights"
        )

    # Draw n of the long examples.
    largest = max(options.counts)
    lengths = data.splits["val"].lengths.clamp(max=data.limit)  # (n,T)
    is_long = lengths[:, 0] > largest
    long = is_long.nonzero()[:, 0].numpy()
    if len(long) < options.n:
        raise ValueError(f"n={options.n}: {run.path} has {len(long)} validation examples of more than {largest} tokens")
    generator = np.random.default_rng(options.seed)
    indices = generator.choice(long, options.n, replace=False)

    # The first sequence of the first call of every mechanism: the first text of a pair.
    examples = []
    for index in indices:
        batch = data.gather("val", np.array([index]))
        layers = []
        for first_call, *_ in record_calls(model, batch).values():
            layers.append(without_padding(**first_call.arguments))
        examples.append(layers)

    # The description of the source; errors are added to earlier ones of the same description only.
    num_tokens = []
    for first_layer, *_ in examples:
        q, _, _ = first_layer
        num_tokens.append(q.shape[2])
    about = f"{r.task} {r.label} {run.path.name} ({r.fingerprint[:8]}), test {r.test:.1f}"
    about += f", {min(num_tokens)} to {max(num_tokens)} tokens"
    return QKVSource(f"{r.study}-{r.task}-{r.label}-{run.path.name}", about, examples)


def _is_softmax(attention: Attention) -> bool:
    """Return whether a mechanism computes softmax(q kᵀ / √D) v over all tokens."""
    if type(attention) is SDPA:
        return not attention.causal
    return type(attention) is Softmax and attention.weights == "softmax"


def without_padding(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias=None) -> QKV:
    """Select the real tokens of the first of N sequences: q, k (1,H,L,D), v (1,H,L,E).

    Raises:
        ValueError: the attention has a position bias.
    """
    if bias is not None:
        raise ValueError("attention with a position bias is not softmax(q kᵀ); name a run of another block")
    is_real = torch.ones(q.shape[2], dtype=torch.bool) if mask is None else mask[0]
    return q[:1, :, is_real], k[:1, :, is_real], v[:1, :, is_real]


def record_encoder(model: Path, examples: Path, options: DropinOptions) -> QKVSource:
    """Record q, k and v in an encoder of transformers, on ``options.n`` random test examples.

    Only texts of at least ``options.length`` tokens, to which they are truncated, are used; all images are.

    Args:
        model: folder of the encoder, or its name on the hub.
        examples: path of a tar file, see ``draw_files``.
        options: options of the study.

    Raises:
        ValueError: the encoder or the examples cannot be loaded, or there are too few such examples.
    """
    # The encoder needs an optional dependency.
    try:
        from ..encoder import load
    except ImportError as error:
        raise ValueError(f"model={model}: {error}") from None

    encoder = load(model, pool="mean", length=options.length, size=options.size, device="cpu")
    contents, _ = draw_files(examples, "test", options.drawn, options.seed, option="drawn")
    is_image = encoder.tokenizer is None

    # Archives are usually sorted by class, so the examples are shuffled.
    order = np.random.default_rng(options.seed).permutation(len(contents))
    recorded = []
    for i in order:
        layers = encoder.qkv(contents[i])
        q = layers[0][0]
        if is_image or q.shape[2] == options.length:
            recorded.append(layers)
        if len(recorded) == options.n:
            break
    if len(recorded) < options.n:
        description = "images" if is_image else f"texts that fill length={options.length}"
        count = f"only {len(recorded)} of drawn={options.drawn} examples are {description}"
        raise ValueError(f"{count}, but n={options.n}; increase drawn")

    first_q = recorded[0][0][0]
    _, H, L, _ = first_q.shape
    about = f"{model}, {examples.name}, {options.drawn} drawn, {len(recorded[0])} layers of {H} heads, {L} tokens"
    return QKVSource(f"{model.name}-{L}", about, recorded)


def sources(options: DropinOptions) -> Iterator[QKVSource]:
    """Yield every source that the options name."""
    for kind in options.sources:
        yield generate(kind, options)
    if options.run:
        for run in finished(options.run, options.trust):
            yield record_run(run, options)
    if options.model and options.examples:
        yield record_encoder(options.model, options.examples, options)
