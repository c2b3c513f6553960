"""Features of an episode: its queries, and the means of its supports."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.training.offers.offer import Offer
from likewise.training.step import Step


@final
class EpisodeMeans(Offer):
    """What prototypical networks compare, from pooled features f(x) of a batch of episodes.

    query_features  features of the queries, (E, N·Q, D), class after class
    class_means     for each class the mean of its support features, (E, N, D)
    query_labels    each query's class within its episode, 0 … N − 1, (E, N·Q)
    """

    def query_features(self, step: Step) -> Float[Tensor, "e q d"]:
        """Return the features of the queries."""
        return step.by_episode(step.features[:, 0])[1].flatten(1, 2)

    def class_means(self, step: Step) -> Float[Tensor, "e k d"]:
        """Return the mean features of each class's support."""
        return step.by_episode(step.features[:, 0])[0].mean(dim=2)

    def query_labels(self, step: Step) -> Int[Tensor, "e q"]:
        """Return the class of each query within its episode."""
        return own_classes(step)


def own_classes(step: Step) -> Int[Tensor, "e q"]:
    """Return the class of each query within its episode, 0 … N − 1, (E, N·Q)."""
    shape = step.episodes
    classes = torch.arange(shape.ways, device=step.inputs.device).repeat_interleave(shape.queries)
    return classes.expand(shape.episodes, -1)
