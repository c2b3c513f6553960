"""A tokenizer trained on texts: lower-cased words, and parts of the rarer ones."""

from collections.abc import Iterable
from typing import Any

SPECIAL = ["[PAD]", "[MASK]"]  # padding is 0, the mask 1


def word_pieces(texts: Iterable[str], vocabulary: int) -> Any:
    """Train a tokenizer by byte-pair encoding.

    Args:
        texts: The texts to train on.
        vocabulary: The largest number of tokens, padding and mask included. The mask also stands for characters that
            the texts don't have.

    Returns:
        A tokenizer of the `tokenizers` library.

    Raises:
        ValueError: The texts have no characters, or the vocabulary is smaller than 3.

    Source:
        R. Sennrich, B. Haddow and A. Birch, Neural Machine Translation of Rare Words with Subword Units, 2016.

    Example:
        >>> tokenizer = word_pieces(["pull what is alike", "push what is not"], vocabulary=60)
        >>> tokenizer.encode("What? is").tokens
        ['what', '[MASK]', 'is']
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers  # noqa: PLC0415 - of an extra

    if vocabulary <= len(SPECIAL):
        raise ValueError(f"expected a vocabulary of at least 3 tokens, got {vocabulary}: 8,000 is usual")
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[1]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    characters = vocabulary - len(SPECIAL)  # the most frequent; without a limit all of them become tokens
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, limit_alphabet=characters, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() <= len(SPECIAL):
        raise ValueError("expected texts with words, got only empty ones: check the column of texts")
    return tokenizer
