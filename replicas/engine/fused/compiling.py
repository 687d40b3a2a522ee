"""How functions are compiled: ahead of their first use, kept on disk, and free of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

FAST_MATH = {"reassoc", "contract", "arcp", "nsz"}
"""Sums in any order and fused products; not LLVM's leave to assume that nothing is infinite or NaN."""


def compiled(signature: str) -> Callable[[Function], Function]:
    """Compile for these types, at import or, kept from an earlier one, not at all."""

    def compile_function(function: Function) -> Function:
        def with_cache(is_kept: bool) -> Function:
            compiling = njit(signature, cache=is_kept, nogil=True, fastmath=FAST_MATH, error_model="numpy")
            return cast(Function, compiling(function))

        try:
            return with_cache(True)
        except RuntimeError:  # numba's, where there is no folder that it can write to
            return with_cache(False)

    return compile_function
