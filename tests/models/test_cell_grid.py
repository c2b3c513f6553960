"""Where cells of feature maps lie in the image: followed through networks, and what they show of mixed images."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from likewise.data import Draw, owned_by_partner
from likewise.data.patch_mix import drawn, patched
from likewise.models import CellGrid, Conv4, ConvNet, Encoder, ResNet, ResNet12, Wrapped

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
    mix = drawn(Draw(1, rows=500), 2, side, side)
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


class _Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, images):
        maps = functional.max_pool2d(functional.relu_(self.convolution(images)), 2)
        gate = maps.mean(dim=(2, 3), keepdim=True).sigmoid()
        return torch.cat([maps, maps * gate], dim=1)[:, :, 1::2, -27::2]


class _Of(nn.Module):
    """A function as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, images):
        return self.function(images)


class _Counting(nn.Module):
    """Counts its calls in a buffer, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, maps):
        self.calls += 1
        return maps * torch.rand(1)


class _Beside(nn.Module):
    """Two paths whose sum is the map."""

    def __init__(self, one, other) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, images):
        return self.one(images) + self.other(images)


NETWORKS = {
    "patches": nn.Conv2d(3, 2, 7, 7),
    "centred": nn.Conv2d(3, 2, 3, 8, 1),
    "an even kernel": nn.Conv2d(3, 2, 4, 2, 1),
    "valid": nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 5, 3)),
    "dilated": nn.Conv2d(3, 2, 3, 2, dilation=3),
    "same": nn.Sequential(nn.Conv2d(3, 4, 3, dilation=2, padding="same"), nn.BatchNorm2d(4), nn.AvgPool2d(3, 2, 1)),
    "padded on one side": nn.Sequential(nn.ReflectionPad2d((3, 0, 3, 0)), nn.Conv2d(3, 2, 3, 2)),
    "zeros around": nn.Sequential(nn.ZeroPad2d(2), nn.MaxPool2d(3, 2), nn.Conv2d(3, 2, 3, padding=2, dilation=2)),
    "two paths": _Beside(nn.Conv2d(3, 4, 5, 2, 2), nn.Conv2d(3, 4, 1, 2)),
    "functional": _Functional(),
    "much between": nn.Sequential(
        *(nn.Conv2d(3, 4, 3, 2), nn.PReLU(), nn.Hardswish(), nn.Dropout2d(), nn.ELU(inplace=True)),
        *(nn.Conv2d(4, 4, 3, groups=4), nn.GELU(), nn.Hardswish(inplace=True), nn.Dropout(), nn.Softplus()),
    ),
    "cut": nn.Sequential(_Of(lambda images: images[:, :, -100:, -1000:]), nn.Conv2d(3, 2, 3)),
    "cropped": nn.Sequential(_Of(lambda images: images[:, :, -40:, 16:]), nn.Conv2d(3, 2, 2, 2)),
    "deep": nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.AvgPool2d(2)
    ),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_a_cell_is_in_the_middle_of_the_pixels_that_it_sees(network):
    """A pixel is seen if the cell changes with it; the middle of what inner cells see is the middle of the cell."""
    torch.manual_seed(0)
    encoder = Wrapped((3, 56, 56), NETWORKS[network]).eval()
    _, height, width = encoder.map_shape
    images = torch.rand(8, 3, 56, 56, requires_grad=True)
    stride, start = encoder.cell_grid
    for i in (height // 2, height // 2 + 1):
        for j in (width // 2, width // 2 + 1):
            (gradient,) = torch.autograd.grad(encoder.maps(images)[:, :, i, j].square().sum(), images)
            if network == "functional":  # the gate sees all, a little
                gradient = torch.where(gradient.abs() > 0.01 * gradient.abs().amax(), gradient, 0)
            seen = gradient.abs().sum(dim=(0, 1)).nonzero()
            middle = (seen.amin(dim=0) + seen.amax(dim=0) + 1) / 2
            assert middle.tolist() == [start + (i + 0.5) * stride, start + (j + 0.5) * stride]


def _moved_by_writing(images):
    moved = torch.zeros(len(images), 3, 56, 56)
    moved[:, :, 4:] = images[:, :, :-4]
    return images + moved


def _written_into(images):
    maps = images.clone()
    maps[:, :, 4:] = maps[:, :, :-4].clone()
    return maps


MOVED = {
    "mirrored": lambda images: images.flip(3),
    "turned": lambda images: images.rot90(2, (2, 3)),
    "rolled": lambda images: images.roll(5, 2),
    "transposed": lambda images: images.transpose(2, 3),
    "averaged over a side": lambda images: torch.cat([images] * 19, dim=1)[:, :56].mean(dim=3).unsqueeze(1),
    "matrix": lambda images: images @ torch.ones(56, 56),
    "sorted": lambda images: images.sort(dim=2).values,
    "summed up": lambda images: images.cumsum(dim=3),
    "warped": lambda images: functional.grid_sample(images, torch.zeros(len(images), 56, 56, 2), align_corners=False),
    "written beside": _moved_by_writing,
    "written into": _written_into,
    "scattered": lambda images: torch.zeros_like(images).slice_scatter(images[:, :, 4:], 2, 0, 52),
    "enlarged": lambda images: functional.interpolate(images, scale_factor=2),
}


@pytest.mark.parametrize(
    "module",
    [
        *(_Of(function) for function in MOVED.values()),
        nn.Conv2d(3, 2, (4, 8), (4, 8)),  # another stride for each side
        _Beside(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(3, 4, 2, 2)),  # half a pixel
        nn.ConvTranspose2d(3, 2, 2, 2),
        nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(2), nn.Unflatten(2, (7, 7))),
        nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.PixelShuffle(2)),
    ],
    ids=[*MOVED, "two strides", "half a pixel apart", "transposed convolution", "reshaped", "shuffled"],
)
def test_cells_that_cannot_be_followed_are_to_be_said(module):
    with pytest.raises(ValueError, match="expected an encoder that says which pixels the cells of its maps show"):
        _ = Wrapped((3, 56, 56), module).cell_grid
    assert Wrapped((3, 56, 56), module, stride=14).cell_grid == CellGrid(14, 0)
    assert Wrapped((3, 56, 56), module, stride=14, cell_start=-6.5).cell_grid == CellGrid(14, -6.5)


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.BatchNorm2d(4), nn.LayerNorm(28)])
def test_normalisation_keeps_cells_where_they_are(norm):
    assert Wrapped((3, 56, 56), nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), norm)).cell_grid == CellGrid(2, -0.5)


def test_looking_for_cells_changes_nothing_and_works_everywhere():
    encoder = Wrapped((3, 32, 32), nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), _Counting(), nn.MaxPool2d(2)))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    expected, random = CellGrid(4, -0.5), torch.get_rng_state()
    with torch.inference_mode():
        assert encoder.cell_grid == expected
    assert encoder.cell_grid == expected
    assert encoder.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    assert encoder.to(torch.bfloat16).cell_grid == expected


def test_cells_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="expected a stride of at least 1 pixel, got 0"):
        Wrapped((3, 56, 56), nn.Conv2d(3, 2, 3), stride=0)
    for stride, start in ((None, 2.0), (8, 57.0), (8, float("nan"))):
        with pytest.raises(ValueError, match="expected cell_start in pixels beside a stride"):
            Wrapped((3, 56, 56), nn.Conv2d(3, 2, 3), stride=stride, cell_start=start)


def test_an_encoder_of_ones_own_may_say_where_its_cells_lie():
    class Patches(Encoder):
        feature_dim = 3
        cell_grid = CellGrid(4, 0.0)

        def forward(self, inputs):
            return self.pool(self.maps(inputs))

        def maps(self, inputs):
            return functional.unfold(self.standardized(inputs), 4, stride=4)[:, :3].unflatten(2, (2, 2))

    assert Patches((1, 8, 8)).stride == 4


def test_pixels_belong_to_the_cell_that_they_lie_in():
    for stride, start, side, cells in ((4, -1.5, 28, 7), (8, 0.0, 28, 3), (2, 3.0, 12, 3), (32, -15.5, 84, 3)):
        found = CellGrid(stride, start).cell_of_pixels(side, cells).tolist()
        for pixel, cell in enumerate(found):
            middles = [start + (i + 0.5) * stride for i in range(cells)]
            distances = [abs(pixel + 0.5 - middle) for middle in middles]
            assert distances[cell] == min(distances)
