"""Configuration -> task data and classifier: the only place that instantiates them."""

import copy
import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import nn

from ..attention.base import Attention, Mixer, Sizes
from ..config import calls
from ..config.compose import data_command
from ..data.datamodule import TaskData
from ..model.blocks import PreNorm
from ..model.classifier import Classifier
from ..model.embed import FeatureEmbedding, TokenEmbedding
from ..model.initial import lecun_normal_
from ..model.multihead import Multihead
from ..model.pretrainer import Pretrainer
from ..ops import triton as kernels
from ..runs.checkpoint import disk_bytes

ON_A_GPU = 512  # examples of a forward pass in evaluation; halved if memory runs out


def task_data(config: DictConfig, seed: int = 0) -> TaskData:
    """Raises ValueError for options that the source does not take together."""
    source = instantiate(config.source)
    source.command = data_command(config)
    return TaskData(
        source=source,
        root=config.data.root,
        length=config.task.length,
        limit=config.task.limit,
        shift=config.task.shift,
        masked_id=config.task.masked_id,
        batch=config.optim.batch,
        micro_batch=config.optim.micro_batch,
        eval_batch=eval_batch(config),
        pad=padding(config),
        mask=config.data.mask,
        seed=seed,
    )


def eval_batch(config: DictConfig) -> int:
    """Examples of a forward pass in evaluation: ``data.eval_batch``, or that of training, and on a GPU at least 512.

    If the examples of a batch change each other's result, that of training everywhere; with a pretraining too, whose
    outputs for every position take more memory.
    """
    batch = config.optim.batch
    if config.data.eval_batch or config.trainer.device == "cpu" or not torch.cuda.is_available():
        return config.data.eval_batch or batch
    return batch if pretrained(config) or sketch(config).by_tower else max(batch, ON_A_GPU)


def padding(config: DictConfig) -> str:
    """The padding that is used: ``compact`` only for a model that it leaves as it is, ``auto`` if it is shorter too."""
    pad = config.data.pad
    if pad == "auto" and config.task.masked_id is None:
        return "batch"
    return ("batch" if keeps_holes(config) else "compact") if pad in ("auto", "compact") else pad


def keeps_holes(config: DictConfig) -> bool:
    """Whether rows have holes, masked tokens between others, and the result or a pretraining depends on them."""
    return config.task.masked_id is not None and (pretrained(config) or not sketch(config).hole_free)


def pretrained(config: DictConfig) -> bool:
    """Whether the encoder has a phase one."""
    return config.pretrain.objective != "none"


def unavailable(config: DictConfig) -> str | None:
    """The reason why the mechanism of a configuration cannot run here, None if it can."""
    if OmegaConf.is_missing(config.attn, "_target_"):
        return f"attn={config.label} names no mechanism; say which with attn._target_=package.module.Class"
    if config.attn.get("requires") == "gpu" and not (torch.cuda.is_available() or kernels.interpreted()):
        return f"attn={config.label} needs a GPU, torch sees none; attn={config.attn.otherwise} is the same without one"
    return None


def classifier(config: DictConfig) -> Classifier:
    """Raises ValueError for options of model, block and attn that do not go together."""
    model, task, vocab = config.model, config.task, config.task.get("vocab")
    if model.embed is not None:
        embed = instantiate(model.embed)
    elif vocab is None:
        embed = partial(FeatureEmbedding, features=task.features, positions=model.positions == "learned")
    else:
        positions = model.positions == "learned"
        embed = partial(TokenEmbedding, vocab=vocab, std=model.embed_std, positions=positions)
    made = Classifier(
        embed=embed(**{"length": task.length, "dim": model.dim, "dropout": model.dropout} | embed.keywords),
        block=block_factory(config),
        layers=model.layers,
        dim=model.dim,
        length=task.length,
        vocab=vocab,
        hidden=model.hidden,
        outputs=task.outputs,
        towers=task.towers,
        pool=model.pool,
        class_std=model.embed_std,
        mean_over=config.protocol.mean_over,
        norm=model.norm,
        head=instantiate(model.head),
        packed=config.data.pad == "none",
    )
    if model.init == "lecun":
        lecun_normal_(made)
    return made


def pretrainer(config: DictConfig) -> Pretrainer:
    """The encoder of the configured classifier with the head of phase one, see ``lra.train.pretrain``."""
    task, own = config.task, config.pretrain
    return Pretrainer(
        classifier(config),
        dim=config.model.dim,
        outputs=task.vocab if own.loss == "cross_entropy" else task.get("features", 1),
        loss=own.loss,
        objective=own.objective,
        mask_id=own.get("mask_id", "own"),
    )


def sketch(config: DictConfig) -> Classifier:
    """The classifier without memory for its weights, to see whether it can be had.

    Raises ValueError as ``classifier`` does, for arguments that a constructor lacks, and for weights that with their
    gradients and two moments are more than this machine's memory.
    """
    try:
        try:
            with torch.device("meta"):
                made = classifier(config)
        except NotImplementedError:  # some constructors read values, which meta tensors do not have
            return classifier(config)
    except (TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"attn={config.label} cannot be built: {str(error).splitlines()[0]}") from error
    params = sum(p.numel() for p in made.parameters())
    needed, there = disk_bytes(params) / 2**30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    if needed > there:
        raise ValueError(f"{params:,} parameters take {needed:,.0f} GB to train, this machine has {there:,.0f}")
    return made


def fits(config: DictConfig, data: TaskData) -> None:
    """Raise ValueError for labels or tokens of the data that the model or the loss of the task is not made for."""
    task, kind = config.task, loss(config)
    for name, split in data.splits.items():
        real = split.labels.is_floating_point()
        if real != (kind == "mse"):
            wanted, labels = ("mse", "real numbers") if real else ("cross_entropy", "classes")
            raise ValueError(f"task.loss must be {wanted} for labels that are {labels}, as those of {name}, not {kind}")
        if not real and int(split.labels.max()) >= task.outputs:
            raise ValueError(f"task.outputs must be above the largest label of {name}, {int(split.labels.max())}")
        if not real and int(split.labels.min()) < 0:
            raise ValueError(f"labels must be 0 or more, not {int(split.labels.min())}, the least of {name}")
        tokens = split.tokens if hasattr(split, "tokens") else split.gather(torch.arange(min(64, len(split))), 64)[0]
        if tokens.is_floating_point() != ("features" in task) or ("features" in task) == ("vocab" in task):
            raise ValueError(f"task={task.name} needs {'features' if tokens.is_floating_point() else 'vocab'} alone")
        if "features" in task and tokens.shape[-1] != task.features:
            raise ValueError(f"task.features must be {tokens.shape[-1]}, not {task.features}")
        own = config.model.pool == "cls"  # the last id is that of the class token
        if "vocab" in task and (last := int(tokens.max()) + task.shift) >= task.vocab - own:
            above = f"{last + own}, the class token's" if own else f"{last} with task.shift={task.shift}"
            raise ValueError(f"task.vocab must be above the largest id of {name}, {above}")


def loss(config: DictConfig) -> str:
    """The kind of loss, cross entropy if the task names none."""
    return config.task.get("loss", "cross_entropy")


def block_factory(config: DictConfig) -> Callable[..., nn.Module]:
    """A factory of blocks: the attn word may name an Attention, a Mixer or a whole Block.

    A block that takes an ``attention`` is handed the Attention itself, any other one a Mixer around it.

    Its argument says whether the block is the encoder's first; a Block that takes ``first`` is told, because what its
    memory begins with is learned there only. A Block has ``model.dropout`` unless ``attn.dropout`` is said.
    """
    model = config.model
    length = config.task.length + (model.pool == "class")  # room for the class token
    mechanism, shell = instantiate(_mechanism(config)), instantiate(config.block)
    kind = mechanism.func
    if not inspect.isclass(kind):
        raise ValueError(f"attn._target_ must name a class, not {kind}")
    holds_attention = "attention" in inspect.signature(shell).parameters  # it has projections of its own
    rotary = model.positions == "rotary"
    if rotary and (holds_attention or not issubclass(kind, Attention)):
        held_by = shell.func.__name__ if holds_attention else kind.__name__
        raise ValueError(f"model.positions must be learned or none for {held_by}, which has positions of its own")
    if holds_attention and not issubclass(kind, Attention):
        raise ValueError(f"{shell.func.__name__} needs a mechanism of queries, keys and values, not {kind.__name__}")
    place = {"heads": model.heads, "head_dim": model.head_dim or model.dim // model.heads, "length": length}
    sizes = Sizes(**place, value_dim=place["head_dim"])
    whole = not issubclass(kind, Attention | Mixer)
    if whole and shell.func is not PreNorm:
        raise ValueError(
            f"block must be prenorm with {kind.__name__}, which is a block of its own and is put in no other"
        )
    dropout = config.attn.get("dropout", model.dropout if whole else 0.0)

    @_said_as("attn", kind, heads="model", head_dim="model", dim="model")
    def made(sizes: Sizes, **more) -> nn.Module:
        return mechanism(replace(sizes, dropout=dropout), **more)

    if whole:
        block = partial(made, sizes, dim=model.dim, hidden=model.hidden)
        told = "first" in inspect.signature(kind).parameters
    else:
        if holds_attention:
            held = partial(shell, made, length=length)
        elif issubclass(kind, Attention):
            held = partial(shell, partial(Multihead, made, dim=model.dim, rotary=rotary, **place))
        else:
            held = partial(shell, partial(made, sizes, dim=model.dim))
        said_as = _said_as("block", shell.func, dim="model", hidden="model", dropout="model", length="task")
        block = said_as(partial(held, dim=model.dim, hidden=model.hidden, dropout=model.dropout))
        told = "first" in inspect.signature(held).parameters
    return lambda first=True: block(first=first) if told else block()


def _mechanism(config: DictConfig) -> DictConfig:
    """The constructor call of attn, without what is said about the machine and the ``Sizes``."""
    node = copy.copy(config.attn)
    with open_dict(node):
        for key in ("requires", "otherwise", "dropout"):
            node.pop(key, None)
    return node


@contextmanager
def _said_as(section: str, constructor: Callable, **sections: str) -> Iterator[None]:
    """Say options in a ValueError as the command line does: ``count must be ...`` becomes ``attn.count must be ...``.

    section: of the constructor's own options; sections: of what it is handed.
    """
    try:
        yield
    except ValueError as error:
        words = dict.fromkeys(calls.options(constructor)[0], section) | sections
        if (word := re.match(r"\w*", str(error))[0]) in words:
            error.args = (f"{words[word]}.{error}",)
        raise
