"""Stock networks as people bring them, small: factories of (row shape, classes) for rows [1, 8, 8] and for tokens."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions with BatchNorm, and a way past them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + (x if self.downsample is None else self.downsample(x))
        return self.relu(out)


class ResNet18(nn.Module):
    """The layers and names of the usual ResNet-18, with narrower layers for small images."""

    def __init__(self, channels: int, classes: int, width: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        for n in range(1, 5):
            first = Block(sizes[n - 1], sizes[n], 2 if n in (2, 3) else 1)  # 2 x 2 remain of 8 x 8
            setattr(self, f"layer{n}", nn.Sequential(first, Block(sizes[n], sizes[n], 1)))
        self.fc = nn.Linear(sizes[4], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        for n in range(1, 5):
            x = getattr(self, f"layer{n}")(x)
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


class Encoder(nn.Module):
    """nn.TransformerEncoder over the lines of an image."""

    def __init__(self, features: int, classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Linear(features, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.embed(x.flatten(1, -2))).mean(1))
        return out


CALM: dict[str, Any] = {"method": "fedavg", "partition": "case1", "batch": 32, "lr": 0.005, "tau_0": 2}
# BatchNorm over a few rows of one label enlarges rounding a thousandfold per round; with these settings it does not


def resnet(shape: tuple[int, ...], classes: int) -> nn.Module:
    return ResNet18(shape[0], classes)


def encoder(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Encoder(shape[-1], classes)


def encoder_without_dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Encoder(shape[-1], classes, dropout=0.0)


def normed(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One convolution with BatchNorm: quick."""
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, classes))


def on_disk(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A frozen body from the file that FROZEN names, and a head that is trained."""
    body = nn.Linear(shape[0] * shape[1] * shape[2], 16)
    body.load_state_dict(torch.load(os.environ["FROZEN"], weights_only=True))
    return nn.Sequential(nn.Flatten(), body.requires_grad_(False), nn.Tanh(), nn.Linear(16, classes))


def gpt2(vocabulary: int, length: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    words: dict[str, Any] = {"n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_positions=length, use_cache=False, **words))


def bert(vocabulary: int, classes: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    words: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    words |= {"intermediate_size": 16, "max_position_embeddings": 16, "num_labels": classes}
    return BertForSequenceClassification(BertConfig(vocab_size=vocabulary, **words))


def adapt(module: nn.Module, *targets: str, head: str = "") -> nn.Module:
    """peft's LoRA on the layers whose names end so; all else but the head is frozen."""
    from peft import LoraConfig, get_peft_model

    wanted = LoraConfig(r=2, lora_dropout=0.1, target_modules=list(targets), modules_to_save=[head] if head else None)
    made: nn.Module = get_peft_model(module, wanted)  # type: ignore[arg-type]
    return made


def jitter(x: Tensor) -> Tensor:
    """A custom augmentation: brightness and noise."""
    return x * (1 + 0.2 * torch.randn(len(x), 1, 1, 1, device=x.device)) + 0.05 * torch.rand_like(x)
