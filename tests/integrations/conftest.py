"""What the tests of several trainers share."""

import pytest


@pytest.fixture(scope="session")
def save_bert():
    """Return what saves a small BERT with random weights, and a tokenizer of numbers below 60, to a folder."""
    for module in ("sentence_transformers", "tokenizers", "transformers"):
        pytest.importorskip(module, reason="not installed")
    from tokenizers import Tokenizer  # noqa: PLC0415 - where it is needed
    from tokenizers.models import WordLevel  # noqa: PLC0415
    from tokenizers.pre_tokenizers import WhitespaceSplit  # noqa: PLC0415
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast  # noqa: PLC0415

    def save(folder, **options):
        words = Tokenizer(WordLevel({"[PAD]": 0, **{str(n): n for n in range(1, 60)}}, unk_token="[PAD]"))  # noqa: S106 - no secret
        words.pre_tokenizer = WhitespaceSplit()
        PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]").save_pretrained(folder)  # noqa: S106
        size = {"num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.3}
        BertModel(BertConfig(vocab_size=60, **size, **options)).save_pretrained(folder)

    return save
