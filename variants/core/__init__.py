"""What every variant shares, so that two variants differ by their technique and nothing else."""

from .checkpoint import Checkpoint
from .config import Config, fail, unavailable
from .data import ImageSet, keep, load_data
from .device import backend_for, pick_device
from .evaluate import Accuracy, evaluate
from .model import MLP, ConvNet, build_model
from .precision import pick_amp_dtype
from .run import leaving_the_group, run
from .schedule import build_scheduler
from .steplog import StepLog
from .syncbn import convert_sync_batchnorm

__all__ = [
    "MLP",
    "Accuracy",
    "Checkpoint",
    "Config",
    "ConvNet",
    "ImageSet",
    "StepLog",
    "backend_for",
    "build_model",
    "build_scheduler",
    "convert_sync_batchnorm",
    "evaluate",
    "fail",
    "keep",
    "leaving_the_group",
    "load_data",
    "pick_amp_dtype",
    "pick_device",
    "run",
    "unavailable",
]
