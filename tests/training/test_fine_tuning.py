"""Fine-tuning: what is frozen stays as it was, and what is trained follows a plain PyTorch loop."""

import lightning
import pytest
import timm
import torch
from torch import nn
from torch.nn import functional
from trainings import fitted
from transformers import BertConfig, BertModel

from likewise.data import Samples, Views
from likewise.losses import CrossEntropyLoss, InfoNCELoss, SupConLoss
from likewise.models import Conv4, ConvNet, Projected, ProjectionHead, ResNet, Transformer, Wrapped
from likewise.models.weights import blocks_of
from likewise.training import Constant, Momentum, Pretraining, TrainingData
from likewise.training.optimization import FineTuning

pytestmark = pytest.mark.slow
RATE, DECAY, CLASSES = 0.01, 0.1, 3


class Net(nn.Module):
    """A network of blocks with batch norm, which cancels biases before it, and dropout."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(1, 4, 3, bias=False)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.layer2 = nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU())

    def forward(self, x):
        return self.layer2(self.layer1(self.embed(x))).mean(dim=(2, 3))


def _samples(count=48):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(count, 1, 8, 8, generator=generator)
    return Samples(inputs, torch.arange(count) % CLASSES, tuple("abc"))


def _module(fine_tuning=None, net=None, loss=None):
    torch.manual_seed(1)
    encoder = Wrapped((1, 8, 8), net or Net())
    encoder.observe(_samples().inputs)
    optimizer = lambda groups: torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY)  # noqa: E731
    options = {"samples": _samples(), "schedule": Constant(), "fine_tuning": fine_tuning}
    return Pretraining(encoder, None, loss or CrossEntropyLoss(), optimizer, **options)


class Watch(lightning.Callback):
    """Keeps the inputs of each step, and the rates that are told."""

    def __init__(self):
        self.batches, self.rates = [], []

    def on_train_batch_end(self, trainer, *_):
        self.rates.append(float(trainer.callback_metrics["learning_rate"]))

    def on_train_batch_start(self, _, __, batch, ___):
        torch.manual_seed(len(self.batches))  # dropout
        self.batches.append((batch["inputs"].flatten(0, -4), batch["labels"]))


def _fit(module, epochs=2, watch=None, **options):
    watch = watch or Watch()
    data = TrainingData(_samples(), Views(1, 16, augmentation=None), seed=0)
    fitted(module, data, max_epochs=epochs, callbacks=[watch], **options)
    return watch.batches


def _plain(module, batches, tuning, frozen, clip):
    """Train in a loop: AdamW with a group for each parameter; parts with frozen names stand still."""
    encoder, linear = module.encoder, module.inputs.by_class["Classifier"].linear
    rates = {
        part: tuning.get("rate_factor", 1) * tuning.get("layer_decay", 1) ** (2 - depth)
        for part, depth in DEPTHS.items()
    }
    still = {name: getattr(encoder.module, name) for name in frozen}
    groups = [
        {"params": [of], "lr": RATE * rates[part], "weight_decay": DECAY if of.ndim >= 2 else 0.0}
        for part in DEPTHS
        for of in getattr(encoder.module, part).parameters()
    ]
    groups += [{"params": [of], "lr": RATE, "weight_decay": DECAY * (of.ndim == 2)} for of in linear.parameters()]
    optimizer = torch.optim.AdamW(groups)
    for step, (inputs, labels) in enumerate(batches):
        rests = step < 3 or "unfreeze_epoch" not in tuning
        module.train()
        for part in still.values():
            part.train(not rests)
        optimizer.zero_grad()
        torch.manual_seed(step)  # dropout
        functional.cross_entropy(linear(encoder(inputs)), labels).backward()
        if rests:
            for of in (of for part in still.values() for of in part.parameters()):
                of.grad = None
        if clip:
            nn.utils.clip_grad_norm_([of for group in groups for of in group["params"] if of.grad is not None], clip)
        optimizer.step()


def _trained(module):
    linear = module.inputs.by_class["Classifier"].linear
    return {f"encoder.{name}": of for name, of in module.encoder.state_dict().items()} | {
        f"linear.{name}": of for name, of in linear.state_dict().items()
    }


DEPTHS = {"embed": 0, "layer1": 1, "layer2": 2}
ENCODER = tuple(DEPTHS)


@pytest.mark.parametrize(
    ("tuning", "frozen", "clip"),
    [
        ({}, (), None),
        ({"freeze": "embed,layer1"}, ("embed", "layer1"), 0.05),
        ({"freeze": "all but the last block"}, ("embed", "layer1"), None),
        ({"freeze": "all"}, ENCODER, None),
        ({"rate_factor": 0.3, "layer_decay": 0.5}, (), None),
        ({"freeze": "all", "unfreeze_epoch": 2}, ENCODER, 0.05),
    ],
    ids=["nothing", "names", "all but the last block", "all", "rates", "until the second epoch"],
)
def test_it_is_a_plain_loop(tuning, frozen, clip):
    """After six steps in two epochs weights differ by 1e-6 at most; what was frozen, and its statistics, not at all."""
    module = _module(FineTuning(**tuning))
    before = _module()
    before.load_state_dict(module.state_dict())
    first = {name: of.clone() for name, of in _trained(before).items()}
    batches = _fit(module, gradient_clip_val=clip)
    assert len(batches) == 6
    _plain(before, batches, tuning, frozen, clip)
    found = _trained(module)
    for name, of in _trained(before).items():
        torch.testing.assert_close(found[name], of, rtol=0, atol=1e-6, msg=name)
        if "unfreeze_epoch" not in tuning and any(part in name for part in frozen):
            assert torch.equal(found[name], first[name]), name


@pytest.mark.parametrize(("loss", "factor"), [(CrossEntropyLoss(), 1.0), (SupConLoss(), 0.3)], ids=["head", "none"])
def test_the_rate_that_is_told_is_that_of_the_head(loss, factor):
    """It is the optimizer's own; where nothing has that, the encoder's last block's, which is the highest."""
    watch = Watch()
    _fit(_module(FineTuning(rate_factor=0.3, layer_decay=0.5), loss=loss), 1, watch)
    assert watch.rates == pytest.approx([RATE * factor] * 3)


def test_a_resumed_training_keeps_frozen_parts_at_rest():
    """It begins within an epoch, and batch norms have been replaced since what is frozen was chosen."""
    module = _module(FineTuning("embed,layer1"))
    layer = module.encoder.module.layer1
    layer[1], replaced = nn.BatchNorm2d(4), layer[1]
    layer[1].weight, layer[1].bias = replaced.weight, replaced.bias
    module.on_train_start()
    module.on_train_batch_start({}, 3)
    assert {name for name, part in module.encoder.module.named_children() if not part.training} == {"embed", "layer1"}
    assert not any(part.training for part in module.encoder.module.layer1.modules())


def test_a_momentum_encoder_rests_as_the_encoder_does():
    torch.manual_seed(1)
    encoder = Wrapped((1, 8, 8), Net())
    options = {"samples": _samples(), "fine_tuning": FineTuning("all")}
    module = Pretraining(encoder, ProjectionHead(6), InfoNCELoss(), torch.optim.AdamW, [Momentum()], **options)
    module.train()
    slow = module.inputs.momentum.slow.encoder[0]
    images = torch.rand(9, 1, 8, 8)
    assert torch.equal(encoder(images), slow(images))


def test_of_a_tower_of_two_the_head_is_trained():
    tower = Projected(ConvNet((1, 8, 8), width=4), ProjectionHead(16, out_dim=5))
    FineTuning("all").begin(tower)
    assert {name.split(".")[0] for name, of in tower.named_parameters() if of.requires_grad} == {"head"}


def _bert():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertModel(BertConfig(vocab_size=60, **sizes))


@pytest.mark.parametrize(
    ("network", "names"),
    [
        (lambda: Conv4((1, 16, 16)), "blocks.block_0.0 blocks.block_1.0 blocks.block_2.0 blocks.block_3.0"),
        (
            lambda: ResNet((3, 16, 16), depth=20),
            "stem.0 stages.0.0 stages.0.1 stages.0.2 stages.1.0 stages.1.1 stages.1.2 stages.2.0 stages.2.1 stages.2.2",
        ),
        (lambda: Transformer(()), "embeddings positions blocks.layers.0 blocks.layers.1"),
        (
            lambda: timm.create_model("resnet18"),
            "conv1 layer1.0 layer1.1 layer2.0 layer2.1 layer3.0 layer3.1 layer4.0 layer4.1 fc",
        ),
        (
            lambda: timm.create_model("vit_tiny_patch16_224", depth=3, num_classes=0),
            "patch_embed blocks.0 blocks.1 blocks.2",
        ),
        (_bert, "embeddings encoder.layer.0 encoder.layer.1"),  # its features are taken before the pooler
        (
            lambda: timm.create_model("mobilenetv3_small_050", num_classes=0),
            (
                "conv_stem blocks.0.0 blocks.1.0 blocks.1.1 blocks.2.0 blocks.2.1 blocks.2.2 "
                "blocks.3.0 blocks.3.1 blocks.4.0 blocks.4.1 blocks.4.2 blocks.5.0 conv_head"
            ),
        ),
    ],
    ids=["conv4", "resnet20", "transformer", "timm resnet", "vit", "bert", "mobilenet"],
)
def test_blocks_are_what_each_network_is_built_of(network, names):
    made = network()
    blocks = blocks_of(made)
    assert [block.name for block in blocks] == names.split()
    parameters = [of for block in blocks for of in block.parameters]
    assert len(parameters) == len(set(parameters)) == len(list(made.parameters()))


def test_what_it_refuses():
    for tuning, said in (
        ({"freeze": ""}, "got : module.embed"),
        ({"freeze": "layer3"}, "got layer3, did you mean layer2 or layer1"),
        ({"freeze": "stem"}, "got stem: module.embed, module.layer1.0, module.layer2.0"),
        ({"freeze": "all but the last 3 blocks"}, "expected from 1 to 2 blocks to train, got 3: Wrapped has"),
        ({"rate_factor": 0.0}, "encoder_rate_factor above 0, got 0.0"),
        ({"layer_decay": 1.5}, "layer_decay above 0, up to 1, got 1.5"),
        ({"unfreeze_epoch": 3}, "got 3 without --freeze"),
        ({"freeze": "all", "unfreeze_epoch": 1}, "unfreeze_epoch of 2 or more"),
    ):
        with pytest.raises(ValueError, match=said):
            _module(FineTuning(**tuning))
