"""Encoders, one per file, the heads used in training, and ONNX export."""

from likewise.models.conv_net import ConvNet
from likewise.models.encoder import Encoder
from likewise.models.from_run import FromRun
from likewise.models.heads import Head, NoHead, PredictionHead, ProjectionHead
from likewise.models.mlp import MLP
from likewise.models.onnx import to_onnx
from likewise.models.resnet import ResNet
from likewise.models.timm_encoder import Timm
from likewise.models.wrapped import Wrapped

__all__ = [
    "MLP",
    "ConvNet",
    "Encoder",
    "FromRun",
    "Head",
    "NoHead",
    "PredictionHead",
    "ProjectionHead",
    "ResNet",
    "Timm",
    "Wrapped",
    "to_onnx",
]
