"""The images and their labels: one MNIST for every variant, and two data sets of the same shape.

MNIST comes with the project, as one NumPy file beside this module. `--data-dir` and the other data sets
use the folder layout of torchvision.datasets (ROOT/FashionMNIST/raw/train-images-idx3-ubyte, ...), and
torchvision downloads what is missing there. Nothing is trained on before it was checked: torchvision itself
loads an all-black MNIST, or one with shifted labels, without a word.
"""

import hashlib
import os
import platform
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .config import fail

MEAN, STD = 0.1307, 0.3081
"""Of all pixels of MNIST's training set, scaled to 0..1. Both sets are normalised with them."""

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

BUNDLED = Path(__file__).with_name("mnist") / "mnist.npz"

FIRST_BYTE_S = 6.0
"""A download that has brought nothing after this long counts as offline."""
STALL_S = 60.0
"""One that had begun and brings nothing more for this long counts as broken off."""


class ImageSet(Dataset):
    """Images and labels in memory: bytes (N, 1, 28, 28), normalised to `dtype` only when taken out."""

    def __init__(self, images: Tensor, labels: Tensor, dtype: torch.dtype = torch.float32) -> None:
        self.images = images
        self.labels = labels
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._normalise(self.images[index]), int(self.labels[index])

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A whole batch in one gather. DataLoader calls this, where it exists, once for each batch."""
        where = torch.as_tensor(indices, dtype=torch.int64)
        # index_select: 1.7 times the images/s of self.images[where]
        return self._normalise(self.images.index_select(0, where)), self.labels.index_select(0, where)

    def _normalise(self, images: Tensor) -> Tensor:
        """To the last bit what torchvision's ToTensor and Normalize give."""
        return images.to(self.dtype).div_(255).sub_(MEAN).div_(STD)


def keep(batch: Any) -> Any:
    """The collate_fn: a batch of ImageSet is a batch already, while DataLoader's own would stack it again."""
    return batch  # not a lambda: worker processes that are spawned receive this function by its name


def load_data(cfg: Any) -> tuple[ImageSet, ImageSet]:
    """The training set (its first `cfg.train_images` images) and the whole test set."""
    if cfg.dataset not in CLASS_NAMES:
        fail(f"--dataset takes one of {', '.join(CLASS_NAMES)}; got {cfg.dataset!r}")
    if cfg.dataset == "mnist" and cfg.data_dir is None:
        arrays = _read_bundled()
    else:
        root = default_root() if cfg.data_dir is None else Path(cfg.data_dir).expanduser()
        arrays = _read_root(cfg.dataset, root)

    available = len(arrays["train_labels"])
    used = available if cfg.train_images is None else cfg.train_images
    if not 1 <= used <= available:
        fail(f"--train-images takes a whole number from 1 to {available}, got {used}")
    if cfg.global_batch_size > used:
        fail(
            f"--global-batch-size {cfg.global_batch_size} is larger than the training set; "
            f"with its {used} images it takes 1 to {used}"
        )
    dtype = getattr(torch, cfg.dtype)
    return (
        _image_set(arrays["train_images"][:used], arrays["train_labels"][:used], dtype),
        _image_set(arrays["test_images"], arrays["test_labels"], dtype),
    )


def default_root() -> Path:
    """Where downloads go without `--data-dir`: a cache folder of the user's."""
    from platformdirs import user_cache_path

    return user_cache_path("ddp-side-by-side", appauthor=False)


def _image_set(images: np.ndarray, labels: np.ndarray, dtype: torch.dtype) -> ImageSet:
    # The copy gives torch memory of its own: an array read from a file is read-only, and a pickled slice
    # would drag all 60,000 images along.
    return ImageSet(
        torch.from_numpy(images.copy()).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)), dtype
    )


def _read_bundled() -> dict[str, np.ndarray]:
    """MNIST from the file beside this module."""
    try:
        with np.load(BUNDLED, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in FILES}
        for name, (_, shape) in FILES.items():
            if arrays[name].shape != shape or arrays[name].dtype != np.uint8:
                raise ValueError(f"{name} is {arrays[name].dtype} {arrays[name].shape}, not uint8 {shape}")
    except Exception as error:  # zipfile, zlib and NumPy each have errors of their own for a broken file
        fail(f"cannot read the bundled MNIST, {BUNDLED} ({error}); get this file of the project again")
    for name in FILES:
        problem = _problem_of_array("mnist", name, arrays)
        if problem:
            fail(
                f"the bundled MNIST, {BUNDLED}, is damaged: {name} {problem}; "
                "get this file of the project again"
            )
    return arrays


def _read_root(dataset: str, root: Path) -> dict[str, np.ndarray]:
    """The data set below a torchvision root; what is missing is downloaded first, once per machine."""
    folder = root / CLASS_NAMES[dataset] / "raw"
    try:
        if _missing(folder):
            _download_once(dataset, root, folder)
        arrays = {}
        for name, (file, shape) in FILES.items():
            content = (folder / file).read_bytes()
            problem = _problem_of_file(dataset, folder / file, content, shape)
            if problem:
                _fail_damaged(folder / file, problem)
            arrays[name] = np.frombuffer(content, np.uint8, offset=len(idx_header(shape))).reshape(shape)
    except OSError as error:
        fail(f"cannot read {dataset} in {folder}{_on_this_node()}: {error}")
    for name, (file, _) in FILES.items():
        problem = _problem_of_array(dataset, name, arrays)
        if problem:
            _fail_damaged(folder / file, problem)
    return arrays


def idx_header(shape: Sequence[int]) -> bytes:
    """What an IDX file of bytes (type 8) of this shape begins with."""
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)


def _missing(folder: Path) -> list[str]:
    return [file for file, _ in FILES.values() if not (folder / file).is_file()]


# --- What is wrong with the data: each returns the end of a sentence that began with the file, or None.


def _problem_of_file(dataset: str, path: Path, content: bytes, shape: Sequence[int]) -> str | None:
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
        != dict(_torchvision_class(dataset).resources)[archive.name]
    ):
        return False  # not the original: no witness against the file
    return packed[-8:] != struct.pack("<II", zlib.crc32(content), len(content))


def _problem_of_array(dataset: str, name: str, arrays: dict[str, np.ndarray]) -> str | None:
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


def _fail_damaged(path: Path, problem: str) -> NoReturn:
    fail(f"{path}{_on_this_node()} {problem}; delete it, and the next run downloads it again")


# --- Downloading


def _download_once(dataset: str, root: Path, folder: Path) -> None:
    """Download what is missing in the folder; of all processes on this machine one does, the others wait.

    A lock on a file, not a barrier of the process group: it also holds between runs that know nothing of
    each other, and on several machines each fills its own disk.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(root / f".{CLASS_NAMES[dataset]}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
            waited = False
        except Timeout:
            lock.acquire()
            waited = True
    except (OSError, NotImplementedError) as error:
        _fail_missing(
            dataset, folder, f"nothing can be written there ({getattr(error, 'strerror', None) or error})"
        )
    try:
        if not _missing(folder):
            return
        if waited:  # each in its turn trying again would take minutes to say the same
            _fail_missing(dataset, folder, "another process could not download it")
        _download(dataset, root, folder)
    finally:
        lock.release()


def _download(dataset: str, root: Path, folder: Path) -> None:
    # Into a folder aside, and moved when complete: a half file never lies where the data are looked for.
    aside = root / f".{CLASS_NAMES[dataset]}.part"
    shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed
    raw_aside = aside / CLASS_NAMES[dataset] / "raw"
    try:
        raw_aside.mkdir(parents=True)
        for archive in folder.glob("*.gz"):  # put there by hand, or left over: no need to download them
            shutil.copyfile(archive, raw_aside / archive.name)
        problem = _download_into(aside, raw_aside, dataset)
        if problem:
            _fail_missing(dataset, folder, f"the download failed ({problem})")
        missing = _missing(folder)
        for path in sorted(raw_aside.iterdir()):
            if path.name.removesuffix(".gz") in missing:
                os.replace(path, folder / path.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _download_into(aside: Path, raw_aside: Path, dataset: str) -> str | None:
    """Let torchvision download and unpack; returns why it could not, if it could not.

    In a thread, as torchvision sets no time-out: it would hang for minutes behind a firewall that drops
    packets.
    """
    source = _torchvision_class(dataset)
    problems: list[str] = []

    def work() -> None:
        try:
            source(aside, download=True)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            problems.append(lines[-1].strip("<>"))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    begun, last_size, last_growth = False, _size(raw_aside), time.monotonic()
    while thread.is_alive():
        thread.join(0.1)
        size = _size(raw_aside)
        if size > last_size:
            begun, last_size, last_growth = True, size, time.monotonic()
        silent_s = time.monotonic() - last_growth
        if silent_s > (STALL_S if begun else FIRST_BYTE_S):
            return f"nothing arrived for {silent_s:.0f} s"
    return problems[0] if problems else None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _torchvision_class(dataset: str) -> Any:
    # Imported here: the bundled MNIST does without, and the import takes seconds on a slow disk.
    import torchvision.datasets

    return getattr(torchvision.datasets, CLASS_NAMES[dataset])


def _fail_missing(dataset: str, folder: Path, reason: str) -> NoReturn:
    wanted = dict(_torchvision_class(dataset).resources)
    files = ", ".join(f"{file}.gz (MD5 {wanted[file + '.gz']})" for file in _missing(folder))
    fail(
        f"{dataset} is not in {folder}{_on_this_node()}, and {reason}. What works offline: "
        "--dataset mnist without --data-dir, which comes with the project; "
        f"or put into that folder {files}"
    )


def _on_this_node() -> str:
    """Names the machine in a message when the run has several, as each has a disk of its own."""
    ranks, ranks_here = os.environ.get("WORLD_SIZE"), os.environ.get("LOCAL_WORLD_SIZE")
    return f" on {platform.node()}" if ranks and ranks_here and ranks != ranks_here else ""
