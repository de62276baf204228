"""The images and their labels: one MNIST for every variant, and two data sets of the same shape.

MNIST comes with the project, as one NumPy file beside this module. `--data-dir` and the other data sets
use the folder layout of torchvision.datasets (ROOT/FashionMNIST/raw/train-images-idx3-ubyte, ...), and
torchvision downloads what is missing there. Nothing is trained on before it was checked: torchvision itself
loads an all-black MNIST, or one with shifted labels, without a word.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .config import Config, fail
from .download import default_root, download_once, missing, on_this_node
from .idx_files import CLASS_NAMES, FILES, idx_header, problem_of_array, problem_of_file
from .ranks import world_size

MEAN, STD = 0.1307, 0.3081
"""Of all pixels of MNIST's training set, scaled to 0..1. Both sets are normalised with them."""

BUNDLED = Path(__file__).with_name("mnist") / "mnist.npz"


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


def load_data(cfg: Config) -> tuple[ImageSet, ImageSet]:
    """The training set (its first `cfg.train_images` images) and the whole test set."""
    if cfg.dataset == "mnist" and cfg.data_dir is None:
        arrays = _read_bundled()
    else:
        root = default_root() if cfg.data_dir is None else Path(cfg.data_dir).expanduser()
        arrays = _read_root(cfg.dataset, root)

    cfg.check(world_size())  # again, for ranks that were not started by a launcher
    available = len(arrays["train_labels"])
    used = available if cfg.train_images is None else cfg.train_images
    if not 1 <= used <= available:
        fail(f"--train-images takes a whole number from 1 to {available}, got {used}")
    dtype = getattr(torch, cfg.dtype)
    return (
        _image_set(arrays["train_images"][:used], arrays["train_labels"][:used], dtype),
        _image_set(arrays["test_images"], arrays["test_labels"], dtype),
    )


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
        problem = problem_of_array("mnist", name, arrays)
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
        if missing(folder):
            download_once(dataset, root, folder)
        arrays = {}
        for name, (file, shape) in FILES.items():
            content = (folder / file).read_bytes()
            problem = problem_of_file(dataset, folder / file, content, shape)
            if problem:
                _fail_damaged(folder / file, problem)
            arrays[name] = np.frombuffer(content, np.uint8, offset=len(idx_header(shape))).reshape(shape)
    except OSError as error:
        fail(f"cannot read {dataset} in {folder}{on_this_node()}: {error}")
    for name, (file, _) in FILES.items():
        problem = problem_of_array(dataset, name, arrays)
        if problem:
            _fail_damaged(folder / file, problem)
    return arrays


def _fail_damaged(path: Path, problem: str) -> NoReturn:
    fail(f"{path}{on_this_node()} {problem}; delete it, and the next run downloads it again")
