"""Views: compared with torchvision image by image and in statistics, and with those of a single process."""

import copy
import functools
import math
import pickle
import runpy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import transforms
from torchvision.transforms.v2 import functional as reference

from likewise.data.augmentation import (
    Augmentation,
    Chain,
    ColourJitter,
    Draw,
    FeatureDropout,
    GaussianBlur,
    ImageAugmentation,
    RandomAffine,
    RandomResizedCrop,
    RandomShift,
    SimCLRViews,
    TokenDropout,
    usual_augmentation,
)
from likewise.data.augmentation.simclr import affine_jitter, exact_jitter
from likewise.data.augmentation.spatial import TRIES, Boxes, blur_weights, crop_weights, random_boxes, separable

pytestmark = pytest.mark.slow

DRAWS = 20_000
SIGMAS = 4.5
"""Largest difference between two statistics of independent samples, in standard errors: 1 false alarm in 150,000."""


def fitted(augmentation: Augmentation, inputs: torch.Tensor) -> Augmentation:
    augmentation.fit(inputs)
    return augmentation


def natural_images(count: int, side: int = 32) -> torch.Tensor:
    """Return uint8 patches of the two photographs that scikit-learn ships, spread over both."""
    from sklearn.datasets import load_sample_images  # noqa: PLC0415

    patches = []
    for photograph in load_sample_images().images:
        image = torch.from_numpy(np.array(photograph)).permute(2, 0, 1)
        grid = image.unfold(1, side, side).unfold(2, side, side)
        patches.append(grid.permute(1, 2, 0, 3, 4).flatten(0, 1))
    every = torch.cat(patches)
    return every[torch.arange(count) * len(every) // count].contiguous()


def agree(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Compare mean and standard deviation of independent samples, within their sampling error."""
    for power in (1, 2):
        a, b = ours.double() ** power, theirs.double() ** power
        error = (a.var() / len(a) + b.var() / len(b)).sqrt()
        assert (a.mean() - b.mean()).abs() <= SIGMAS * error


# --- crops


@st.composite
def crops(draw):
    """Sample an image size, an output size, a box within the image, and a flip.

    Not one column: there torch's antialiased resize repeats the first row, where without antialias it does not.
    """
    height, width = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    new = draw(st.integers(1, 70)), draw(st.integers(2, 70))
    high, wide = draw(st.integers(1, height)), draw(st.integers(1, width))
    top, left = draw(st.integers(0, height - high)), draw(st.integers(0, width - wide))
    return (height, width), new, (top, left, high, wide), draw(st.booleans())


def resized_crop(images, boxes, size, *, flip=False):
    starts, lengths = torch.tensor(boxes).float().split(2, dim=1)
    return separable(images, *crop_weights(Boxes(starts, lengths, torch.tensor([flip])), tuple(images.shape[2:]), size))


def crop_error(sides, new, box, flip):
    image = torch.rand(1, 3, *sides)
    ours = resized_crop(image, [box], new, flip=flip)
    theirs = reference.resized_crop(image.double(), *box, list(new), antialias=True)
    return (ours - (theirs.flip(3) if flip else theirs)).abs().max()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(crops())
def test_a_resized_crop_is_torchvisions_to_1e_6(case):
    assert crop_error(*case) < 1e-6


def test_a_single_column_is_resized_too():
    image = torch.rand(1, 3, 2, 1)
    assert torch.allclose(resized_crop(image, [[0, 0, 2, 1]], (3, 1))[..., 1, 0], image.mean((2, 3)))


@pytest.mark.parametrize("new", [(224, 224), (96, 160), (600, 500)])
def test_a_resized_crop_of_a_large_image_is_as_accurate(new):
    for box in [(0, 0, 500, 375), (17, 230, 301, 97), (499, 374, 1, 1), (3, 1, 200, 333)]:
        assert crop_error((500, 375), new, box, flip=True) < 1e-6


def test_a_crop_of_the_whole_image_at_its_size_is_bit_for_bit_the_image():
    images = torch.rand(2, 3, 32, 48)
    assert torch.equal(resized_crop(images, [[0, 0, 32, 48]] * 2, (32, 48)), images)


@functools.cache
def drawn_boxes(shape, source):
    """Sample boxes (top, left, height, width) for images of a shape."""
    scale, ratio = (0.2, 1.0), (3 / 4, 4 / 3)
    if source == "ours":
        numbers = Draw(3, rows=DRAWS).uniform(4 * (TRIES + 1))
        return torch.cat(random_boxes(numbers, *shape, scale, ratio), dim=1)
    torch.manual_seed(5)
    image, draw = torch.empty(1, *shape), transforms.RandomResizedCrop.get_params
    return torch.tensor([draw(image, list(scale), list(ratio)) for _ in range(DRAWS)]).float()


SHAPES = [(32, 32), (30, 50), (65, 20)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_boxes_are_within_the_image_and_distributed_as_torchvisions(shape):
    ours, theirs = (drawn_boxes(shape, source) for source in ("ours", "torchvision"))
    assert torch.equal(ours, ours.round())
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, 2:] >= 1).all()
    assert (ours[:, :2] + ours[:, 2:] <= torch.tensor(shape)).all()
    agree(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3])
    agree(ours[:, 3].log() - ours[:, 2].log(), theirs[:, 3].log() - theirs[:, 2].log())
    for column in range(4):
        agree(ours[:, column], theirs[:, column])
    for side in (0, 1):  # where the crop lies in what room it has
        room = [boxes[:, side] / (shape[side] - boxes[:, 2 + side]).clamp(min=1) for boxes in (ours, theirs)]
        agree(*room)


def test_the_centre_is_taken_as_often_as_by_torchvision():
    shape = SHAPES[-1]
    centre = torch.tensor([19.0, 0.0, 27.0, 20.0])
    chosen = [(drawn_boxes(shape, source) == centre).all(dim=1).float() for source in ("ours", "torchvision")]
    assert 0.05 < chosen[1].mean() < 0.95
    agree(*chosen)


def test_a_box_that_never_fits_is_the_centre_of_torchvision():
    for shape in [(3, 50), (51, 4), (9, 10)]:
        image = torch.empty(1, *shape)
        theirs = transforms.RandomResizedCrop.get_params(image, [0.999, 1.0], [2.5, 2.6])
        starts, lengths = random_boxes(torch.rand(4, 4 * (TRIES + 1)), *shape, (0.999, 1.0), (2.5, 2.6))
        assert torch.cat([starts, lengths], dim=1).tolist() == [list(map(float, theirs))] * 4


def test_random_numbers_close_to_one_give_no_box_outside_the_image():
    greatest = torch.full((1, 4 * (TRIES + 1)), 1 - 2**-24)
    greatest.view(1, 4, -1)[:, :2] = 0.5
    for side in (32, 33, 255, 1000):
        starts, lengths = random_boxes(greatest, side, side, (0.2, 0.5), (3 / 4, 4 / 3))
        assert (starts + lengths == side).all()


def test_half_of_the_crops_are_flipped_without_other_changes():
    images = torch.rand(1, 3, 6, 9).expand(4000, -1, -1, -1)
    views = RandomResizedCrop(scale=(1.0, 1.0), ratio=(1.5, 1.5))(images, Draw(0, rows=4000))
    flipped = (views - images.flip(3)).abs().amax((1, 2, 3)) < 1e-6
    kept = (views - images).abs().amax((1, 2, 3)) < 1e-6
    assert torch.equal(flipped, ~kept)
    assert abs(flipped.float().mean() - 0.5) < SIGMAS * 0.5 / math.sqrt(4000)


# --- colours


def jitter_by_torchvision(image, factors, turns, grey):
    """Adjust one image step by step, in its own order."""
    steps = [reference.adjust_brightness, reference.adjust_contrast, reference.adjust_saturation, reference.adjust_hue]
    for step in turns.argsort().tolist():
        image = steps[step](image, float(factors[step]))
    return reference.rgb_to_grayscale(image, image.shape[0]) if grey else image


def colour_images():
    """Return images with colours at the edges of the cube, greys, and photographs."""
    corners = torch.randint(0, 2, (16, 3, 8, 8)).float()
    greys = torch.rand(8, 1, 8, 8).expand(-1, 3, -1, -1)
    return torch.cat([corners, greys, torch.rand(16, 3, 8, 8), natural_images(60, side=8) / 255])


def test_the_exact_form_is_torchvisions_step_by_step():
    images = colour_images()
    jitter = ColourJitter(brightness=0.6, contrast=0.7, saturation=0.8, hue=0.5, hue_form="exact")
    change = jitter.drawn(images, Draw(2, rows=len(images)))
    rows = zip(images, *change, strict=True)
    expected = torch.stack([jitter_by_torchvision(image, *one) for image, *one in rows])
    assert 0 < change.grey.sum() < len(images)
    assert (exact_jitter(images, change) - expected).abs().max() < 2e-6


@pytest.mark.parametrize("form", [affine_jitter, exact_jitter])
def test_images_of_one_channel_change_in_brightness_and_contrast_only(form):
    images = torch.rand(40, 1, 8, 8) * 0.5 + 0.1
    change = ColourJitter(brightness=0.2, contrast=0.2, hue=0.5, grey=0.5).drawn(images, Draw(2, rows=40))
    expected = torch.stack([jitter_by_torchvision(x, *one) for x, *one in zip(images, *change, strict=True)])
    assert (form(images, change) - expected).abs().max() < 1e-6


def by_matrices(image, factors, turns, grey):
    """Do one image's affine steps one by one, unclamped, in double precision; the hue by Rodrigues' formula."""
    luma = torch.tensor([0.2989, 0.587, 0.114], dtype=torch.float64)
    pixels = image.double().flatten(1)
    bright, contrast, saturation, angle = factors.double()
    axis = torch.full((3, 1), 1 / math.sqrt(3), dtype=torch.float64)

    def turn(x):
        a = 2 * math.pi * angle
        across = torch.linalg.cross(axis.expand_as(x), x, dim=0)
        return x * torch.cos(a) + across * torch.sin(a) + axis * (axis.T @ x) * (1 - torch.cos(a))

    steps = [
        lambda x: bright * x,
        lambda x: contrast * x + (1 - contrast) * (luma @ x).mean(),
        lambda x: saturation * x + (1 - saturation) * (luma @ x),
        turn,
    ]
    for step in turns.argsort().tolist():
        pixels = steps[step](pixels)
    return ((luma @ pixels).expand(3, -1) if grey else pixels).clamp(0, 1).view_as(image)


def test_the_affine_form_is_its_four_steps_in_every_order():
    images = torch.rand(300, 3, 5, 5)
    change = ColourJitter(hue=0.5, grey=0.3).drawn(images, Draw(4, rows=300))
    assert len({tuple(order) for order in change.turns.argsort(dim=1).tolist()}) == 24
    expected = torch.stack([by_matrices(x, *one) for x, *one in zip(images, *change, strict=True)])
    assert (affine_jitter(images, change) - expected).abs().max() < 1e-4  # the grey weights' sum is 0.9999


def test_the_affine_form_is_as_close_to_the_exact_one_as_documented(real_data):
    data = runpy.run_path(str(real_data / "read.py"))["cifar"]("cifar10")
    images = torch.from_numpy(data["images"][data["test"]][:2000]).permute(0, 3, 1, 2) / 255
    draw = [Draw(1, rows=2000) for _ in range(2)]
    difference = ColourJitter()(images, draw[0]) - ColourJitter(hue_form="exact")(images, draw[1])
    assert difference.abs().mean() < 0.0095
    assert difference.square().mean().sqrt() < 0.0195


def test_each_of_the_24_orders_is_equally_frequent():
    change = ColourJitter().drawn(torch.empty(DRAWS, 3, 1, 1), Draw(8, rows=DRAWS))
    orders = change.turns.argsort(dim=1) @ torch.tensor([64, 16, 4, 1])
    counts = torch.unique(orders, return_counts=True)[1].double()
    assert len(counts) == 24
    expected = DRAWS / 24
    assert ((counts - expected).square() / expected).sum() < 49.7  # chi-square, 23 degrees of freedom, 1 in 1,000


def test_factors_and_probabilities_are_torchvisions():
    sizes = {"brightness": 0.4, "contrast": 1.2, "saturation": 0.3, "hue": 0.1}
    change = ColourJitter(**sizes, probability=0.8, grey=0.2).drawn(torch.empty(DRAWS, 3, 1, 1), Draw(9, rows=DRAWS))
    torch.manual_seed(3)
    jitter = transforms.ColorJitter(**sizes)
    ranges = jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue
    theirs = torch.tensor([jitter.get_params(*ranges)[1:] for _ in range(DRAWS)])
    changed = (change.factors != torch.tensor([1.0, 1, 1, 0])).any(dim=1)
    for column in range(4):
        agree(change.factors[changed, column], theirs[:, column])
    for share, chosen in ((0.8, changed), (0.2, change.grey)):
        assert abs(chosen.float().mean() - share) < SIGMAS * math.sqrt(share * (1 - share) / DRAWS)
    assert abs((changed & change.grey).float().mean() - 0.16) < SIGMAS * math.sqrt(0.16 * 0.84 / DRAWS)


# --- blur


@pytest.mark.parametrize(("sides", "size"), [((32, 32), 3), ((20, 33), 9), ((12, 12), 23), ((5, 7), 1)])
def test_blur_is_torchvisions(sides, size):
    images = torch.rand(12, 3, *sides)
    sigma = torch.linspace(0.1, 2.0, 12)
    ours = separable(images, *blur_weights(0.5 / sigma.square(), size, sides))
    for image, width, blurred in zip(images, sigma.tolist(), ours, strict=True):
        expected = reference.gaussian_blur(image.double(), [size, size], [width, width])
        assert (blurred - expected).abs().max() < 1e-6


def test_half_of_the_images_are_blurred_and_the_others_stay():
    images = torch.rand(1, 3, 32, 32).expand(4000, -1, -1, -1)
    views = GaussianBlur(sigma=(1.0, 2.0))(images, Draw(0, rows=4000))
    stayed = (views == images).flatten(1).all(dim=1)
    assert abs(stayed.float().mean() - 0.5) < SIGMAS * 0.5 / math.sqrt(4000)
    blurred = views[~stayed]
    least, most = (reference.gaussian_blur(images[0], [3, 3], [width]).std() for width in (2.0, 1.0))
    spread = blurred.flatten(1).std(dim=1)
    assert (spread > least - 1e-5).all()
    assert (spread < most + 1e-5).all()


# --- affine maps


def still(**options):
    """Make a RandomAffine with only the given changes."""
    return RandomAffine(**{"degrees": 0, "translate": 0, "scale": 0, "shear": 0, "noise": 0, **options})


def test_an_affine_map_of_size_zero_is_the_identity():
    images = torch.rand(3, 1, 5, 9)
    assert torch.allclose(still()(images, Draw(0, rows=3)), images, atol=1e-5)


def test_a_rotation_moves_pixels_on_a_circle_even_in_an_oblong_image():
    images = torch.zeros(64, 1, 21, 41)
    images[:, 0, 10, 27] = 1.0  # 7 pixels right of the centre
    turned = still(degrees=90)(images, Draw(0, rows=64))[:, 0]
    rows, columns = torch.meshgrid(torch.arange(21.0) - 10, torch.arange(41.0) - 20, indexing="ij")
    mass = turned.sum((1, 2))
    radius = torch.hypot((turned * rows).sum((1, 2)) / mass, (turned * columns).sum((1, 2)) / mass)
    assert (radius - 7).abs().max() < 0.2


def test_noise_is_relative_to_the_standard_deviation_of_an_image():
    flat, steep = torch.full((1, 1, 64, 64), 0.5), torch.rand(1, 1, 64, 64) * 0.4 + 0.3
    views = still(noise=0.1)(torch.cat([flat, steep]), Draw(0, rows=2))
    assert torch.equal(views[:1], flat)
    assert (views[1:] - steep).std() / steep.std() == pytest.approx(0.1, rel=SIGMAS / math.sqrt(2 * 64 * 64))


# --- vectors and tokens


def test_a_dropped_feature_takes_its_mean_over_the_training_part():
    training, inputs = torch.randn(500, 4) * 3 + 1, torch.randn(4000, 4)
    view = fitted(FeatureDropout(probability=0.3, noise=0), training)(inputs, Draw(0, rows=4000))
    kept = view == inputs
    assert torch.allclose(view[~kept], training.mean(0).expand_as(inputs)[~kept])
    assert abs((~kept).float().mean() - 0.3) < SIGMAS * math.sqrt(0.21 / 16000)


def test_noise_is_relative_to_the_standard_deviation_of_a_feature():
    training = torch.randn(5000, 3) * torch.tensor([0.0, 1.0, 10.0])
    inputs = torch.zeros(5000, 3)
    view = fitted(FeatureDropout(probability=0, noise=0.5), training)(inputs, Draw(0, rows=5000))
    expected = 0.5 * training.std(0, correction=0)
    assert torch.allclose(view.std(0), expected, rtol=SIGMAS / math.sqrt(2 * 5000))


def test_feature_dropout_before_fit_or_with_another_number_of_features_is_refused():
    with pytest.raises(ValueError, match=r"call fit\(training inputs\)"):
        FeatureDropout()(torch.zeros(3, 4), Draw(0, rows=3))
    with pytest.raises(ValueError, match=r"expected 4 features .*got 5"):
        fitted(FeatureDropout(), torch.rand(9, 4))(torch.zeros(3, 5), Draw(0, rows=3))


def test_tokens_are_masked_with_the_given_probability_and_padding_never():
    tokens = torch.randint(2, 50, (2000, 12), dtype=torch.int32)
    tokens[:, 9:] = 0
    masked = TokenDropout(probability=0.25, mask_id=77)(tokens, Draw(0, rows=2000))
    assert masked.dtype == torch.int32
    assert (masked[:, 9:] == 0).all()
    changed = masked[:, :9] != tokens[:, :9]
    assert (masked[:, :9][changed] == 77).all()
    assert abs(changed.float().mean() - 0.25) < SIGMAS * math.sqrt(0.25 * 0.75 / 18000)


# --- the recipe, chains, and what suits a shape


def test_simclr_views_equal_the_chain_of_their_parts():
    images = natural_images(64)
    for form in ("affine", "exact"):
        views = SimCLRViews(size=24, strength=0.5, hue_form=form)(images, Draw(3, rows=64))
        sizes = dict.fromkeys(("brightness", "contrast", "saturation"), 0.2)
        parts = Chain([RandomResizedCrop(size=24), ColourJitter(**sizes, hue=0.05, hue_form=form)])
        assert (views - parts(images, Draw(3, rows=64))).abs().max() < 1e-6


def test_the_blur_of_simclr_views_differs_from_the_chains_only_by_clamps_and_means():
    images = natural_images(64)
    chain = Chain([RandomResizedCrop(), ColourJitter(probability=0), GaussianBlur(probability=0.5)])
    views = SimCLRViews(jitter=0, blur=0.5)(images, Draw(3, rows=64))
    assert (views - chain(images, Draw(3, rows=64))).abs().max() < 1e-6
    chain = Chain([RandomResizedCrop(), ColourJitter(), GaussianBlur(probability=0.5)])
    views = SimCLRViews(blur=0.5)(images, Draw(3, rows=64))
    assert (views - chain(images, Draw(3, rows=64))).abs().mean() < 1e-3


def test_the_default_augmentation_depends_on_the_input_shape():
    shapes = {(3, 32, 32): SimCLRViews, (1, 28, 28): RandomAffine, (4, 8, 8): RandomAffine, (20,): FeatureDropout}
    for shape, kind in shapes.items():
        described = RandomResizedCrop if kind is SimCLRViews else kind  # a caption may name colours
        assert type(usual_augmentation(shape)) is kind
        assert type(usual_augmentation(shape, described=True)) is described
    with pytest.raises(ValueError, match="specify an augmentation"):
        usual_augmentation((3, 4, 5, 6))


# --- what all of them keep

IMAGES = {
    "crop": RandomResizedCrop(),
    "crop to a size": RandomResizedCrop(size=7),
    "colours": ColourJitter(),
    "exact colours": ColourJitter(hue_form="exact"),
    "blur": GaussianBlur(),
    "affine": RandomAffine(),
    "recipe": SimCLRViews(strength=2, blur=0.5),
    "exact recipe": SimCLRViews(hue_form="exact"),
    "chain": Chain([RandomResizedCrop(), ColourJitter(), RandomAffine()]),
}
EVERY = {
    **{name: (augmentation, (3, 10, 14)) for name, augmentation in IMAGES.items()},
    "grey images": (SimCLRViews(), (1, 10, 14)),
    "square images": (SimCLRViews(), (3, 12, 12)),
    "vectors": (FeatureDropout(), (6,)),
    "tokens": (TokenDropout(probability=0.5), (6,)),
}


def inputs_for(augmentation, shape, count, *, repeated=False):
    one = torch.rand(1 if repeated else count, *shape)
    if isinstance(augmentation, TokenDropout):
        one = (one * 50).long()
    augmentation.fit(torch.rand(50, *shape))
    return one.expand(count, *shape).contiguous()


@pytest.mark.parametrize("case", EVERY)
def test_rows_get_different_numbers_which_depend_on_the_seed_alone_on_any_process(case):
    augmentation, shape = EVERY[case]
    repeated = inputs_for(augmentation, shape, 16, repeated=True)
    assert len(torch.unique(augmentation(repeated, Draw(0, rows=16)).flatten(1), dim=0)) > 4
    inputs = inputs_for(augmentation, shape, 12)
    before, state = inputs.clone(), torch.get_rng_state()
    whole = augmentation(inputs, Draw(1, rows=12))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(whole, augmentation(inputs, Draw(1, rows=12)))
    assert not torch.equal(whole, augmentation(inputs, Draw(2, rows=12)))
    assert torch.equal(inputs, before)
    for own in (slice(0, 4), slice(4, 12), slice(7, 8), slice(0, 0)):
        part = augmentation(inputs[own], Draw(1, rows=12, local=own))
        exact = isinstance(augmentation, FeatureDropout | TokenDropout)  # batched products may add in another order
        assert torch.allclose(part.double(), whole[own].double(), rtol=0, atol=0 if exact else 1e-6)
    with pytest.raises(ValueError, match="the 12 inputs, got one for 3: give Draw"):
        augmentation(inputs, Draw(0, rows=3))


@pytest.mark.parametrize("case", IMAGES)
def test_images_stay_between_0_and_1_keep_a_floating_dtype_and_autocast_changes_no_pixel(case):
    ones = torch.randint(0, 2, (32, 3, 10, 14))
    exact = IMAGES[case](ones.float(), Draw(0, rows=32))
    for kind in (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        inputs = ones.to(kind) * (255 if kind == torch.uint8 else 1)
        views = IMAGES[case](inputs, Draw(0, rows=32))
        assert views.dtype == (torch.float32 if kind == torch.uint8 else kind)
        assert views.min() >= 0
        assert views.max() <= 1
        rounding = torch.finfo(kind).eps if kind.is_floating_point else 0
        assert (views.float() - exact).abs().max() <= max(rounding, 4e-6)  # float32 rounds an affine map's places
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(IMAGES[case](ones.float(), Draw(0, rows=32)), exact)


class NoLook(TorchDispatchMode):
    """Refuse operations that synchronise a GPU, except for constants, which are made once."""

    LOOKS = ("_local_scalar_dense", "nonzero", "masked_select", "equal.default", "is_nonzero", "_to_copy")

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(operation)
        moved = "_to_copy" in name and "device" in kwargs and kwargs["device"] != args[0].device
        assert moved or "_to_copy" in name or not any(look in name for look in self.LOOKS), name
        assert not moved, name
        if "index.Tensor" in name or "index_put" in name:
            assert all(index is None or index.dtype != torch.bool for index in args[1]), name
        return operation(*args, **kwargs)


@pytest.mark.parametrize("case", EVERY)
def test_no_augmentation_looks_at_a_value(case):
    augmentation, shape = EVERY[case]
    inputs, draw = inputs_for(augmentation, shape, 4), Draw(0, rows=4)
    augmentation(inputs, Draw(0, rows=4))  # makes the constants
    with NoLook():
        augmentation(inputs, draw)


WRONG_INPUTS = {
    "images for vectors": (FeatureDropout(), torch.rand(2, 3, 4, 4), "choose SimCLRViews for images"),
    "tokens for vectors": (FeatureDropout(), torch.ones(2, 3, dtype=torch.int64), "TokenDropout for token rows"),
    "vectors for images": (RandomAffine(), torch.rand(2, 3), "choose FeatureDropout for vectors"),
    "vectors for tokens": (TokenDropout(), torch.rand(2, 3), "choose FeatureDropout for vectors"),
    "integers for images": (RandomAffine(), torch.ones(2, 3, 4, 4, dtype=torch.int64), r"\.to\(torch\.uint8\)"),
    "small images": (GaussianBlur(size=9), torch.rand(2, 3, 4, 6), "choose a size of at most 7"),
}


@pytest.mark.parametrize("case", WRONG_INPUTS)
def test_wrong_inputs_are_refused_with_the_remedy(case):
    augmentation, inputs, words = WRONG_INPUTS[case]
    with pytest.raises(ValueError, match=words):
        augmentation(inputs, Draw(0, rows=2))


WRONG_PARAMETERS = [
    (RandomResizedCrop, {"size": 0}),
    (RandomResizedCrop, {"size": (24, 24)}),
    (SimCLRViews, {"size": "32"}),
    (RandomResizedCrop, {"scale": (0.0, 1.0)}),
    (RandomResizedCrop, {"scale": (0.2, 1.1)}),
    (RandomResizedCrop, {"ratio": (-1.0, 1.0)}),
    (RandomResizedCrop, {"flip": 1.5}),
    (ColourJitter, {"contrast": math.nan}),
    (ColourJitter, {"hue": 0.6}),
    (ColourJitter, {"grey": 2}),
    (ColourJitter, {"hue_form": "hsv"}),
    (GaussianBlur, {"sigma": (2.0, 0.1)}),
    (GaussianBlur, {"size": 4}),
    (GaussianBlur, {"probability": 1.1}),
    (RandomAffine, {"shear": 90}),
    (RandomAffine, {"padding": "circular"}),
    (FeatureDropout, {"probability": 1.1}),
    (FeatureDropout, {"noise": -1}),
    (TokenDropout, {"mask_id": 0}),
    (SimCLRViews, {"strength": -1}),
    (SimCLRViews, {"blur": 2}),
    (Chain, {"augmentations": []}),
]


def test_invalid_parameters_are_refused_with_the_remedy():
    for kind, options in WRONG_PARAMETERS:
        with pytest.raises(ValueError, match=rf"expected {next(iter(options))}.*got "):
            kind(**options)


class Mirror(ImageAugmentation):
    """A user's own augmentation of images."""

    def change(self, images, draw):
        assert images.dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu")
        return torch.where(draw.uniform(1, 1, 1) < 2, images.flip(3), images)


@pytest.mark.parametrize(("dtype", "most"), [(torch.uint8, 255), (torch.float16, 1)])
def test_an_augmentation_of_ones_own_gets_float32_and_keeps_the_inputs_dtype(dtype, most):
    images = torch.arange(2 * 3 * 4 * 4).remainder(2).view(2, 3, 4, 4).to(dtype) * most
    with torch.autocast("cpu", torch.bfloat16):
        mirrored = Mirror()(images, Draw(0, rows=2))
    assert mirrored.dtype == (torch.float32 if most == 255 else dtype)
    assert torch.equal(mirrored.double(), images.flip(3).double() / most)


# --- in a loop of one's own


@pytest.mark.parametrize("case", EVERY)
def test_views_are_those_of_a_draw_with_torchs_next_number(case):
    """Without a trainer: V views of each input, sample by sample, from one seed that torch's generator gives."""
    augmentation, shape = EVERY[case]
    inputs = inputs_for(augmentation, shape, 4)
    torch.manual_seed(3)
    views = augmentation(inputs, views=3)
    torch.manual_seed(3)
    draw = Draw(int(torch.randint(2**62, ())), rows=12)
    assert torch.equal(views, augmentation(inputs.repeat_interleave(3, dim=0), draw).unflatten(0, (4, 3)))
    assert augmentation(inputs).shape == (4, 2, *views.shape[2:])
    assert augmentation(inputs[:0]).shape == (0, 2, *views.shape[2:])


KINDS = {
    **{kind.__name__: kind for kind in (SimCLRViews, RandomResizedCrop, ColourJitter, GaussianBlur, RandomAffine)},
    **{kind.__name__: kind for kind in (RandomShift, FeatureDropout, TokenDropout)},
    "Chain": functools.partial(Chain, [ColourJitter()]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_of_the_augmentation_alone(kind):
    """Every call has other numbers, the next of a copy are the same, and torch's generator is left as it is."""
    made, again = KINDS[kind](seed=5), KINDS[kind](seed=5)
    inputs = inputs_for(made, {"FeatureDropout": (30,), "TokenDropout": (30,)}.get(kind, (3, 10, 14)), 4)
    for augmentation in (made, again):
        augmentation.fit(inputs if kind == "TokenDropout" else torch.zeros(2, *inputs.shape[1:]))
    state = torch.get_rng_state()
    first, second = made(inputs), made(inputs)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, second)
    assert not torch.equal(first[:, 0], first[:, 1])
    assert torch.equal(again(inputs), first)
    for copied in (copy.deepcopy(again), pickle.loads(pickle.dumps(again))):  # noqa: S301 - of our own
        assert torch.equal(copied(inputs), second)
    with pytest.raises(ValueError, match=r"without a seed where training, or a Chain, seeds it.*seed=5.*: leave"):
        made(inputs, Draw(0, rows=4))


def test_workers_of_a_loader_have_numbers_of_their_own():
    """By torch's generator, which each worker has for itself; those of a seed would be the same in all."""
    images = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)).expand(4, 3, 8, 8)

    def loaded(augmentation):
        made = functools.partial(torch.utils.data.DataLoader, images, batch_size=2, num_workers=2)
        return [*made(collate_fn=lambda batch: augmentation(torch.stack(batch)))]

    first, second = loaded(SimCLRViews())
    assert not torch.equal(first, second)
    with pytest.raises(ValueError, match=r"without a seed in workers, .* leave the seed out"):
        loaded(SimCLRViews(seed=0))


def test_the_representation_of_an_augmentation_is_the_call_that_made_it():
    """In one line, though some are made of others."""
    assert repr(SimCLRViews(size=32, blur=0.5)) == "SimCLRViews(size=32, blur=0.5)"
    assert repr(Chain([RandomShift(), GaussianBlur()], seed=1)) == "Chain([RandomShift(), GaussianBlur()], seed=1)"


def test_an_augmentation_is_a_module_without_state():
    module = torch.nn.Sequential(SimCLRViews(size=8), torch.nn.Flatten(0, 1), torch.nn.Conv2d(3, 5, 3))
    assert module(torch.rand(4, 3, 10, 14)).shape == (8, 5, 6, 6)
    assert sorted(module.state_dict()) == ["2.bias", "2.weight"]


WRONG_BATCHES = {
    "a list": ([torch.rand(3, 8, 8)] * 2, "expected a batch in one tensor, got list: torch.stack"),
    "one image": (torch.rand(3, 8, 8), r"got \(3, 8, 8\): .*image\[None\] for a single image"),
    "normalised": (torch.randn(2, 3, 8, 8), r"got values from -\d.* to \d.*: make views before normalising"),
    "up to 255": (torch.rand(2, 3, 8, 8) * 255, r"got values from \S+ to 2\d\d.*\.to\(torch.uint8\)"),
    "not a number": (torch.full((2, 3, 8, 8), torch.nan), "got values from nan to nan"),
    "channels last": (torch.rand(2, 8, 8, 3), r"got 8: .*images\.permute\(0, 3, 1, 2\)"),
}


@pytest.mark.parametrize("case", WRONG_BATCHES)
def test_a_batch_of_which_no_views_can_be_made_is_refused(case):
    batch, words = WRONG_BATCHES[case]
    for augmentation in (SimCLRViews(), Chain([ColourJitter(), RandomResizedCrop()])):
        with pytest.raises(ValueError, match=words):
            augmentation(batch)


def test_views_of_resized_images_and_at_least_one_are_made():
    """Rounding may leave 0 to 1 by little; no views are a mistake."""
    assert SimCLRViews()(torch.full((2, 3, 8, 8), 1.0002)).max() <= 1
    for views in (0, 1.5, "2"):
        with pytest.raises(ValueError, match=f"views of at least 1, got {views!r}: contrast needs 2"):
            SimCLRViews()(torch.rand(2, 3, 8, 8), views=views)
