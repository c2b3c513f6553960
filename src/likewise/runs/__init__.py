"""Runs: their folders, scores, curves, and the machine that they were made on."""

from likewise.runs.run import Run, Side, Stage, load_encoder, synced

__all__ = ["Run", "Side", "Stage", "load_encoder", "synced"]
