"""Progress that remembers its sentences."""

from hidisc.ground.progress import Progress


class Said(Progress):
    """What a verb says, sentence by sentence, in a list."""

    def __init__(self, sentences: list[str]) -> None:
        self.sentences = sentences

    def say(self, sentence: str) -> None:
        """Remember the sentence."""
        self.sentences.append(sentence)
