"""One experiment: a configuration of ``lra.train`` as a value, and the model and the data that it stands for."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from pydantic import Field
from torch import nn

from ..console import first_line
from ..model.classifier import Classifier
from ..model.embed import FeatureEmbedding, TokenEmbedding
from ..model.init import lecun_normal_
from ..model.pretrainer import Pretrainer
from ..options import flatten
from . import blocks, schema
from .options import MechanismOptions, TaskOptions
from .quoting import report_command
from .schema import Block, Loggers, Name, Seeds

if TYPE_CHECKING:
    from ..data.datamodule import Batch, TaskData

# Default minimum of ``eval_batch`` on a GPU. If memory runs out, ``LitClassifier`` evaluates fewer examples at a time.
MIN_GPU_EVAL_BATCH = 512
# Sections that decide the modules of the meta model, which ``replace`` drops if one of them changes. A change of
# data.pad leaves only the flags ``packed`` and ``grouped`` of the meta model out of date.
_OF_MODEL = {"task", "protocol", "model", "block", "attn"}

# Sections that decide the result of a seed, without the seed itself. The logger, for example, decides nothing.
_CHOICES = ("task", "source", "model", "block", "attn", "protocol", "pretrain", "optim", "data", "trainer")
# Options in these sections that change no result: display, names of columns, paths (the provenance identifies the data
# instead), machine. The evaluation batch changes few scores, see docs/devices.md.
_NOT_IDENTIFYING = {"task.display", "source.columns", "data.root", "data.release", "data.eval_batch", "pretrain.from"}
_NOT_IDENTIFYING |= {f"trainer.{key}" for key in ("device", "devices", "compile", "threads")}


class Experiment(MechanismOptions, TaskOptions):
    """All seeds of one configuration.

    Each option is a key of ``conf/train.yaml`` or of a yaml that it includes. Methods make the model and the data.
    """

    conf: ClassVar[str] = "train"

    seeds: Seeds
    study: Name
    label_keys: list[str] = Field([])
    runs: Path
    model: schema.Model
    optim: schema.Optim
    data: schema.Data
    block: Block
    pretrain: schema.Pretrain
    trainer: schema.Trainer
    logger: Loggers = Field({})

    def check_pretraining(self) -> None:
        """Raise ValueError unless the pretraining options fit the task and the model."""
        task = self.task
        pretrain = self.pretrain
        option = f"pretrain={pretrain.objective}"
        is_pixels = task.display == "pixels"
        is_real = task.features is not None
        if task.masked_id is not None:
            masked_pixel = self.protocol.masked_pixel
            reason = "the mask would reveal the image"
            raise ValueError(f"protocol.masked_pixel must be null with {option}, not {masked_pixel}: {reason}")
        if self.model.has_class_token:
            raise ValueError(f"model.pool must be mean, last or flatten with {option}, not {self.model.pool}")
        if is_real and pretrain.loss != "l1":
            raise ValueError(f"pretrain.loss must be l1 with task={task.name}, whose inputs are real numbers")
        if task.vocab is not None and pretrain.loss == "l1" and not is_pixels:
            reason = "whose inputs are token ids, not grey levels"
            raise ValueError(f"pretrain.loss must be cross_entropy with task={task.name}, {reason}")
        if pretrain.mask_id == "padding" and (is_pixels or is_real):
            raise ValueError(f"pretrain.mask_id must be own with task={task.name}, which has no id of padding")

    def resolve(self) -> Self:
        """Compute the steps of pretraining and fine-tuning; ``pretrain.matched`` takes both from ``optim.steps``.

        Raises:
            ValueError: the batches, evaluations or warm-up of a phase do not fit its steps, or no steps are left.
        """
        pretrain = self.pretrain
        optim = self.optim
        # With pretrain=none, drop the other ``pretrain`` options, which the yaml of an experiment may still set.
        if pretrain.objective == "none":
            return self.replace(pretrain=schema.Pretrain(objective="none"))

        # Default: ``optim.steps``; if matched, half of them, rounded down to whole evaluation intervals.
        steps = pretrain.steps
        if steps is None:
            steps = optim.steps
            if pretrain.matched:
                intervals = optim.steps // 2 // pretrain.eval_every
                steps = max(1, intervals * pretrain.eval_every)
            pretrain = pretrain.replace(steps=steps)

        # Matched: both phases together see as many examples as training without pretraining.
        if pretrain.matched:
            examples = steps * pretrain.batch
            matched_steps, remainder = divmod(examples, optim.batch)
            if remainder or matched_steps >= optim.steps:
                raise ValueError(
                    f"pretrain.matched: pretrain.steps · pretrain.batch = {examples} must be a multiple of "
                    f"optim.batch={optim.batch} and less than optim.batch · optim.steps (optim.steps={optim.steps})"
                )
            optim = optim.replace(steps=optim.steps - matched_steps)
        # Raises ValueError if the schedule of pretraining does not fit its steps.
        pretrain.pretraining_optim(optim)
        return self.replace(pretrain=pretrain, optim=optim)

    def replace(self, **options: Any) -> Self:
        experiment = super().replace(**options)
        if _OF_MODEL & options.keys():
            experiment.__dict__.pop("meta_model", None)
        return experiment

    @property
    def home(self) -> Path:
        """The folder of the seeds."""
        return self.runs / self.study / self.task.name / self.label

    @property
    def report_command(self) -> str:
        """The command that prints the tables of the study."""
        return report_command(self.study, self.runs)

    @property
    def pretrained(self) -> bool:
        """Whether the encoder is pretrained."""
        return self.pretrain.objective != "none"

    def block_factory(self) -> Callable[..., nn.Module]:
        """Make a factory of the encoder's blocks, see ``blocks.block_factory``."""
        # The learned class vector is one more position.
        num_class_vectors = 1 if self.model.pool == "class" else 0
        length = self.task.length + num_class_vectors
        return blocks.block_factory(model=self.model, attn=self.attn, block=self.block, length=length)

    def classifier(self) -> Classifier:
        """Make the model, with weights drawn by torch's RNG in its current state.

        Raises:
            ValueError: options of model, block and attn do not go together.
        """
        model = self.model
        task = self.task
        classifier = Classifier(
            embed=self._embedding(),
            block=self.block_factory(),
            layers=model.layers,
            dim=model.dim,
            length=task.length,
            vocab=task.vocab,
            hidden=model.hidden,
            outputs=task.outputs,
            towers=task.towers,
            pool=model.pool,
            class_std=model.embed_std,
            mean_over=self.protocol.mean_over,
            norm=model.norm,
            head=model.head,
            packed=self.data.pad == "none",
        )
        if model.init == "lecun":
            lecun_normal_(classifier)
        return classifier

    def _embedding(self) -> nn.Module:
        """Make the embedding that ``model.embed`` names, else the default for the task's tokens or features."""
        shared: dict[str, Any] = {"length": self.task.length, "dim": self.model.dim, "dropout": self.model.dropout}
        if self.model.embed is not None:
            # Options of ``model.embed`` take precedence.
            missing = {key: value for key, value in shared.items() if key not in self.model.embed.options}
            return self.model.embed(**missing)
        has_positions = self.model.positions == "learned"
        if self.task.vocab is None:
            return FeatureEmbedding(features=self.task.features, positions=has_positions, **shared)
        return TokenEmbedding(vocab=self.task.vocab, std=self.model.embed_std, positions=has_positions, **shared)

    def pretrainer(self) -> Pretrainer:
        """Make the encoder of the classifier with a prediction head, see ``lra.train.pretrain``."""
        # Cross-entropy predicts token ids; a regression predicts the features of a position, or its grey level.
        predicts_tokens = self.pretrain.loss == "cross_entropy"
        outputs = self.task.vocab if predicts_tokens else (self.task.features or 1)
        return Pretrainer(
            self.classifier(),
            dim=self.model.dim,
            outputs=outputs,
            loss=self.pretrain.loss,
            objective=self.pretrain.phase_objective(),
            mask_id=self.pretrain.mask_id,
        )

    @cached_property
    def meta_model(self) -> Classifier:
        """The classifier without memory for its weights, made once.

        Raises:
            ValueError: options do not go together, or a constructor lacks arguments.
        """
        try:
            try:
                with torch.device("meta"):
                    return self.classifier()
            except NotImplementedError:
                # Some constructors read values, which meta tensors do not have.
                return self.classifier().to("meta")
        except (TypeError, RuntimeError, OverflowError) as error:
            raise ValueError(f"the model of {self.label} cannot be built: {first_line(error)}") from error

    def task_data(self, seed: int = 0) -> "TaskData":
        """The batches of the task, not yet set up.

        Args:
            seed: seed of the order of the training examples.

        Raises:
            ValueError: options that the source does not take together.
        """
        # Imported here, because it imports Lightning: half of the start-up time of a command that reads no batches.
        from ..data.datamodule import TaskData

        return TaskData(
            source=self.data_source(),
            root=str(self.data.root),
            length=self.task.length,
            limit=self.task.limit,
            shift=self.task.shift,
            masked_id=self.task.masked_id,
            batch=self.optim.batch,
            micro_batch=self.optim.micro_batch,
            eval_batch=self.eval_batch,
            pad=self.padding,
            mask=self.data.mask,
            seed=seed,
        )

    def random_batch(self, device: str) -> "Batch":
        """Make a training batch of full-length sequences of random tokens or features, with random labels."""
        from ..data.datamodule import Batch

        task = self.task
        generator = torch.Generator().manual_seed(0)
        shape = (self.optim.batch, task.towers, task.length)
        if task.vocab is None:
            inputs = torch.randn(*shape, task.features, generator=generator)
        else:
            inputs = torch.randint(1, task.vocab, shape, generator=generator)
        if task.loss == "mse":
            label = torch.rand(shape[0], generator=generator)
        else:
            label = torch.randint(task.outputs, shape[:1], generator=generator)
        return Batch(inputs.to(device), None, label.to(device))

    @property
    def eval_batch(self) -> int:
        """Batch size in evaluation: ``data.eval_batch``, else ``optim.batch``, on a GPU usually at least 512."""
        batch = self.optim.batch
        if self.data.eval_batch:
            return self.data.eval_batch
        if self.trainer.device == "cpu" or not torch.cuda.is_available():
            return batch
        # Pretraining has large outputs, one per position. Batch-dependent mechanisms need the batch size of training.
        if self.pretrained or self.meta_model.encode_separately:
            return batch
        return max(batch, MIN_GPU_EVAL_BATCH)

    @property
    def padding(self) -> str:
        """The padding in use.

        ``auto`` becomes ``compact`` if that removes masked pixels without an effect on the result, else ``batch``.
        ``compact`` becomes ``batch`` if removing tokens would change the result.
        """
        pad = self.data.pad
        if pad not in ("auto", "compact"):
            return pad
        # Without ``task.masked_id`` there is nothing to remove; ``compact`` keeps its name and acts as ``batch``.
        if self.task.masked_id is None:
            return "batch" if pad == "auto" else "compact"
        # Removing masked pixels moves the real ones, which changes pretraining and some mechanisms.
        if self.pretrained or not self.meta_model.compactable:
            return "batch"
        return "compact"

    def choices(self, provenance: dict[str, Any]) -> dict[str, Any]:
        """The choices that decide the result of a seed, flat, with the provenance of its data."""
        options = self.to_dict()
        tree = {section: options[section] for section in _CHOICES}
        flat = flatten(tree | {"provenance": provenance})
        # Paths of files do not affect the result: the provenance has the content of the files.
        for option in getattr(self.source.function, "locations", ()):
            if f"source.{option}" in flat:
                flat[f"source.{option}"] = None
        return {key: value for key, value in flat.items() if key not in _NOT_IDENTIFYING}
