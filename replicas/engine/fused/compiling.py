"""How functions are compiled: ahead of their first use, kept on disk, and free of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

FAST_MATH = {"reassoc", "contract", "arcp", "nsz"}
"""Sums in any order and fused products; not LLVM's leave to assume that nothing is infinite or NaN."""

UNKEPT = (RuntimeError, OSError, EOFError, UnpicklingError)
"""What numba raises where there is no folder for its machine code, or no room, or a file in it is broken."""


def compiled(signature: str) -> Callable[[Function], Function]:
    """Compile for these types, at import or, kept from an earlier one, not at all."""

    def compile_function(function: Function) -> Function:
        def with_cache(is_kept: bool) -> Function:
            compiling = njit(signature, cache=is_kept, nogil=True, fastmath=FAST_MATH, error_model="numpy")
            return cast(Function, compiling(function))

        try:
            return with_cache(True)
        except UNKEPT:
            return with_cache(False)

    return compile_function
