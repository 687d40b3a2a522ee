"""When has a GPU done what it was told? The host's clock does not see it otherwise."""

from __future__ import annotations

import torch


def settle() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
