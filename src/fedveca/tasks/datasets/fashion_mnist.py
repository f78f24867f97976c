"""Fashion-MNIST, in MNIST's form."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

from fedveca.tasks.datasets.archives import read_gzip, read_members
from fedveca.tasks.datasets.dataset import ChannelMoments, Dataset, Recommended, Request, dataset
from fedveca.tasks.datasets.download import SOURCES, Contents, Package, Source, published
from fedveca.tasks.datasets.idx import SIZES
from fedveca.tasks.datasets.mnist import load_idx


@dataset("fashion-mnist", "70,000 pieces of clothing of 28 x 28 pixels", Recommended(batch=100))
def load_fashion_mnist(request: Request) -> Dataset:
    """Fashion-MNIST."""
    return load_idx("fashion-mnist", request, ChannelMoments((0.2860,), (0.3530,)))


def unpack_deb(path: Path) -> Contents:
    """Fashion-MNIST's four idx files out of Debian's `dataset-fashion-mnist`, opened by dpkg-deb."""
    names = {name: f"./usr/share/datasets/fashion-mnist/{name}.gz" for name in SIZES}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(path)], stdout=subprocess.PIPE) as dpkg:
        assert dpkg.stdout
        found = read_members(dpkg.stdout, {names[name]: size for name, size in SIZES.items()}, path.name)
    return {n: read_gzip(io.BytesIO(found[names[n]]), SIZES[n], names[n]) for n in names}


SOURCES["fashion-mnist"] = Source(
    files=published(
        SIZES,
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    folders=("fashion-mnist", "FashionMNIST/raw", ""),
    mirrors=(
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    packages=(Package(("apt-get", "download", "dataset-fashion-mnist"), unpack_deb),),
)
