"""A pretrained encoder of transformers: unit embeddings of files, and the inputs of its attention."""

import copy
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ..integrations import needs
from ..integrations.huggingface import padding, register
from ..train.device import select_device

with needs("hf", __name__):
    from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, AutoTokenizer, PreTrainedModel

# Name under which ``Encoder.qkv`` registers the attention that records its inputs.
RECORDING = "lra_recording"
# Mean and standard deviation of ImageNet's colours, which DINOv2 expects. Every image model gets them: its own
# preprocessor_config.json is not read.
MEAN = torch.tensor([0.485, 0.456, 0.406])
STD = torch.tensor([0.229, 0.224, 0.225])


@dataclass
class Encoder:
    """A pretrained model of transformers on a device.

    Args:
        model: the model, in evaluation mode.
        tokenizer: None for a model of images.
        pool: ``mean`` over the real tokens, or ``cls``, the first token.
        length: maximum number of tokens of a text.
        size: pixels of an image's side.
        device: device of the model.
    """

    model: PreTrainedModel
    tokenizer: Any
    pool: str
    length: int
    size: int
    device: str

    def __call__(self, contents: list[bytes]) -> Tensor:
        """Embed contents as unit vectors (n, d), with gradients."""
        if self.tokenizer is None:
            hidden = self._encode_images(contents)
            mask = None
        else:
            hidden, mask = self._encode_texts(contents)

        # Pool the hidden states (n, L, d), and normalise to length 1.
        if self.pool == "cls":
            pooled = hidden[:, 0]
        elif mask is None:
            pooled = hidden.mean(1)
        else:
            pooled = (hidden * mask).sum(1) / mask.sum(1)
        return F.normalize(pooled, dim=-1)

    def _encode_images(self, contents: list[bytes]) -> Tensor:
        """Compute the last hidden states of images: (n, L, d)."""
        images = torch.stack([self._preprocess(content) for content in contents])
        return self.model(pixel_values=images.to(self.device)).last_hidden_state

    def _encode_texts(self, contents: list[bytes]) -> tuple[Tensor, Tensor]:
        """Compute the last hidden states (n, L, d) of texts, and their mask (n, L, 1)."""
        texts = [content.decode("utf-8", "replace") for content in contents]
        tokens = self.tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self.length,
            return_tensors="pt",
        )
        tokens = tokens.to(self.device)
        hidden = self.model(**tokens).last_hidden_state
        return hidden, tokens["attention_mask"][..., None]

    @torch.no_grad()
    def embed(self, contents: list[bytes], batch: int) -> Tensor:
        """Embed contents as unit vectors (n, d) on the CPU, without gradients.

        Args:
            contents: bytes of texts or images.
            batch: number of contents per forward pass; contents of similar length share a batch to save padding.
        """
        order = sorted(range(len(contents)), key=lambda i: len(contents[i]))
        parts = []
        for start in range(0, len(order), batch):
            indices = order[start : start + batch]
            parts.append(self([contents[i] for i in indices]).cpu())
        # Undo the sorting.
        inverse = torch.tensor(order).argsort()
        return torch.cat(parts)[inverse]

    def with_cur(self, **options) -> "Encoder":
        """Copy the encoder with CUR attention, with options of ``cur_attention``; position 0 is always selected."""
        register()
        model = copy.deepcopy(self.model)
        model.set_attn_implementation("cur")
        model.config.cur = options
        return replace(self, model=model)

    @torch.no_grad()
    def qkv(self, content: bytes) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Record q, k and v (1,H,L,D) of every layer for one example, scaled so that scores are q kᵀ / √D.

        Raises:
            ValueError: a layer has a mask, a position bias or different numbers of queries and keys.
        """
        recorded = []

        def attend(module, query, key, value, attention_mask, scaling=None, **options):
            """Compute exact attention behind the interface of transformers, and record its inputs."""
            has_bias = options.get("position_bias") is not None
            if attention_mask is not None or query.shape != key.shape or has_bias:
                reason = "a mask, a position bias or different numbers of queries and keys"
                raise ValueError(f"{type(module).__name__} has {reason}: its attention is not softmax(q kᵀ) v")
            # Another scaling than 1 / √D becomes part of the queries.
            if scaling is not None:
                query = query * (scaling * query.shape[-1] ** 0.5)
            recorded.append((query.cpu(), key.cpu(), value.cpu()))
            out = F.scaled_dot_product_attention(query, key, value)
            return out.transpose(1, 2).contiguous(), None

        # The previous implementation is restored afterwards.
        original = self.model.config._attn_implementation
        AttentionInterface.register(RECORDING, attend)
        AttentionMaskInterface.register(RECORDING, padding)
        self.model.set_attn_implementation(RECORDING)
        try:
            self([content])
        finally:
            self.model.set_attn_implementation(original)
        return recorded

    def _preprocess(self, content: bytes) -> Tensor:
        """Decode, resize and normalise an image: (3, size, size)."""
        image = Image.open(io.BytesIO(content)).convert("RGB")
        image = image.resize((self.size, self.size), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image)) / 255  # (size, size, 3)
        return ((pixels - MEAN) / STD).permute(2, 0, 1)


def load(path: Path, *, pool: str, length: int, size: int, device: str) -> Encoder:
    """Load an encoder of transformers.

    Args:
        path: folder of the model, or its name on the hub.
        pool, length, size: see ``Encoder``.
        device: auto | cpu | cuda.

    Raises:
        ValueError: the model or the device is not available.
    """
    device = select_device(device)
    try:
        model = AutoModel.from_pretrained(str(path), attn_implementation="sdpa")
        tokenizer = None
        # A model of texts takes ids, a model of images pixels.
        if model.main_input_name == "input_ids":
            tokenizer = AutoTokenizer.from_pretrained(str(path))
    except OSError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"model={path} cannot be loaded: {reason[:200]}") from None
    return Encoder(model.eval().to(device), tokenizer, pool, length, size, device)
