"""A Hugging Face data set, split by a flwr-datasets partitioner; needs `pip install datasets flwr-datasets`."""

from typing import Any

from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner
from sklearn.datasets import load_wine

from fedveca import Experiment, from_hugging_face, from_partitioner, run

table = load_wine(as_frame=True)
frame = (table.data - table.data.mean()) / table.data.std()
columns = list(frame.columns)
wine = Dataset.from_dict({**frame.to_dict("list"), "cultivar": table.target.tolist()})
settings: dict[str, Any] = {"model": "mlp", "hidden": 16, "clients": 4, "rounds": 15, "batch": 8, "lr": 0.05}

# one of fedveca's partitions splits the rows
data = from_hugging_face(wine, x=columns, y="cultivar", name="wine")
result = run(Experiment(partition="dirichlet", concentration=0.5, **settings), data=data)
print(f"fedveca's partition:      test accuracy {100 * result.summary['kept']['test_accuracy']:.1f} %")

# or a partitioner that you already have
partitioner = DirichletPartitioner(num_partitions=4, partition_by="cultivar", alpha=0.5, min_partition_size=5, seed=1)
partitioner.dataset = wine
data = from_partitioner(partitioner, x=columns, y="cultivar", name="wine")
result = run(Experiment(partition="writer", **settings), data=data)
print(f"flwr-datasets' partition: test accuracy {100 * result.summary['kept']['test_accuracy']:.1f} %")
