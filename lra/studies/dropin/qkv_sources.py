"""Sources of queries, keys and values, and the options of the study: generated, a trained run, a pretrained encoder."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import MinLen
from torch import Tensor

from ...attention.sdpa import SDPA
from ...attention.softmax import Softmax
from ...config.sections import Some, Threads, listed
from ...options import Positive, Range, Whole
from ...runs import restore
from ...runs.reader import finished
from ...runs.run_dir import RunDir
from ..examples import labelled
from ..qkv import Layer, QKVOptions, QKVSource, calls, generated, mechanisms
from .candidates import CANDIDATES


class DropinOptions(QKVOptions):
    conf: ClassVar[str] = "dropin"

    candidates: Some[Literal["all", *CANDIDATES]]
    counts: Some[Annotated[int, Range(2)]]
    n: Annotated[int, Range(2)]
    sources: Annotated[list[Literal["gaussian", "clustered"]], listed, MinLen(0)]
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


def trained(run: RunDir, options: DropinOptions) -> QKVSource:
    """Record dev examples with more tokens than the largest count in the best model of a finished run.

    Raises:
        ValueError: the mechanism is not exact softmax attention, or there are too few such examples.
    """
    r = run.record
    model, data = restore.trained(run, restore.configuration(run, options.data.root))
    if not all(type(m) in (SDPA, Softmax) for m in mechanisms(model).values()):
        raise ValueError(f"run={run.path} has attn={r.label}; name a run of sdpa or softmax")
    most = max(options.counts)
    long = (data.row_lengths["val"] > most).nonzero()[:, 0].numpy()
    if len(long) < options.n:
        raise ValueError(f"n={options.n}: {run.path} has {len(long)} dev examples of more than {most} tokens")
    examples = []
    for index in np.random.default_rng(options.seed).choice(long, options.n, replace=False):
        recorded = calls(model, data.gather("val", np.array([index])))
        examples.append([without_padding(**call.arguments) for (call, *_) in recorded.values()])
    lengths = [layers[0][0].shape[2] for layers in examples]
    about = f"{r.task} {r.label} {run.path.name}, test {r.test:.1f}, {min(lengths)} to {max(lengths)} tokens"
    return QKVSource(f"{r.study}-{r.label}-{run.path.name}", about, examples)


def without_padding(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias=None) -> Layer:
    """Select the real tokens of the first row: q, k (1,H,L,D), v (1,H,L,E).

    Raises:
        ValueError: the attention has a position bias.
    """
    if bias is not None:
        raise ValueError("attention with a position bias is not softmax(q kᵀ); name a run of another block")
    real = torch.ones(q.shape[2], dtype=torch.bool) if mask is None else mask[0]
    return q[:1, :, real], k[:1, :, real], v[:1, :, real]


def pretrained(options: DropinOptions) -> QKVSource:
    """Record test examples in an encoder of transformers: images, or texts that fill ``length``.

    Raises:
        ValueError: the encoder cannot be loaded, or there are too few such examples.
    """
    try:
        from ..encoder import load
    except ImportError as error:
        raise ValueError(f"model={options.model}: {error}") from None

    encoder = load(options.model, pool="mean", length=options.length, size=options.size, device="cpu")
    contents, _ = labelled(options.examples, "test", options.drawn, options.seed)
    order = np.random.default_rng(options.seed).permutation(len(contents))  # examples are sorted by class
    fills = lambda layers: encoder.tokenizer is None or layers[0][0].shape[2] == options.length
    recorded = list(islice(filter(fills, (encoder.qkv(contents[i]) for i in order)), options.n))
    if len(recorded) < options.n:
        description = "images" if encoder.tokenizer is None else f"texts that fill length={options.length}"
        raise ValueError(f"{len(recorded)} of drawn={options.drawn} are {description}, and n={options.n}")
    H, L = recorded[0][0][0].shape[1:3]
    about = f"{options.examples.name}, {len(recorded[0])} layers of {H} heads, {L} tokens"
    return QKVSource(f"{options.model.name}-{L}", about, recorded)


def sources(options: DropinOptions) -> Iterator[QKVSource]:
    """Yield every source that the configuration names."""
    for kind in options.sources:
        yield generated(kind, options)
    for run in finished(options.run, options.trust) if options.run else []:
        yield trained(run, options)
    if options.model:
        yield pretrained(options)
