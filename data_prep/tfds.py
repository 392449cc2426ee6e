"""The sources as TFDS builders, for users of TensorFlow and JAX; nothing here needs TensorFlow.

    from data_prep.tfds import Listops
    builder = Listops(data_dir=...)
    builder.download_and_prepare()
    train = builder.as_data_source("train")

Another source needs a subclass of SourceBuilder with VERSION, BUILDER_CONFIGS, KEYS, ``features`` and, unless an input
is one sequence as stored, ``value``.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds
import torch
from torch import Tensor

from lra.data.source import Source
from lra.data.split import Examples

from .adding import Adding
from .expressions import decode
from .image import Image
from .listops import ListOps
from .pathfinder.generator import Pathfinder
from .pathfinder.paddles import SETTINGS
from .recall import Recall
from .retrieval import Retrieval
from .synthetic import LENGTHS
from .temporal_order import TemporalOrder
from .text import Text


@dataclass(eq=False)
class SourceConfig(tfds.core.BuilderConfig):
    """A named choice of the source's arguments: SourceConfig(name="small", source=ListOps(train=100, ...))."""

    source: Source | None = None


# The base class has no type stubs, so that its keyword is unknown.
class SourceBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """A builder that prepares the config's source in TFDS's download folder and copies it in the same order."""

    KEYS: ClassVar[tuple[str, str]]  # input and target, for as_supervised

    def __init__(self, *, file_format: str = "array_record", **options):
        super().__init__(file_format=file_format, **options)

    @abstractmethod
    def features(self) -> tuple[Any, Any]:
        """The features of KEYS."""

    def value(self, sequences: list[Tensor]) -> Any:
        """Make the input of an example from its T sequences (length,) or (length, F) of stored tokens; T is 1 here."""
        # Images are stored as sequences of pixels.
        feature = self.info.features[self.KEYS[0]]
        return sequences[0].view(feature.shape).numpy()

    def _info(self) -> tfds.core.DatasetInfo:
        features = dict(zip(self.KEYS, self.features(), strict=True))
        return tfds.core.DatasetInfo(
            builder=self,
            description=type(self).__doc__,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=self.KEYS,
            # Keep the order of the store.
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator]:
        # The store stands in TFDS's folder of downloads.
        source = self.builder_config.source
        root = Path(dl_manager.download_dir)
        if source.stored:
            source.prepare(root)
        splits = source.load(root)
        return {name: self._generate_examples(split) for name, split in splits.items()}

    def _generate_examples(self, split: Examples) -> Iterator[tuple[int, dict[str, Any]]]:
        input_key, target_key = self.KEYS
        widths = split.lengths.amax(1).tolist()
        labels = split.labels.tolist()
        for number, width in enumerate(widths):
            index = torch.tensor([number])
            tokens, mask = split.gather(index, width)  # (1,T,width[,F]), (1,T,width)
            # Without padding.
            sequences = [tower[real] for tower, real in zip(tokens[0], mask[0], strict=True)]
            yield number, {input_key: self.value(sequences), target_key: labels[number]}


class Listops(SourceBuilder):
    """ListOps: nested expressions over digits (MIN, MAX, MED, SM) of 501 to 1999 tokens and their value, one digit."""

    VERSION = tfds.core.Version(ListOps.version)
    BUILDER_CONFIGS: ClassVar = [SourceConfig(name="lra", description="The paper's sizes.", source=ListOps())]
    KEYS = ("source", "target")

    def features(self) -> tuple[Any, Any]:
        return tfds.features.Text(), tfds.features.ClassLabel(num_classes=10)

    def value(self, sequences: list[Tensor]) -> str:
        return decode(sequences[0])


class LraText(SourceBuilder):
    """Text: IMDb reviews in bytes, negative or positive."""

    VERSION = tfds.core.Version(Text.version)
    BUILDER_CONFIGS: ClassVar = [
        SourceConfig(name="lra", description="The test set is also the validation set.", source=Text()),
        SourceConfig(name="held_out", description="2,500 of train are the validation set.", source=Text(hold_out=2500)),
    ]
    KEYS = ("text", "label")

    def features(self) -> tuple[Any, Any]:
        return tfds.features.Text(), tfds.features.ClassLabel(names=["neg", "pos"])

    def value(self, sequences: list[Tensor]) -> bytes:
        return sequences[0].numpy().tobytes()


class LraImage(SourceBuilder):
    """Image: CIFAR-10 in 8-bit grey, (32, 32)."""

    VERSION = tfds.core.Version(Image.version)
    BUILDER_CONFIGS: ClassVar = [SourceConfig(name="lra", description="45,000, 5,000, 10,000.", source=Image())]
    KEYS = ("image", "label")

    def features(self) -> tuple[Any, Any]:
        pixels = tfds.features.Tensor(shape=(32, 32), dtype=np.uint8)
        return pixels, tfds.features.ClassLabel(num_classes=10)


class LraRetrieval(SourceBuilder):
    """Retrieval: the texts of two papers in bytes, and whether one cites the other."""

    VERSION = tfds.core.Version(Retrieval.version)
    BUILDER_CONFIGS: ClassVar = [SourceConfig(name="lra", description="The release's pairs.", source=Retrieval())]
    KEYS = ("texts", "label")

    def features(self) -> tuple[Any, Any]:
        texts = tfds.features.Sequence(tfds.features.Text(), length=2)
        return texts, tfds.features.ClassLabel(num_classes=2)

    def value(self, sequences: list[Tensor]) -> list[bytes]:
        return [sequence.numpy().tobytes() for sequence in sequences]


class LraPathfinder(SourceBuilder):
    """Pathfinder: are the two round markers of a grey image (size, size) on one dashed curve? 128 is Pathfinder-X."""

    VERSION = tfds.core.Version(Pathfinder.version)
    BUILDER_CONFIGS: ClassVar = [
        SourceConfig(name=f"{size}", description=f"{size} x {size}, curves of 14.", source=Pathfinder(size=size))
        for size in SETTINGS
    ]
    KEYS = ("image", "label")

    def features(self) -> tuple[Any, Any]:
        size = self.builder_config.source.size
        pixels = tfds.features.Tensor(shape=(size, size), dtype=np.uint8)
        return pixels, tfds.features.ClassLabel(num_classes=2)


class AddingProblem(SourceBuilder):
    """Adding: pairs (value, mark); the target in [0, 1] is half plus a quarter of the sum of the two marked values."""

    VERSION = tfds.core.Version(Adding.version)
    BUILDER_CONFIGS: ClassVar = [
        SourceConfig(name=f"{n}", description=f"{n} pairs.", source=Adding(length=n)) for n in LENGTHS
    ]
    KEYS = ("pairs", "target")

    def features(self) -> tuple[Any, Any]:
        shape = (self.builder_config.source.length, 2)
        return tfds.features.Tensor(shape=shape, dtype=np.float32), np.float32


class TemporalOrderProblem(SourceBuilder):
    """Temporal order: noise over a, b, c, d and two symbols, X or Y each; the label is these two, first to last."""

    VERSION = tfds.core.Version(TemporalOrder.version)
    BUILDER_CONFIGS: ClassVar = [
        SourceConfig(name=f"{n}", description=f"{n} symbols.", source=TemporalOrder(length=n)) for n in LENGTHS
    ]
    KEYS = ("symbols", "label")

    def features(self) -> tuple[Any, Any]:
        classes = list(TemporalOrder.classes)
        shape = (self.builder_config.source.length,)
        symbols = tfds.features.Tensor(shape=shape, dtype=np.uint8)
        return symbols, tfds.features.ClassLabel(names=classes)


class AssociativeRecall(SourceBuilder):
    """Associative recall: key-value pairs, filler and one query of a key, a token each; the label is its value."""

    VERSION = tfds.core.Version(Recall.version)
    BUILDER_CONFIGS: ClassVar = [
        SourceConfig(name=f"{n}", description=f"{n} tokens, 4 pairs.", source=Recall(length=n)) for n in Recall.lengths
    ]
    KEYS = ("tokens", "label")

    def features(self) -> tuple[Any, Any]:
        source = self.builder_config.source
        tokens = tfds.features.Tensor(shape=(source.length,), dtype=np.int16)
        return tokens, tfds.features.ClassLabel(num_classes=source.values)
