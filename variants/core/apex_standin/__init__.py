"""Our own stand-in for the parts of NVIDIA apex 25.04 that MNIST scripts use: `amp` and `parallel`.

The interface is apex's, the implementation is ours, on native torch, for CPUs and GPUs alike.
"""

from . import amp, parallel

__all__ = ["amp", "parallel"]
