"""Between host and device, without waiting where nobody has to."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; on a GPU the copy is ordered before later work, and the host does not wait for it."""
    return _sendable(host, device).to(device, non_blocking=True)


def overwrite(target: Tensor, host: Tensor) -> None:
    """Write a tensor of the host over one of the same shape on a device, in the same way."""
    target.copy_(_sendable(host, target.device), non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """The tensor in the host's memory, in one copy at the full speed of the bus; waits for it."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host


def _sendable(host: Tensor, device: torch.device) -> Tensor:
    """Pinned, as a GPU reads it by itself; such memory is handed out again only when the copy out of it is done."""
    return host if device.type == "cpu" else host.pin_memory()
