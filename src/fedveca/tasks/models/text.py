"""Models of the next token: an LSTM and a small GPT."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedveca.tasks.models.registry import Task, named_model, require_sequences

LETTER = 8  # numbers of an embedded token in the LSTM
HEAD = 32  # numbers per attention head


class TokenLstm(nn.Module):
    """Scores [B, T, V] of the next token after each place of rows [B, T]: an embedding of 8, an LSTM and a layer.

    Args:
        vocabulary: Tokens V.
        hidden: Units of each layer of the LSTM.
        layers: Layers of the LSTM.
        dropout: Between the layers, and before the scores.
    """

    def __init__(self, vocabulary: int, hidden: int = 256, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, LETTER)
        self.lstm = nn.LSTM(LETTER, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.scores = nn.Linear(hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.tokens(x))
        out: Tensor = self.scores(self.drop(states))
        return out


class CausalAttention(nn.Module):
    """Self-attention in which each place sees itself and the places before it.

    In plain products: PyTorch's fused function has no form for many clients at once.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.outputs = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.inputs(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        later = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        weights = (q @ k.transpose(-2, -1) * (C // self.heads) ** -0.5).masked_fill(later, -torch.inf).softmax(-1)
        out: Tensor = self.outputs((self.drop(weights) @ v).transpose(1, 2).reshape(B, T, C))
        return out


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): normalised before, not after."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), CausalAttention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        x = x + self.drop(self.mlp(self.norm2(x)))
        return x


class Gpt(nn.Module):
    """Scores [B, T, V] of the next token after each place of rows [B, T]: a causal transformer, normalised first.

    Args:
        vocabulary: Tokens V.
        length: The longest row, T.
        width: Numbers per place; one attention head per 32 of them, where that many divide it.
        layers: Blocks of attention and a perceptron.
        dropout: After the embedding, on the attention, and after each part of a block.
        init: "paper": GPT-2's normal initialisation, sd 0.02; "torch": PyTorch's.
    """

    def __init__(
        self,
        vocabulary: int,
        length: int,
        width: int = 128,
        layers: int = 4,
        dropout: float = 0.0,
        init: str = "paper",
    ) -> None:
        super().__init__()
        heads = next(h for h in range(max(1, width // HEAD), 0, -1) if width % h == 0)
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, vocabulary, bias=False)
        if init == "paper":
            self._start(layers)

    def _start(self, layers: int) -> None:
        """Normal, sd 0.02; what is added to the stream of 2 x layers parts, by the square root of their number less."""
        for name, p in self.named_parameters():
            if p.dim() > 1:
                added = name.endswith(("attention.outputs.weight", "mlp.2.weight"))
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if added else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        stream = self.drop(self.tokens(x) + self.places(places))
        out: Tensor = self.scores(self.norm(self.blocks(stream)))
        return out


@named_model("lstm", "an LSTM that predicts the next token of each place", tokens=True, lr=0.8)
def build_lstm(task: Task) -> nn.Module:
    require_sequences("lstm", task)
    return TokenLstm(task.outputs, task.hidden, task.layers, task.dropout)


@named_model("gpt", "a small causal transformer that predicts the next token of each place", tokens=True, lr=0.3)
def build_gpt(task: Task) -> nn.Module:
    require_sequences("gpt", task)
    return Gpt(task.outputs, task.shape[0], task.hidden, task.layers, task.dropout, task.init)
