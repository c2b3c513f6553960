"""Where cells of feature maps lie in the image: as encoders declare, and what they show of mixed images."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from likewise.data import Draw, owned_by_partner
from likewise.data.episode_sampler import draw_mix, patched
from likewise.models import CellGrid, Conv4, ConvNet, ResNet, ResNet12, Wrapped

GRIDS = {
    "28 to 3": (28, 3, CellGrid(8, 0)),
    "28 to 4": (28, 4, CellGrid(8, 0)),
    "84 to 11": (84, 11, CellGrid(8, 0)),
    "32 to 4": (32, 4, CellGrid(8, 0)),
    "28 to 7": (28, 7, CellGrid(4, 0)),
    "28 to 7, centred on pixels": (28, 7, CellGrid(4, -1.5)),
    "84 to 3, centred on pixels": (84, 3, CellGrid(32, -15.5)),
    "12 to 3, within": (12, 3, CellGrid(2, 3)),
}


@pytest.mark.parametrize("grid", GRIDS)
def test_a_cell_shows_the_image_that_covers_most_of_its_pixels(grid):
    """Counted on an image of half pixels, as cells may begin in the middle of one."""
    side, cells, (stride, start) = GRIDS[grid]
    mix = draw_mix(Draw(1, rows=500), 2, side, side)
    found = owned_by_partner(mix, (cells, cells), stride, (side, side), start=start)
    ones = torch.arange(2.0).view(1, 2, 1, 1, 1).expand(500, 2, 1, side, side)
    mixed = patched(ones, mix._replace(partners=torch.tensor([[1, 0]]).expand(500, 2)))[:, 0, 0] == 1
    halves = mixed.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
    edges = [min(max(int(2 * (start + i * stride)), 0), 2 * side) for i in range(cells + 1)]
    for i in range(cells):
        for j in range(cells):
            block = halves[:, edges[i] : edges[i + 1], edges[j] : edges[j + 1]].flatten(1)
            assert torch.equal(found[:, i, j], 2 * block.sum(dim=1) > block.shape[1])
    assert 0.2 < found.float().mean() < 0.4


@pytest.mark.parametrize(
    ("encoder", "cells"),
    [
        (lambda: Conv4((1, 28, 28), width=4, pools=3), 3),
        (lambda: ResNet12((1, 28, 28), widths=(2, 2, 2, 2)), 4),
        (lambda: ResNet12((1, 84, 84), widths=(2, 2, 2, 2)), 11),
        (lambda: Conv4((1, 32, 32), width=4, pools=3), 4),
        (lambda: ConvNet((1, 28, 28), width=2), 7),
        (lambda: ResNet((1, 28, 28), depth=8, width=2), 7),
        (lambda: ResNet((1, 84, 84), depth=18, width=2), 3),
    ],
)
def test_networks_have_these_grids(encoder, cells):
    made = encoder()
    assert made.map_shape[1:] == (cells, cells)
    assert (made.input_shape[1], cells, made.cell_grid) in GRIDS.values()
    assert made.stride == made.cell_grid.stride
    assert made.training


@pytest.mark.parametrize(
    "encoder",
    [
        lambda: Conv4((1, 56, 56), width=4, pools=3),
        lambda: ConvNet((1, 56, 56), width=4),
        lambda: ResNet((1, 192, 192), depth=8, width=4, stem="large"),
        lambda: ResNet((1, 56, 56), depth=8, width=4, stem="small"),
        lambda: ResNet12((1, 56, 56), widths=(4, 4, 4)),
    ],
)
def test_a_cell_is_in_the_middle_of_the_pixels_that_it_sees(encoder):
    """A pixel is seen if the cell changes with it; the middle of what an inner cell sees is the middle of the cell."""
    torch.manual_seed(0)
    made = encoder().eval().double()
    for part in made.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.ones_(part.weight)  # also of those that begin at zero
        if isinstance(part, nn.MaxPool2d):
            part.forward = partial(
                functional.avg_pool2d, kernel_size=part.kernel_size, stride=part.stride, padding=part.padding
            )
        if isinstance(part, nn.ReLU | nn.LeakyReLU):
            part.forward = lambda maps: maps
    side = made.input_shape[1]
    images = torch.rand(1, 1, side, side, dtype=torch.float64, requires_grad=True)
    stride, start = made.cell_grid
    maps = made.maps(images)
    i = maps.shape[2] // 2
    (gradient,) = torch.autograd.grad(maps[:, :, i, i].square().sum(), images)
    seen = gradient.abs().sum(dim=(0, 1)).nonzero()
    low, high = seen.amin(dim=0), seen.amax(dim=0)
    assert low.min() > 0, "the cell sees the edge"
    assert high.max() < side - 1, "the cell sees the edge"
    assert ((low + high + 1) / 2).tolist() == [start + (i + 0.5) * stride] * 2


def test_an_encoder_that_declares_no_cells_is_told_how_and_cells_that_cannot_be_are_refused():
    module = nn.Conv2d(3, 2, 8, 8)
    with pytest.raises(ValueError, match=r"declares which pixels.*Wrapped its stride and cell_start.*define cell_grid"):
        _ = Wrapped((3, 56, 56), module).cell_grid
    assert Wrapped((3, 56, 56), module, stride=8).cell_grid == CellGrid(8, 0)
    assert Wrapped((3, 56, 56), module, stride=8, cell_start=-3.5).cell_grid == CellGrid(8, -3.5)
    for stride, start in ((0, 0.0), (None, 2.0), (8, 57.0), (8, float("nan"))):
        with pytest.raises(ValueError, match=r"expected (a stride of at least 1|cell_start in pixels beside a stride)"):
            Wrapped((3, 56, 56), module, stride=stride, cell_start=start)
