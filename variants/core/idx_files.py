"""What the four files of a data set must be, and what is wrong with the ones that are there.

The functions that find a problem return the end of a sentence that began with the file's name, or None.
"""

import hashlib
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CLASS_NAMES = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "kmnist": "KMNIST"}
"""`--dataset` -> its class in torchvision.datasets, which is also its folder under the root."""

FILES = {
    "train_images": ("train-images-idx3-ubyte", (60000, 28, 28)),
    "train_labels": ("train-labels-idx1-ubyte", (60000,)),
    "test_images": ("t10k-images-idx3-ubyte", (10000, 28, 28)),
    "test_labels": ("t10k-labels-idx1-ubyte", (10000,)),
}
"""Name of an array -> its IDX file in ROOT/CLASS/raw, and its shape, in all three data sets alike."""

MNIST_SHA256 = {
    "train_images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train_labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "test_images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "test_labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""Of MNIST's four original IDX files, uncompressed."""

MNIST_CLASS_COUNTS = {
    "train_labels": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test_labels": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}


def idx_header(shape: Sequence[int]) -> bytes:
    """What an IDX file of bytes (type 8) of this shape begins with."""
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)


def torchvision_class(dataset: str) -> Any:
    # Imported here: the bundled MNIST does without, and the import takes seconds on a slow disk.
    import torchvision.datasets

    return getattr(torchvision.datasets, CLASS_NAMES[dataset])


def problem_of_file(dataset: str, path: Path, content: bytes, shape: Sequence[int]) -> str | None:
    header = idx_header(shape)
    expected = len(header) + int(np.prod(shape))
    if not content:
        return "is empty"
    if content.lstrip()[:1] == b"<":
        return "is a web page, not data"
    if content[:2] == b"\x1f\x8b":
        return "is still compressed (gzip)"
    if len(content) != expected:
        return f"has {len(content)} bytes instead of {expected}, as a broken download leaves it"
    if content[: len(header)] != header:
        return f"is not the IDX file of {' x '.join(map(str, shape))} bytes that belongs there"
    if dataset != "mnist" and _differs_from_archive(dataset, path, content):
        return f"is not what {path.name}.gz beside it holds"
    return None


def _differs_from_archive(dataset: str, path: Path, content: bytes) -> bool:
    """Whether the .gz beside the file is the original, by torchvision's MD5, and holds something else.

    Digests of the unpacked files are published for MNIST alone. But gzip ends with the CRC-32 of what it
    holds, and a download leaves the archive beside the file.
    """
    archive = path.with_name(path.name + ".gz")
    if not archive.is_file():
        return False
    packed = archive.read_bytes()
    if (
        hashlib.md5(packed, usedforsecurity=False).hexdigest()
        != dict(torchvision_class(dataset).resources)[archive.name]
    ):
        return False  # not the original: no witness against the file
    return packed[-8:] != struct.pack("<II", zlib.crc32(content), len(content))


def problem_of_array(dataset: str, name: str, arrays: dict[str, np.ndarray]) -> str | None:
    array = arrays[name]
    if name.endswith("images"):
        if array.min() == array.max():
            return f"is blank: every pixel is {array.min()}"
    else:
        if array.max() > 9:
            return f"has a label {array.max()}; labels are 0 to 9"
        counts = np.bincount(array, minlength=10).tolist()
        expected = MNIST_CLASS_COUNTS[name] if dataset == "mnist" else [len(array) // 10] * 10
        if counts != expected:
            return f"has the wrong labels: the ten classes appear {counts} times instead of {expected}"
    if dataset == "mnist":
        digest = hashlib.sha256(idx_header(array.shape))
        digest.update(np.ascontiguousarray(array))
        if digest.hexdigest() != MNIST_SHA256[name]:
            return "is not the original, by its SHA-256"
    elif name == "test_labels" and _agreement(arrays) < 0.2:
        return "or train-labels-idx1-ubyte does not go with its images: the labels are shifted or shuffled"
    return None


def _agreement(arrays: dict[str, np.ndarray]) -> float:
    """The share of test images whose nearest mean image of a class (of training images) has their label.

    0.82 on MNIST; 0.1 when the labels of either half have slipped against its images.
    """
    pixels, labels = arrays["train_images"].reshape(-1, 784), arrays["train_labels"]
    means = np.stack([pixels[labels == label].mean(axis=0, dtype=np.float32) for label in range(10)])
    scores = arrays["test_images"].reshape(-1, 784).astype(np.float32) @ means.T - (means**2).sum(axis=1) / 2
    return float((scores.argmax(axis=1) == arrays["test_labels"]).mean())
