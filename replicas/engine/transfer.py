"""Between host and device without waiting where nobody has to."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; on a GPU the copy is ordered before later work, and the host does not wait for it."""
    if device.type == "cpu":
        return host
    # Memory that has been pinned is handed out again only when the copy out of it is done.
    return host.pin_memory().to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """The tensor in the host's memory, in one copy at the full speed of the bus; waits for it."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host
