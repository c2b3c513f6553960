"""The catalogue of the classes that come with likewise, by base class: with it, a typo imports nothing.

A new class is entered here, and in `__all__` of its package; tests/configuration/test_configuration.py compares the
two.
"""

SECTION_NAMES = (
    "ComparisonSection MapSection SubModesSection HardestPairsSection MistakesSection NearestTextsSection PairsSection "
    "ScoresSection ClassDifferencesSection SampleDifferencesSection ClassesSection ConfusionSection LabelsSection "
    "CalibrationSection RobustnessSection GeometrySection GradientsSection NegativesSection AnchorSection "
    "LabelSimilaritySection HistogramsSection ClassMeansSection CurvesSection ChoicesSection UseSection FactsSection"
)
"""The sections of a page, in their order."""
CATALOGUE: dict[str, dict[str, str]] = {
    "likewise.losses.base.Loss": {
        "likewise.losses": "ArcFaceLoss AsymmetricLoss BCELoss BCLLoss BYOLLoss BatchTripletLoss ClipLoss "
        "ContrastiveMarginLoss CosFaceLoss CrossEntropyLoss DCLLoss HardNegativeLoss InfoNCELoss InfoPatchLoss KCLLoss "
        "LiftedStructureLoss MSCLoss MulSupConLoss MultiSimilarityLoss NPairsLoss NTXentLoss NWSLoss PaCoLoss "
        "PatchLoss PrototypicalLoss ProxyAnchorLoss ProxyNCALoss RASCALLoss SigLIPLoss SupConLoss TripletLoss"
    },
    "likewise.models.encoder.Encoder": {
        "likewise.models": "BagOfTokens Conv4 ConvNet FromRun MLP PretrainedTransformer Projected ResNet ResNet12 Timm "
        "Transformer Wrapped"
    },
    "likewise.models.heads.Head": {"likewise.models": "NoHead PredictionHead ProjectionHead"},
    "likewise.data.samples.Source": {"likewise.data": "Arrays Digits Folder Hub Pairs Shards Table Text Torchvision"},
    "likewise.data.subset.Subset": {
        "likewise.data": "Classes FewLabels Fraction FromList LabelNoise Labelled LongTail MinPerClass"
    },
    "likewise.data.split.Split": {"likewise.data": "ByClass Stratified"},
    "likewise.data.batches.Batches": {"likewise.data": "Episodes Views"},
    "likewise.training.inputs.loss_input.LossInput": {
        "likewise.training": "Guide KeyQueue LabelPrototypes Momentum Predictor SecondTower",
        "likewise.training.inputs": "Classifier EpisodeMaps EpisodeMeans",
    },
    "likewise.training.schedule.Schedule": {"likewise.training": "Constant Cosine Steps"},
    "torch.optim.optimizer.Optimizer": {
        "torch.optim": "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD "
        "SparseAdam"
    },
    "likewise.evaluation.evaluation.Evaluation": {
        "likewise.evaluation": "Calibration Clustering CrossModalRetrieval FewShot KNN LinearProbe OutOfDistribution "
        "OwnClassifier Retrieval Robustness Widths WithinClass ZeroShot"
    },
    "likewise.report.sections.section.Section": {"likewise.report.sections": SECTION_NAMES},
}
"""By base class: the modules that export its subclasses, and their names."""


def listed_subclasses(base: str) -> dict[str, str] | None:
    """Return the import paths of a class's subclasses, by name; None: it is not in the catalogue."""
    modules = CATALOGUE.get(base)
    names = [(name, module) for module, several in (modules or {}).items() for name in several.split()]
    return None if modules is None else {name: f"{module}.{name}" for name, module in sorted(names)}
