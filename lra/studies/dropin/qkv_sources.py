"""Sources of queries, keys and values: generated, a trained run of the suite, a pretrained encoder."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from ...attention.sdpa import SDPA
from ...attention.softmax import Softmax
from ...runs.open import Run, finished
from ...train import build
from ...train.restore import best
from ..transfer.compare import calls
from ..transfer.graft import mechanisms

Layer = tuple[Tensor, Tensor, Tensor]  # q, k (1,H,L,D), v (1,H,L,E), all tokens real
CLUSTERS, SPREAD, NOISE = 24, 1.5, 0.5  # of ``clustered``: deviations of the centres, and around them


class QKVSource(NamedTuple):
    """A source: the name of its column and folder, a description, and the layers of each example."""

    name: str
    about: str
    examples: list[list[Layer]]


def generated(kind: str, config: DictConfig) -> QKVSource:
    """Generate a source.

    Args:
        kind: ``gaussian``, independent normal numbers; ``clustered``, q and k around the same centres, v normal.
        config: configuration with seed, sizes and n.
    """
    draw = torch.Generator().manual_seed(config.seed)
    H, L, D = config.heads, config.length, config.head_dim
    normal = lambda *shape: torch.randn(1, H, *shape, generator=draw)

    def layer() -> Layer:
        if kind == "gaussian":
            return normal(L, D), normal(L, D), normal(L, D)
        centres = SPREAD * normal(CLUSTERS, D)
        near = lambda: (
            centres[0, torch.arange(H)[:, None], torch.randint(CLUSTERS, (H, L), generator=draw)] + NOISE * normal(L, D)
        )
        return near(), near(), normal(L, D)

    about = f"{H} heads of {D}"
    if kind == "clustered":
        about += f", {CLUSTERS} clusters, deviation {SPREAD} between them and {NOISE} within"
    return QKVSource(f"{kind}-{L}", about, [[layer()] for _ in range(config.n)])


def trained(run: Run, config: DictConfig) -> QKVSource:
    """Record dev examples with more tokens than the largest count in the run's best model.

    Args:
        run: finished.
        config: configuration with counts, n, seed and data.root.

    Raises:
        ValueError: the mechanism is not exact softmax attention, or there are too few such examples.
    """
    source, r = run.configuration(config.data.root), run.record
    data = build.task_data(source)
    data.setup()
    run.check_data(data.source.provenance)
    model = best(run, source)
    if not all(type(m) in (SDPA, Softmax) for m in mechanisms(model).values()):
        raise ValueError(f"run={run.folder} has attn={r.label}; name a run of sdpa or softmax")
    long = (data.row_lengths["val"] > max(config.counts)).nonzero()[:, 0].numpy()
    if len(long) < config.n:
        most = max(config.counts)
        raise ValueError(f"n={config.n}: {run.folder} has {len(long)} dev examples of more than {most} tokens")
    chosen = np.random.default_rng(config.seed).choice(long, config.n, replace=False)
    examples = []
    for index in chosen:
        with torch.no_grad():
            recorded = calls(model, data.gather("val", np.array([index])))
        examples.append([without_padding(**call.arguments) for (call, *_) in recorded.values()])
    lengths = [layers[0][0].shape[2] for layers in examples]
    about = f"{r.task} {r.label} {run.folder.name}, test {r.test:.1f}, {min(lengths)} to {max(lengths)} tokens"
    return QKVSource(f"{r.study}-{r.label}-{run.folder.name}", about, examples)


def without_padding(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias=None) -> Layer:
    """Select the real tokens of the first row: q, k (1,H,L,D), v (1,H,L,E).

    Raises:
        ValueError: the attention has a position bias.
    """
    if bias is not None:
        raise ValueError("attention with a position bias is not softmax(q kᵀ); name a run of another block")
    real = torch.ones(q.shape[2], dtype=torch.bool) if mask is None else mask[0]
    return q[:1, :, real], k[:1, :, real], v[:1, :, real]


def pretrained(config: DictConfig) -> QKVSource:
    """Record test examples in an encoder of transformers: images, or texts that fill ``length``.

    Raises:
        ValueError: the encoder cannot be loaded, or there are too few such examples.
    """
    try:
        from ..pretrained.__main__ import examples
        from ..pretrained.capture import captured
        from ..pretrained.encoder import load
    except ImportError as error:
        raise ValueError(f"model={config.model}: {error}") from None

    named = {key: config[key] for key in ("model", "length", "size")}
    encoder = load(OmegaConf.create({**named, "pool": "mean", "device": "cpu"}))
    contents, _ = examples(Path(config.examples), "test", config.drawn, config.seed)
    layers, recorded = [], []
    for index in np.random.default_rng(config.seed).permutation(len(contents)):  # examples are sorted by class
        layers = captured(encoder, contents[index])
        if encoder.tokenizer is None or layers[0][0].shape[2] == config.length:
            recorded.append(layers)
        if len(recorded) == config.n:
            break
    else:
        description = "images" if encoder.tokenizer is None else f"texts that fill length={config.length}"
        raise ValueError(f"{len(recorded)} of drawn={config.drawn} are {description}, and n={config.n}")
    H, L = layers[0][0].shape[1:3]
    about = f"{Path(config.examples).name}, {len(layers)} layers of {H} heads, {L} tokens"
    return QKVSource(f"{Path(config.model).name}-{L}", about, recorded)


def sources(config: DictConfig) -> Iterator[QKVSource]:
    """Yield every source that the configuration names."""
    for kind in config.sources:
        yield generated(kind, config)
    for run in finished(Path(config.run), config.trust) if config.run else []:
        yield trained(run, config)
    if config.model:
        yield pretrained(config)
