"""Where a model's parameters lie in the flat vector, for methods that treat some layers apart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedveca.errors import UserError, printable


class Layout(NamedTuple):
    """The names of a model's trainable parameters, and the stretch of w [P] that each takes."""

    slices: dict[str, slice]  # by name, in the order of the vector
    head: tuple[str, ...]  # the parameters of the last layer

    @property
    def size(self) -> int:
        """P."""
        return max((part.stop for part in self.slices.values()), default=0)

    @property
    def layers(self) -> list[str]:
        """The layers that have parameters, in the order of the vector."""
        return list(dict.fromkeys(name.rpartition(".")[0] or name for name in self.slices))

    def mask(self, *layers: str) -> Tensor:
        """[P] bool: which entries of the vector are parameters of these layers; the last layer where none is named.

        Args:
            *layers: Names such as `fc2`, `encoder` with all that is inside it, or one parameter, `fc2.bias`.

        Returns:
            The mask, on the host; `w[..., mask]` are the entries themselves.

        Raises:
            UserError: Where the model has no such layer, or no other one.

        Examples:
            >>> Layout({"body": slice(0, 3), "head": slice(3, 4)}, ("head",)).mask().tolist()
            [False, False, False, True]
        """
        chosen = set(self.head)
        if layers:
            inside = {layer: [n for n in self.slices if n == layer or n.startswith(f"{layer}.")] for layer in layers}
            for layer in layers:
                if not inside[layer]:
                    known = ", ".join(self.layers)
                    raise UserError(f"layer {printable(layer)} is not in the model; its layers are {known}")
            chosen = {name for names in inside.values() for name in names}
        if chosen == set(self.slices):
            said = ", ".join(layers) or "the last layer"
            raise UserError(f"{printable(said)} is the whole model, so that nothing else is left; take a larger model")
        out = torch.zeros(self.size, dtype=torch.bool)
        for name in chosen:
            out[self.slices[name]] = True
        return out


NO_LAYOUT = Layout({}, ())  # of a method that was not given a model's
