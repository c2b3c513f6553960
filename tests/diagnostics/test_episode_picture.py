"""The picture of an episode: what each cell looks like, and where it is drawn."""

import math

import pytest
import torch
from torch import nn

from likewise.diagnostics import cell_matches, plots
from likewise.models import Conv4, Wrapped
from likewise.report.sections import episode


def test_a_cell_looks_like_a_class_by_the_softmax_of_seven_times_its_cosines():
    generator = torch.Generator().manual_seed(0)
    queries, supports = (torch.rand(of, 6, 2, 3, generator=generator) for of in (4, 5))
    found = cell_matches(queries, supports)
    for q in range(4):
        for y in range(2):
            for x in range(3):
                cell = queries[q, :, y, x]
                means = [of.flatten(1).mean(dim=1) for of in supports]
                weights = [math.exp(7 * float(cell @ mean / cell.norm() / mean.norm())) for mean in means]
                expected = [weight / sum(weights) for weight in weights]
                assert found[q, :, y, x].tolist() == pytest.approx(expected, rel=1e-5)


PATCHES = [pixel // 7 for pixel in range(28)]


@pytest.mark.parametrize(
    ("encoder", "cells"),
    [
        (Conv4((1, 28, 28), width=4, pools=2), [pixel // 4 for pixel in range(28)]),
        (Wrapped((1, 28, 28), nn.Conv2d(1, 4, 3, 4, 1)), [min((pixel + 2) // 4, 6) for pixel in range(28)]),  # centred
        (Wrapped((1, 28, 28), nn.Sequential(nn.Conv2d(1, 4, 7, 7), nn.Flatten(2), nn.Unflatten(2, (4, 4)))), PATCHES),
        (Wrapped((1, 28, 28), nn.Flatten()), [0] * 28),  # no maps
    ],
    ids=["pooled", "strided", "not said", "without maps"],
)
def test_orange_is_where_the_cell_lies_beneath_the_class_it_looks_like(encoder, cells):
    """White images: blue becomes 1 less the strength of a cell's share, at every pixel of the cell."""
    side = max(cells) + 1
    shares = torch.rand(15, 5, side, side, generator=torch.Generator().manual_seed(0))
    images = torch.ones(5, 4, 1, 28, 28)
    images[:, 0] = torch.arange(5.0).view(5, 1, 1, 1) / 5  # supports in greys
    chosen = torch.tensor([0, 7, 14])
    places = episode._cell_of_pixels(encoder, images, shares)  # noqa: SLF001 - the page has only the picture
    drawn = episode._picture(images, shares, chosen, places)  # noqa: SLF001
    assert drawn.shape == (4, 6, 3, 28, 28)
    assert torch.equal(drawn[0, 1:], images[:, 0].expand(5, 3, 28, 28))
    for row, query in enumerate(chosen.tolist(), 1):
        assert torch.equal(drawn[row, 0], torch.ones(3, 28, 28))
        for of in range(5):
            expected = 1 - 0.65 * shares[query, of][cells][:, cells]
            torch.testing.assert_close(drawn[row, 1 + of, 2], expected)
            torch.testing.assert_close(drawn[row, 1 + of, 0], torch.ones(28, 28))


def test_columns_of_images_have_their_names_above_their_middle():
    figure = plots.image_rows(torch.ones(2, 4, 1, 20, 20), ["one", "two"], ["", "a", "<b>", "c"])
    axis = figure.layout.xaxis
    assert (axis.side, axis.showticklabels) == ("top", True)
    assert list(axis.ticktext) == ["", "a", "&lt;b&gt;", "c"]
    expected = [9.5, *(22 + 10 + 22 * place + 9.5 for place in range(3))]
    assert list(axis.tickvals) == pytest.approx(expected, abs=2)
    assert not plots.image_rows(torch.ones(2, 4, 1, 20, 20), ["one", "two"]).layout.xaxis.showticklabels
