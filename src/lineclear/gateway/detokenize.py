"""Tokens to text, one at a time, never half a character.

A character may take several tokens. Its bytes are kept until it is complete; bytes that cannot become a character are
shown as U+FFFD, once per broken character, and so is a character that the text ends inside of.
"""

import codecs

from lineclear.gateway.vocabulary import Vocabulary

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The incremental decoder of one choice.

    Args:
        vocabulary: the bytes of every token.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = _new_decoder(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        return self._decoder.decode(self._vocabulary.token_bytes(token_id))

    def flush(self) -> str:
        """End the run of text: U+FFFD if it ends inside a character, else nothing."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest

    @property
    def has_partial_character(self) -> bool:
        """Whether bytes of an incomplete character are kept."""
        return bool(self._decoder.getstate()[0])


def detokenize(vocabulary: Vocabulary, token_ids: list[int]) -> str:
    """The text of a whole list of tokens, control tokens as their literals."""
    return b"".join(map(vocabulary.token_bytes, token_ids)).decode(errors="replace")
