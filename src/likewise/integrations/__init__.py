"""Our losses in the trainers of other libraries, none of which is imported here."""

from likewise.integrations.sentences import ForSentences

__all__ = ["ForSentences"]
