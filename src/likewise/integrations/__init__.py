"""Our losses in the trainers of other libraries, none of which is imported here."""

from likewise.integrations.metric_learning import ForMetricLearning
from likewise.integrations.open_clip import ForOpenClip
from likewise.integrations.sentences import ForSentences

__all__ = ["ForMetricLearning", "ForOpenClip", "ForSentences"]
