"""Encoders, the heads used in training, and ONNX export."""

from likewise.models.chunks import in_chunks
from likewise.models.encoder import CellGrid, Encoder
from likewise.models.heads import Head, NoHead, PredictionHead, Projected, ProjectionHead
from likewise.models.networks import MLP, Conv4, ConvNet, ResNet, ResNet12
from likewise.models.onnx import to_onnx
from likewise.models.pretrained_transformer import PretrainedTransformer
from likewise.models.text_encoder import BagOfTokens, TextEncoder, Transformer, reads_texts
from likewise.models.timm_encoder import Timm
from likewise.models.wrapped import FromRun, Given, Wrapped

__all__ = [
    "MLP", "BagOfTokens", "CellGrid", "Conv4", "ConvNet", "Encoder", "FromRun", "Given", "Head", "NoHead",
    "PredictionHead", "PretrainedTransformer", "Projected", "ProjectionHead", "ResNet", "ResNet12", "TextEncoder",
    "Timm", "Transformer", "Wrapped", "in_chunks", "reads_texts", "to_onnx",
]  # fmt: skip
