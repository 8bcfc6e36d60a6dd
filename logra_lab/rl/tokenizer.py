"""The tiny model's tokenizer: one token per character of an arithmetic problem.

Saved in Hugging Face's format, so `AutoTokenizer.from_pretrained` loads it. The padding token is the stop token, as
in many real checkpoints: a trainer that masks by token value instead of by length never trains the stop.
Characters outside `CHARACTERS` become <unk>.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHARACTERS = "0123456789+-*/=()., "
STOP = "<eos>"
UNKNOWN = "<unk>"


def character_tokenizer(characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are <eos>, <unk> and each of `characters`."""
    vocabulary = {token: i for i, token in enumerate([STOP, UNKNOWN, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=STOP,
        pad_token=STOP,
        unk_token=UNKNOWN,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
