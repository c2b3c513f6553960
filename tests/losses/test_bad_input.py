"""What a loss cannot use is refused in one line, which says what was expected, what came, and how to mend it."""

import math

import pytest
import torch

import likewise as lw

ROWS, VIEWS, NAN = torch.ones(4, 3), torch.ones(4, 2, 3), torch.full((4, 3), torch.nan)
CLASSES, SETS, SAMPLES = torch.tensor([0, 0, 1, 1]), torch.eye(4, 2).bool(), torch.arange(4)
MAPS, CELLS = torch.ones(2, 3, 4, 2, 2), torch.zeros(2, 3, 2, 2, dtype=torch.int64)
PROTOTYPES = torch.ones(2, 3)

OPTIONS = [
    (lambda: lw.SupConLoss(temperature=0), "temperature to be a positive number .*got 0"),
    (lambda: lw.SupConLoss(temperature="0.1"), "temperature to be a positive number .*got '0.1'.*\"learned\""),
    (lambda: lw.SupConLoss(temperature=1e-40), "temperature to be a positive number .*1e-15 .*got 1e-40"),
    (lambda: lw.SupConLoss(form="both"), "form to be .* got 'both'"),
    (lambda: lw.SupConLoss(reduction="average"), "reduction to be one of mean, sum, none, got 'average'"),
    (lambda: lw.BatchTripletLoss(mining="batch-hard"), "one of all, all semi-hard, semi-hard, hard, got 'batch-hard'"),
    (lambda: lw.RASCALLoss(0, 3), "num_samples .*at least 1.* got 0"),
    (lambda: lw.RASCALLoss(4, 3, ranking="drift"), "ranking to be .* got 'drift'"),
    (lambda: lw.DCLLoss(sigma=math.nan), "sigma to be a positive number .* got nan"),
    (lambda: lw.MSCLoss(alpha=1e9), "alpha to be a positive number within 1e-06 .* got 1000000000.0"),
    (lambda: lw.MultiSimilarityLoss(alpha=0), "alpha to be a positive number"),
    (lambda: lw.MultiSimilarityLoss(epsilon=math.nan), "epsilon to be a number"),
    (lambda: lw.PaCoLoss(alpha=-1), "alpha to be a number within 0 … 1e\\+06, got -1"),
    (lambda: lw.HardNegativeLoss(beta=-1), "beta to be a number within 0 … 1e\\+06, got -1"),
    (lambda: lw.HardNegativeLoss(class_prior=1), "class_prior to be a number within 0 … 0.999999, got 1"),
    (lambda: lw.KCLLoss(k=0), "k to be an integer ≥ 1, got 0"),
    (lambda: lw.TripletLoss(margin=math.inf), "margin to be a number within .* got inf"),
    (lambda: lw.ContrastiveMarginLoss(negative_margin=math.nan), "negative_margin to be a number within .* got nan"),
    (lambda: lw.ArcFaceLoss(margin=2.0), r"margin to be a number within 0 … 1\.5708"),
    (lambda: lw.SigLIPLoss(bias=math.inf), "bias to be a finite number.*got inf"),
    (lambda: lw.SigLIPLoss(bias=torch.zeros(3)), r"bias to be a finite number, or a tensor of it of shape \(\)"),
    (lambda: lw.PatchLoss(scale=-7), "scale to be a positive number .*got -7"),
    (lambda: lw.PatchLoss(scale=torch.ones(2)), r"a number or a tensor of shape \(\) or \(1,\), got shape \(2,\)"),
    (lambda: lw.CrossEntropyLoss(label_smoothing=1.5), "label_smoothing to be a number within 0 … 1, got 1.5"),
    (lambda: lw.BCELoss(positive_weight=0), "positive_weight to be a positive number .* got 0"),
    (lambda: lw.AsymmetricLoss(gamma_negative=-1), "gamma_negative to be a number within 0 … .*got -1"),
    (lambda: lw.AsymmetricLoss(clip=1), "clip to be a number within 0 … 0.99, got 1"),
    (lambda: lw.NWSLoss(torch.tensor([[1.0, 1.5], [1.5, 1.0]])), r"within \[0, 1\], got 1 … 1.5: scale"),
    (lambda: lw.NWSLoss(torch.tensor([[1.0, 0.5], [0.0, 1.0]])), "symmetric, got another: average"),
    (lambda: lw.NWSLoss(torch.full((2, 2), torch.nan)), r"within \[0, 1\], got nan"),
    (lambda: lw.NWSLoss(torch.eye(2).long()), "floating-point matrix .* got torch.int64"),
    (lambda: lw.NWSLoss(torch.rand(2, 3)), r"\(L, L\), got torch.float32 of shape \(2, 3\)"),
]
CALLS = [
    (lambda: lw.SupConLoss()(ROWS.long(), CLASSES), "convert them with .float"),
    (lambda: lw.SupConLoss()(torch.ones(4, 3, 2, 2), CLASSES), "flatten feature maps"),
    (lambda: lw.SupConLoss()(torch.ones(4, 0), CLASSES), "at least one feature"),
    (lambda: lw.SupConLoss()([], CLASSES), "embeddings to be a tensor, got list"),
    (lambda: lw.SupConLoss()([ROWS, ROWS[:3]], CLASSES), "views of the same shape"),
    (lambda: lw.NTXentLoss()(ROWS), "two or more views.*augment each sample twice"),
    (lambda: lw.NTXentLoss()(ROWS, CLASSES), "views for NTXentLoss, not labels.*SupConLoss"),
    (lambda: lw.NTXentLoss()([ROWS, NAN]), "view_1 to be finite.*in 4 of 4 rows.*the first at 0"),
    (lambda: lw.DCLLoss(weighted=True)(ROWS, ROWS, ROWS), "two views for .*, got 3"),
    (lambda: lw.HardNegativeLoss()(ROWS, ROWS, ROWS), "two views of each sample for .*, got 3"),
    (lambda: lw.SupConLoss()(ROWS, CLASSES[:3]), "one entry for each of 4 embeddings, got 3"),
    (lambda: lw.SupConLoss()(ROWS, CLASSES.float()), "integer classes"),
    (lambda: lw.SupConLoss()(ROWS, CLASSES.to(torch.uint16)), "labels to be integer classes.* got torch.uint16"),
    (lambda: lw.SupConLoss()(ROWS, CLASSES.tolist()), "labels to be a tensor, got list: convert"),
    (lambda: lw.SupConLoss()(ROWS, CLASSES[:, None]), "pass a column of classes as labels"),
    (lambda: lw.SupConLoss()(ROWS, torch.full((4, 2), 0.5)), "zeros and ones"),
    (lambda: lw.SupConLoss()(ROWS), "something that defines the positives"),
    (lambda: lw.SupConLoss()(ROWS, CLASSES, mask=torch.eye(4)), "got both"),
    (lambda: lw.SupConLoss()(ROWS, mask=torch.eye(3)), r"one column for each of 4 samples, got shape \(3, 3\)"),
    (lambda: lw.SupConLoss()(ROWS, mask=torch.full((4, 4), 0.5)), "mask to be zeros and ones"),
    (lambda: lw.SupConLoss()(ROWS, mask=torch.ones(4, 3), references=ROWS), "one column for each of 4 references"),
    (lambda: lw.SupConLoss()(ROWS, CLASSES, references=ROWS), "expected .* together"),
    (lambda: lw.SupConLoss()(ROWS, CLASSES, references=ROWS, reference_labels=torch.eye(4)), "both classes"),
    (lambda: lw.SupConLoss()(ROWS, CLASSES, queue=ROWS), "got queue and labels without queue_labels"),
    (lambda: lw.SupConLoss()(ROWS, mask=torch.eye(4), queue=ROWS, queue_labels=CLASSES), "a mask does not work with"),
    (lambda: lw.InfoNCELoss()(ROWS, ROWS, queue=lw.memory.Queue(4, 3)), "queue to be a tensor, got Queue: call it"),
    (lambda: lw.InfoNCELoss()(ROWS, ROWS[:3]), r"paired one to one with the queries.*got shape \(3, 3\)"),
    (lambda: lw.InfoNCELoss()(VIEWS, VIEWS), "keys to be rows.*one row each"),
    (lambda: lw.BYOLLoss()(ROWS, ROWS[:2]), r"targets to have the predictions' shape.*\(4, 3\).*\(2, 3\)"),
    (lambda: lw.BYOLLoss()(torch.ones(4, 3, 3), torch.ones(4, 3, 3)), r"two views, \(B, 2, D\)"),
    (lambda: lw.RASCALLoss(4, 3)(ROWS, CLASSES, SAMPLES + 1), "within 0 … 3, got 1 … 4"),
    (lambda: lw.RASCALLoss(4, 3)(ROWS, CLASSES, SAMPLES.float()), "sample_index to be integers"),
    (lambda: lw.RASCALLoss(4, 3)(ROWS, CLASSES, SAMPLES[:3]), "sample_index .*4 embeddings, got 3"),
    (lambda: lw.RASCALLoss(4, 5)(ROWS, CLASSES, SAMPLES), r"5 features.*got 3: use RASCALLoss\(4, 3\)"),
    (lambda: lw.PatchLoss()(MAPS, MAPS, CELLS + 3), "cell_labels to be within the 3 classes.*got 3 … 3"),
    (lambda: lw.PatchLoss()(MAPS, MAPS, CELLS[0]), "one class for each cell.*repeat a query's label"),
    (lambda: lw.PatchLoss()(MAPS[0], MAPS, CELLS), "query_maps to be feature maps of episodes"),
    (lambda: lw.PatchLoss()(MAPS, MAPS[:1], CELLS), "support_maps to have the query_maps' 2 episodes, 4 features"),
    (lambda: lw.BCLLoss()(ROWS, CLASSES, ROWS[:1]), "within the 1 classes, 0 … 0, got 0 … 1: number them from 0"),
    (lambda: lw.PaCoLoss()(VIEWS, CLASSES, ROWS), r"for each embedding, \(4, 2, C\), got .*\(4, 3\)"),
    (lambda: lw.NWSLoss(torch.eye(2))(ROWS, CLASSES, PROTOTYPES), r"multi-hot label sets.* shape \(4,\): convert"),
    (lambda: lw.NWSLoss(torch.eye(2))(ROWS, torch.eye(4, 3), PROTOTYPES), "over the same 2 labels, got 3"),
    (lambda: lw.NWSLoss(torch.eye(2))(ROWS, SETS, ROWS[:3]), r"one for each label, \(2, D\), got 3: use"),
    (lambda: lw.NWSLoss(torch.eye(2))(ROWS, SETS, PROTOTYPES, queue=ROWS), "queue without queue_labels: pass both"),
    (
        lambda: lw.NWSLoss(torch.eye(2))(ROWS, SETS, PROTOTYPES, keys=ROWS, key_labels=~SETS),
        "keys to be the samples' own, .* put older keys into the queue",
    ),
    (lambda: lw.CrossEntropyLoss()(ROWS[0], CLASSES), r"class_logits to have a logit for each class.*shape \(3,\)"),
    (lambda: lw.CrossEntropyLoss()(ROWS[:, :1], CLASSES), "class_logits to have at least two classes, got one"),
    (lambda: lw.CrossEntropyLoss()(NAN, CLASSES), "class_logits to be finite"),
    (lambda: lw.CrossEntropyLoss()(ROWS, CLASSES + 2), "labels to be within the 3 classes, 0 … 2, got 2 … 3"),
    (lambda: lw.CrossEntropyLoss()(VIEWS, CLASSES.repeat(2)), "one entry for each of 4 samples, got 8"),
    (lambda: lw.BCELoss()(ROWS, CLASSES), r"labels to be multi-hot label sets.*got shape \(4,\)"),
    (lambda: lw.BCELoss()(ROWS, SETS), "labels to be sets over the same 3 labels, got 2"),
    (lambda: lw.contrast(ROWS, pull=ROWS, push=lw.pairs.NotSelf(4), temperature=1.0), "into pairs.Explicit"),
    (lambda: lw.label_pair_similarity(None, "npmi"), "labels to be a tensor or an array of numbers, got NoneType"),
    (lambda: lw.label_pair_similarity(SETS, "cosine"), "one of npmi, jaccard, identity, got 'cosine'"),
    (lambda: lw.label_pair_similarity(SETS[0], "npmi"), r"label sets, \(n, L\)"),
    (lambda: lw.label_pair_similarity(SETS[:0], "npmi"), "at least one sample, got none"),
]


@pytest.mark.parametrize(("call", "message"), OPTIONS + CALLS)
def test_it_is_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
