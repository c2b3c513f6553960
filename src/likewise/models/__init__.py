"""Encoders, the heads used in training, and ONNX export."""

from likewise.models.cell_grid import CellGrid
from likewise.models.chunks import in_chunks
from likewise.models.conv_net import Conv4, ConvNet
from likewise.models.encoder import Encoder
from likewise.models.from_run import FromRun
from likewise.models.heads import Head, NoHead, PredictionHead, ProjectionHead
from likewise.models.mlp import MLP
from likewise.models.onnx import to_onnx
from likewise.models.pretrained_transformer import PretrainedTransformer
from likewise.models.resnet import ResNet
from likewise.models.resnet12 import ResNet12
from likewise.models.text_encoder import TextEncoder
from likewise.models.timm_encoder import Timm
from likewise.models.transformer import BagOfTokens, Transformer
from likewise.models.wrapped import Wrapped

__all__ = [
    "MLP",
    "BagOfTokens",
    "CellGrid",
    "Conv4",
    "ConvNet",
    "Encoder",
    "FromRun",
    "Head",
    "NoHead",
    "PredictionHead",
    "PretrainedTransformer",
    "ProjectionHead",
    "ResNet",
    "ResNet12",
    "TextEncoder",
    "Timm",
    "Transformer",
    "Wrapped",
    "in_chunks",
    "to_onnx",
]
