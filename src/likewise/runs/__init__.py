"""Runs: their folders, scores, curves, and the machine that they were made on."""

from likewise.runs.loading import load_encoder
from likewise.runs.run import Run, Side, Stage, synced

__all__ = ["Run", "Side", "Stage", "load_encoder", "synced"]
