"""The device on which features are evaluated: a GPU that has room for them, or the CPU."""

import torch

from likewise.evaluation.features import FeatureParts

CPU = torch.device("cpu")
COPIES = 6  # of the features on a GPU: as they come, standardised, of a refit both once more, and some to spare


def with_room(device: torch.device, count: int, width: int) -> torch.device:
    """Return the device if features can be evaluated there: a GPU with room for them and their copies; else the CPU."""
    if device.type != "cuda":  # others have no float64
        return CPU
    return device if torch.cuda.mem_get_info(device)[0] > COPIES * 4 * count * width else CPU


def features_on(device: torch.device, features: FeatureParts) -> FeatureParts:
    """Return features with their vectors on a device, if there is room for them."""
    target = with_room(device, sum(map(len, features)), features.test.vectors.shape[1])
    return features if target == CPU else features.to(target)
