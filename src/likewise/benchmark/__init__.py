"""What `likewise bench` measures: every loss and backend, and what others offer for the same.

`losses` says what is measured, `schedule` when, `cpu` and `cuda` how. A measurement of another kind derives from
`measurement.Measurement` and defines its ``contenders``.
"""
