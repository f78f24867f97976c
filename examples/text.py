"""Text: predict the next character, from three notebooks on different subjects that never leave their authors."""

import numpy as np
import torch
from torch import Tensor, nn

from fedveca import Experiment, from_arrays, run

NOTEBOOKS = {
    "gardener": "in april we turn the soil and wait for rain. the beans want a pole, the peas want a net, the roses "
    "want to be left alone. water in the evening, weed in the morning, and never trust a warm week in march. "
    "when the plums are ripe the wasps know it first. a good spade outlives the man who bought it. ",
    "sailor": "the wind came round to the west at noon and the sea got up. we took in the jib and ran for the bay. "
    "count the waves, the seventh is the tall one. a rope that is coiled wet will rot, a rope that is dry will run. "
    "the tide does not wait, the harbour master does. at night we steered by the light on the point. ",
    "baker": "weigh the flour, then the water, then the salt. the dough is ready when it comes away from the bowl. "
    "fold it, turn it, let it rest an hour. a hot oven makes a dark crust, a cold one makes a brick. "
    "bread is sold by seven, and what is left at noon goes to the hens. good yeast smells of apples. ",
}
LETTERS = sorted(set("".join(NOTEBOOKS.values())))
WINDOW = 4


class NextLetter(nn.Module):
    """Scores of the next character from the last four."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), 8)
        self.body = nn.Sequential(nn.Linear(8 * WINDOW, 48), nn.Tanh(), nn.Linear(48, len(LETTERS)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.letters(x).flatten(1))
        return out


x, y, author = [], [], []
for name, text in NOTEBOOKS.items():
    letters = [LETTERS.index(c) for c in text]
    for at in range(len(letters) - WINDOW):
        x.append(letters[at : at + WINDOW])
        y.append(letters[at + WINDOW])
        author.append(name)

torch.manual_seed(0)
data = from_arrays(np.array(x), np.array(y), writer=author, tokens=True, name="notebooks")
experiment = Experiment(partition="writer", clients=3, rounds=25, batch=32, lr=0.3)
result = run(experiment, data=data, model=NextLetter())
kept = result.summary["kept"]
print(f"next character right: {100 * kept['test_accuracy']:.1f} %, loss {kept['test_loss']:.3f}")

model = NextLetter()
model.load_state_dict(result.model)
line = "in the evening"
with torch.no_grad():
    for _ in range(50):
        window = torch.tensor([[LETTERS.index(c) for c in line[-WINDOW:]]])
        line += LETTERS[int(model(window).argmax())]
print(line)
