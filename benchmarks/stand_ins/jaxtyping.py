"""Stands in for jaxtyping where it is not installed, so that measurements need torch, Triton and NumPy alone.

The library annotates shapes with it and reads none at run time: `Float[Tensor, "n d"]` is `Tensor` here.
"""

from typing import Any


class _Annotation:
    def __getitem__(self, item: tuple[Any, str]) -> Any:
        return item[0]


Bool = Float = Int = Shaped = UInt8 = _Annotation()
