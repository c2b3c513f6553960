"""How contenders are measured: time and peak memory of their steps, size by size, until the budget is spent.

`case` says what a contender is, `schedule` when it is measured, `cpu` and `cuda` how. A measurement of another
kind derives from `measurement.Measurement` and defines its ``contenders``.
"""
