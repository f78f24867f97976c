"""LoRA: a language model whose adapters alone are trained and travel; needs `pip install transformers peft`.

On real devices that have this file, `make` is `model=lora:make` of `fedveca deploy init`, and `load` is what
FEDVECA_NODE_DATA and FEDVECA_TEST_DATA name, lora:load. Each device takes the frozen weights from its own disk; one
whose frozen weights are not the server's is rejected.
"""

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from fedveca import Dataset, Experiment, from_arrays, run

LETTERS, LENGTH = 32, 12


def build_base() -> PreTrainedModel:
    """A small GPT-2 with random weights; the line below takes one that was pretrained."""
    # return AutoModelForCausalLM.from_pretrained("distilgpt2")
    config = GPT2Config(
        vocab_size=LETTERS,
        n_positions=LENGTH,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def make(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The base, frozen, with adapters on its attention and its layers after that."""
    torch.manual_seed(0)  # in place of a pretrained file: the same frozen weights everywhere
    lora = LoraConfig(
        r=4, lora_alpha=32, lora_dropout=0.1, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True
    )
    return cast(nn.Module, get_peft_model(build_base(), lora))


def load() -> Dataset:
    """Six people who count, each in steps of another length; the label of a place is the letter after it."""
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(6), 60)
    rows = (draw.integers(0, LETTERS, len(owner))[:, None] + (1 + owner % 3)[:, None] * np.arange(LENGTH)) % LETTERS
    labels = np.concatenate([rows[:, 1:], np.full((len(rows), 1), -100)], 1)  # the last place has none
    return from_arrays(rows, labels, writer=owner, tokens=True, classes=LETTERS, name="counting")


if __name__ == "__main__":
    data = load()
    experiment = Experiment(
        method="fedavg", partition="writer", clients=6, rounds=8, batch=16, lr=0.5, tau_0=8, keep="last"
    )
    torch.manual_seed(0)
    whole = run(replace(experiment, rounds=1, tau_0=1), data=data, model=build_base())
    adapted = run(experiment, data=data, model=make)
    print(f"bytes per round, all weights: {whole.rounds[0]['bytes_up']:,}")
    print(f"bytes per round, adapters:    {adapted.rounds[0]['bytes_up']:,}")
    first, last = (adapted.rounds[k]["test_loss"] for k in (0, -1))
    print(f"test loss after the first round {first:.3f}, after the last {last:.3f}")

    model = make((LENGTH,), LETTERS)
    model.load_state_dict(adapted.model)  # peft's save_pretrained then writes the adapters alone
