"""FedJAX: its own federated averaging with the compiled backend, the default on a CPU."""

from collections.abc import Callable
from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed.jobs import CLASSES, DECAY, LR, Shards, Stopwatch, arguments, load

Batch = dict[str, jax.Array]


def uniform(fan_in: int) -> hk.initializers.Initializer:
    """PyTorch's default start, of weights and biases alike."""
    return hk.initializers.RandomUniform(-(fan_in**-0.5), fan_in**-0.5)


def cnn(x: jax.Array) -> jax.Array:
    """The CNN; images are [n, 28, 28, 1]."""
    for channels in (1, 32):
        start = uniform(25 * channels)
        x = hk.max_pool(jax.nn.relu(hk.Conv2D(32, 5, w_init=start, b_init=start)(x)), 2, 2, "VALID")
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(hk.Linear(256, w_init=uniform(1568), b_init=uniform(1568))(x))
    return hk.Linear(CLASSES, w_init=uniform(256), b_init=uniform(256))(x)


NETWORK = hk.without_apply_rng(hk.transform(cnn))


def svm_loss(w: jax.Array, batch: Batch, rng: jax.Array | None = None) -> jax.Array:
    """The regularised squared hinge loss."""
    slack = jnp.maximum(0, 1 - batch["y"] * (batch["x"] @ w))
    return DECAY * w @ w + 0.5 * jnp.mean(slack**2)


def cnn_loss(params: hk.Params, batch: Batch, rng: jax.Array | None = None) -> jax.Array:
    """Cross-entropy."""
    scores = jax.nn.log_softmax(NETWORK.apply(params, batch["x"]))
    return -jnp.mean(jnp.take_along_axis(scores, batch["y"][:, None], axis=1))


def examples(pair: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows with the channel last, as JAX prefers."""
    x, y = pair
    return {"x": x if x.ndim == 2 else np.moveaxis(x, 1, -1), "y": y.astype(np.int32) if x.ndim == 4 else y}


def main() -> None:
    """Time one job."""
    job, folder, _ = arguments()
    shards: Shards = load(job, folder)
    probe = examples(shards.probe())
    loss: Callable[..., jax.Array] = svm_loss if job.model == "svm" else cnn_loss
    params = jnp.zeros(784) if job.model == "svm" else NETWORK.init(jax.random.key(0), probe["x"][:1])
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        grad_fn=jax.grad(loss),
        client_optimizer=fedjax.optimizers.sgd(LR),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=job.batch, num_epochs=None, num_steps=job.steps
        ),
    )
    clients = [fedjax.ClientDataset(examples(shards.part(i))) for i in range(job.clients)]
    before = float(loss(params, probe))

    def one_round(state: Any, key: jax.Array, clients: list[Any]) -> Any:
        keys = jax.random.split(key, len(clients))
        return algorithm.apply(state, [(i, c, keys[i]) for i, c in enumerate(clients)])[0]

    state = algorithm.init(params)
    jax.block_until_ready(one_round(state, jax.random.key(0), clients[:2]).params)  # compiles: set-up
    watch = Stopwatch()
    watch.start()
    for key in jax.random.split(jax.random.key(1), job.rounds):
        state = one_round(state, key, clients)
    jax.block_until_ready(state.params)
    watch.stop()
    watch.report(job, before, float(loss(state.params, probe)))


if __name__ == "__main__":
    main()
